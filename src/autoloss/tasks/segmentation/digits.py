"""The task digits-seg: scenes of handwritten digits, which need no download and one core trains in seconds (Section 4.1).

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
from torch import Tensor, nn
from torch.nn import functional as F

from autoloss.options import Count, declare
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss_text import MAIN
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.scenes import SceneOptions, find_share, make_scene_rng
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, make_metrics
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.weights import make_block
from autoloss.training.recipe import Recipe

CLASSES = 11
"""Background, then the digits: digit d is class d + 1."""

CELL = 16
"""Side of a cell in pixels; a digit stays within its cell."""

SMALLEST, LARGEST = 14, CELL
"""Minimum and maximum side of a digit in pixels."""
DIGITS, CLUTTER = 0.75, 0.15
"""Share of cells with a digit, and with a piece of one."""
NOISE = 0.06
"""Standard deviation of the noise, where ink is 1."""
INK = 0.3
"""Grey value above which a pixel belongs to the digit."""


def compose_scenes(split: str, count: int, seed: int, size: int = 32, tail: float = 0.0) -> tuple[Tensor, Tensor]:
    """Compose N scenes of size × size pixels, a multiple of 16; each split, train, valid or test, has digits of its own.

    Digit d occurs in proportion to (d + 1)^(−tail). Images are (N, 1, H, W) in float32, about 0 for paper and 1 for ink,
    and classes (N, H, W) in 8 bits.
    """
    images, labels = load_split(split)
    rng = make_scene_rng(split, seed)
    across = size // CELL
    cells = count * across**2
    kind = rng.random(cells)
    is_digit = kind < DIGITS
    is_piece = ~is_digit & (kind < DIGITS + CLUTTER)
    weights = (labels + 1.0) ** -tail
    drawn = rng.choice(len(images), size=cells, p=weights / weights.sum())
    grey = _place(images[drawn], rng)
    grey[is_piece] = _cut_pieces(grey[is_piece], rng)
    grey[~(is_digit | is_piece)] = 0.0
    classes = np.where(is_digit[:, None, None] & (grey > INK), labels[drawn][:, None, None] + 1, 0)
    grey = _assemble(grey * rng.uniform(0.7, 1.0, size=(cells, 1, 1)), across)
    grey += rng.normal(0, NOISE, size=grey.shape)
    masks = _assemble(classes, across).astype(np.uint8)
    return torch.from_numpy(grey[:, None].astype(np.float32)), torch.from_numpy(masks)


@functools.cache
def load_split(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the digits of a split: images (N, 8, 8) with values in [0, 1], and labels 0 to 9."""
    from sklearn.datasets import load_digits

    # With pandas at hand, the types of scikit-learn allow frames as well.
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    # The same permutation whatever the seed of the scenes.
    order = np.random.default_rng(0).permutation(len(labels))
    chosen = order[find_share(split, len(order))]
    return images[chosen].reshape(-1, 8, 8) / 16.0, labels[chosen].astype(np.int64)


def _place(digits: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Resize each digit (N, 8, 8) and place it at random in its cell (N, 16, 16)."""
    side = rng.uniform(SMALLEST, LARGEST, size=(len(digits), 2))
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


class SmallSegmenter(nn.Module):
    """Logits at three scales of `width`, twice and four times as many channels are added (as in FCN-8s), then upsampled by 2.

    Adding logits, rather than features, connects the coarse scale directly to the loss, so that the network soon leaves the
    plateau on which it only distinguishes ink from paper.
    """

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.fine = make_block(1, width, stride=2)
        self.middle = nn.Sequential(make_block(width, 2 * width, stride=2), make_block(2 * width, 2 * width, stride=1))
        self.coarse = make_block(2 * width, 4 * width, stride=2)
        self.votes = nn.ModuleList(nn.Conv2d(channels * width, 4 * classes, kernel_size=1) for channels in (1, 2, 4))

    def forward(self, image: Tensor) -> Tensor:
        """Map images (N, 1, H, W) to logits (N, classes, H, W); H and W are multiples of 8."""
        fine = self.fine(image)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        scales = zip(self.votes, (fine, middle, coarse), strict=True)
        of_fine, of_middle, of_coarse = (head(scale) for head, scale in scales)
        logits = of_middle + F.interpolate(of_coarse, scale_factor=2)
        logits = of_fine + F.interpolate(logits, scale_factor=2)
        return F.pixel_shuffle(logits, 2)


PAPER_TOLERANCE, PAPER_SIZE = 5, 128
"""Tolerance of the boundary metrics in pixels (as in Auto-Seg-Loss), and side of the proxy's images (Appendix A.1)."""


@declare()
class DigitsOptions(SceneOptions):
    """Options of digits-seg; the boundary metrics train on the `edge` (bf1) or the `band` (biou) of each digit."""

    size: Annotated[int, Field(ge=CELL, multiple_of=CELL)] = 32
    """Side of a scene in pixels, a multiple of 16."""
    train: Count = 2048
    valid: Count = 256
    test: Count = 512
    tail: float = 1.0
    """Exponent of the class frequencies: how much rarer each digit is than the one before. With a long tail, as in real scenes,
    losses differ more: mIoU weights rare classes like frequent ones, cross entropy does not."""
    # SGD with momentum 0.9 and the schedule poly, as in Appendix A.
    recipe: Recipe = Recipe(epochs=2, batch_size=16, learning_rate=0.8, weight_decay=2e-3)


def build_task(metric: str, options: DigitsOptions) -> SupervisedTask:
    """Compose the scenes and make the task."""
    tolerance = max(1, round(PAPER_TOLERANCE * options.size / PAPER_SIZE))
    # As on VOC, boundary metrics ignore the background.
    six = make_metrics(tolerance=tolerance, left_out=0)
    task = SupervisedTask(
        functools.partial(SmallSegmenter, CLASSES),
        **options.compose(functools.partial(compose_scenes, size=options.size, tail=options.tail)),
        metric=six[metric],
        also=six,
        recipe=options.recipe,
        branch=ActivatedBranch(encoding=SEGMENTATION_METRICS[metric].encoding, tolerance=tolerance),
        name="digits-seg",
    )
    task.baselines = ({MAIN: f"baseline/asl_{metric}"},)
    return task


digits_seg = TaskFactory(name="digits-seg", options=DigitsOptions, build=build_task)
