"""Scenes of handwritten digits with their boxes: a detection data set that needs no download.

Digits are those of the same split of `segmentation/data/digits.py`, so that no image occurs in two splits. They are scaled by up
to a factor of two, stretched and placed with little overlap; pieces of digits are background clutter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from autoloss.options import Amount, Count, Natural, check, declare
from autoloss.tasks.scenes import make_scene_rng
from autoloss.tasks.segmentation.data.digits import load_split

CLASSES = 10
"""Digit d is class d + 1."""
PLACES = 16
"""Random places that are tried for a digit before it is left out."""

Example = tuple[Tensor, dict[str, Tensor]]
"""An image (channels, H, W), and `boxes` (G, 4) in pixels with `labels` (G,) from 1; `masks` (G, H, W) where asked for."""


@declare("scenes.")
class BoxSceneSettings:
    """Settings of the scenes."""

    size: Annotated[int, Field(ge=32, multiple_of=32)] = 96
    """Side of a scene in pixels, a multiple of 32."""
    digits: tuple[Count, Count] = (2, 7)
    """Minimum and maximum number of digits in a scene."""
    side: tuple[Annotated[int, Field(ge=8)], int] = (18, 36)
    """Minimum and maximum side of a digit's square in pixels; its box, that of the ink, is narrower."""
    stretch: float = 1.25
    """Maximum factor by which the aspect ratio of a digit is changed."""
    pieces: Natural = 3
    """Maximum number of pieces of digits in a scene."""
    overlap: float = 0.1
    """Maximum share of another digit's square that a digit may cover."""
    noise: Amount = 0.06
    """Standard deviation of the noise, where ink is 1."""
    ink: float = 0.3
    """Grey value above which a pixel belongs to the digit."""

    def __post_init__(self) -> None:
        fits = self.side[0] <= self.side[1] <= self.size
        check(self, {"digits": (self.digits[0] <= self.digits[1], "the minimum first")})
        check(self, {"side": (fits, f"the minimum first, and at most {self.size}")})


def compose_box_scenes(
    split: str,
    count: int,
    seed: int,
    scenery: BoxSceneSettings = BoxSceneSettings(),  # noqa: B008 - frozen
    *,
    masks: bool = False,
) -> list[Example]:
    """Compose scenes: images (1, H, W) in [0, 1], 1 for ink, with at least one digit each.

    Args:
        split: train, valid or test; each has digits of its own.
        seed: Seed of the scenes.
        masks: Add the mask of each digit, the pixels of its ink, to the targets; the scenes are the same.

    Raises:
        RequestError: There is no such split.
    """
    images, labels = load_split(split)
    rng = make_scene_rng(split, seed, scenery.size)
    scenes = (_compose_scene(images, labels, scenery, rng) for _ in range(count))
    names = ("boxes", "labels", "masks") if masks else ("boxes", "labels")
    return [(image, {name: target[name] for name in names}) for image, target in scenes]


def _compose_scene(
    images: NDArray[np.float64], labels: NDArray[np.int64], scenery: BoxSceneSettings, rng: np.random.Generator
) -> Example:
    canvas = np.zeros((scenery.size, scenery.size))
    boxes: list[list[float]] = []
    classes: list[int] = []
    masks: list[NDArray[np.uint8]] = []
    wanted = int(rng.integers(scenery.digits[0], scenery.digits[1] + 1))
    pieces = int(rng.integers(0, scenery.pieces + 1))
    for number, (top, left, height, width) in enumerate(_draw_squares(wanted + pieces, scenery, rng)):
        chosen = int(rng.integers(len(images)))
        grey = _resize(images[chosen], height, width) * rng.uniform(0.7, 1.0)
        spot = canvas[top : top + height, left : left + width]
        if number >= wanted:
            np.maximum(spot, _keep_half(grey), out=spot)
            continue
        np.maximum(spot, grey, out=spot)
        ink = grey > scenery.ink
        mask = np.zeros(canvas.shape, np.uint8)
        mask[top : top + height, left : left + width] = ink
        masks.append(mask)
        rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
        boxes.append([left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1])
        classes.append(int(labels[chosen]) + 1)
    noisy = (canvas + rng.normal(0, scenery.noise, canvas.shape)).clip(0, 1)
    return torch.from_numpy(noisy[None].astype(np.float32)), {
        "boxes": torch.tensor(boxes, dtype=torch.float32),
        "labels": torch.tensor(classes, dtype=torch.int64),
        "masks": torch.from_numpy(np.stack(masks)),
    }


def _draw_squares(
    count: int, scenery: BoxSceneSettings, rng: np.random.Generator
) -> Iterator[tuple[int, int, int, int]]:
    """Yield (top, left, height, width) of squares with little overlap; fewer than `count` where there is no room."""
    laid = np.zeros((0, 4))
    for _ in range(count):
        side = rng.uniform(*scenery.side, size=PLACES)
        stretch = scenery.stretch ** rng.uniform(-0.5, 0.5, size=PLACES)
        extent = np.stack([side / stretch, side * stretch], axis=1).round().clip(max=scenery.size).astype(int)
        corner = (rng.random((PLACES, 2)) * (scenery.size - extent + 1)).astype(int)
        squares = np.concatenate([corner, corner + extent], axis=1)
        inner = np.minimum(laid[:, None, 2:], squares[:, 2:]) - np.maximum(laid[:, None, :2], squares[:, :2])
        free = (inner.clip(min=0).prod(axis=2) <= scenery.overlap * extent.prod(axis=1)).all(axis=0)
        if free.any():
            first = int(free.argmax())
            laid = np.concatenate([laid, squares[None, first]])
            (top, left), (height, width) = corner[first].tolist(), extent[first].tolist()
            yield top, left, height, width


def _resize(digit: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    source = torch.from_numpy(digit)[None, None]
    return F.interpolate(source, (height, width), mode="bilinear", align_corners=False)[0, 0].numpy()


def _keep_half(grey: NDArray[np.float64]) -> NDArray[np.float64]:
    """Keep the upper half of a digit, rotated by 180°, so that it cannot be read as a digit."""
    half = np.zeros_like(grey)
    middle = len(grey) // 2
    half[:middle] = grey[:middle][::-1, ::-1]
    return half
