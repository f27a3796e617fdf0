"""Scenes of scikit-learn's handwritten digits: a segmentation data set that needs no download.

The 1797 images of digits (8×8, Alpaydin and Kaynak 1998) are split by a fixed permutation before scenes are composed, so that no
image occurs in two splits. A scene is a grid of cells with noise; each cell holds a digit at a random size and place, a piece of a
digit (background clutter), or nothing.
"""

from __future__ import annotations

import functools
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from autoloss.options import Amount, Share, check, declare
from autoloss.tasks.scenes import find_share, make_scene_rng

CLASSES = 11
"""Background, then the digits: digit d is class d + 1."""

CELL = 16
"""Side of a cell in pixels; a digit stays within its cell."""


@declare("scenes.")
class SceneSettings:
    """Settings of the scenes."""

    size: Annotated[int, Field(ge=CELL, multiple_of=CELL)] = 32
    """Side of a scene in pixels, a multiple of 16."""
    smallest: Annotated[int, Field(ge=4)] = 14
    """Minimum side of a digit in pixels."""
    largest: Annotated[int, Field(le=CELL)] = 16
    """Maximum side of a digit in pixels."""
    digits: Share = 0.75
    """Share of cells with a digit."""
    clutter: Share = 0.15
    """Share of cells with a piece of a digit."""
    noise: Amount = 0.06
    """Standard deviation of the noise, where ink is 1."""
    ink: float = 0.3
    """Grey value above which a pixel belongs to the digit."""
    tail: float = 0.0
    """Exponent of the class frequencies: digit d occurs in proportion to (d + 1)^(−tail)."""

    def __post_init__(self) -> None:
        check(self, {"largest": (self.smallest <= self.largest, "at least the smallest side")})
        check(self, {"clutter": (self.digits + self.clutter <= 1, "at most 1 with the share of digits")})


def compose_scenes(
    split: str,
    count: int,
    seed: int,
    scenery: SceneSettings = SceneSettings(),  # noqa: B008 - frozen
) -> tuple[Tensor, Tensor]:
    """Compose scenes.

    Args:
        split: train, valid or test; each has digits of its own.
        count: N, the number of scenes.
        seed: Seed of the scenes.

    Returns:
        Images (N, 1, H, W) in float32, about 0 for paper and 1 for ink, and classes (N, H, W) in 8 bits.

    Raises:
        RequestError: There is no such split.
    """
    images, labels = load_split(split)
    rng = make_scene_rng(split, seed)
    across = scenery.size // CELL
    cells = count * across**2
    kind = rng.random(cells)
    is_digit = kind < scenery.digits
    is_piece = ~is_digit & (kind < scenery.digits + scenery.clutter)
    weights = (labels + 1.0) ** -scenery.tail
    drawn = rng.choice(len(images), size=cells, p=weights / weights.sum())
    grey = _place(images[drawn], scenery, rng)
    grey[is_piece] = _cut_pieces(grey[is_piece], rng)
    grey[~(is_digit | is_piece)] = 0.0
    classes = np.where(is_digit[:, None, None] & (grey > scenery.ink), labels[drawn][:, None, None] + 1, 0)
    grey = _assemble(grey * rng.uniform(0.7, 1.0, size=(cells, 1, 1)), across)
    grey += rng.normal(0, scenery.noise, size=grey.shape)
    return torch.from_numpy(grey[:, None].astype(np.float32)), torch.from_numpy(
        _assemble(classes, across).astype(np.uint8)
    )


@functools.cache
def load_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of a split: images (N, 8, 8) with values in [0, 1], and labels 0 to 9.

    Raises:
        RequestError: There is no such split.
    """
    from sklearn.datasets import load_digits

    # With pandas at hand, the types of scikit-learn allow frames as well.
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    # The same permutation whatever the seed of the scenes.
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = order[find_share(split, len(order))]
    return images[chosen].reshape(-1, 8, 8) / 16.0, labels[chosen].astype(np.int64)


def _place(digits: np.ndarray, scenery: SceneSettings, rng: np.random.Generator) -> np.ndarray:
    """Resize each digit (N, 8, 8) and place it at random in its cell (N, 16, 16)."""
    side = rng.uniform(scenery.smallest, scenery.largest, size=(len(digits), 2))
    slack = (CELL - side) / 2
    shift = rng.uniform(-1, 1, size=side.shape) * slack
    # Coordinates of a cell are in [-1, 1]; the digit covers side/CELL of them, shifted by its distance from the centre.
    scale, offset = CELL / side, -2 * shift / side
    theta = np.zeros((len(digits), 2, 3))
    theta[:, [0, 1], [0, 1]], theta[:, :, 2] = scale, offset
    grid = F.affine_grid(torch.from_numpy(theta), [len(digits), 1, CELL, CELL], align_corners=False)
    source = torch.from_numpy(digits)[:, None]
    return F.grid_sample(source, grid, mode="bilinear", align_corners=False)[:, 0].numpy()


def _cut_pieces(cells: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Keep one half of each digit, transposed, so that it cannot be read as a digit."""
    halves = np.zeros_like(cells)
    upper = rng.random(len(cells)) < 0.5
    halves[upper, : CELL // 2] = cells[upper, : CELL // 2]
    halves[~upper, CELL // 2 :] = cells[~upper, CELL // 2 :]
    return halves.transpose(0, 2, 1)


def _assemble(cells: np.ndarray, across: int) -> np.ndarray:
    """Join cells (N·across², 16, 16) into scenes (N, 16·across, 16·across)."""
    grid = cells.reshape(-1, across, across, CELL, CELL).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(grid.reshape(-1, across * CELL, across * CELL))
