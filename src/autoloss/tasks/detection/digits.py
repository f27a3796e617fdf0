"""The tasks digits-det and digits-ins: scenes of handwritten digits, which one core trains in a minute (Sections 4.2, 4.3).

Digits are those of the same split of `segmentation/digits.py`, so that no image occurs in two splits. They are scaled by up
to a factor of two, stretched and placed with little overlap; pieces of digits are background clutter.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads

from autoloss.options import Count, declare
from autoloss.space.boxes import AreaUnit
from autoloss.tasks.detection.average_precision import PrecisionSettings
from autoloss.tasks.detection.faster_rcnn import DetectorSettings, FasterRCNN, small_levels
from autoloss.tasks.detection.heads import HEADS
from autoloss.tasks.detection.heads.head import Head, RegionLayers
from autoloss.tasks.detection.heads.mask import MASKS, MaskHead, make_predictor
from autoloss.tasks.detection.task import MASK_METRICS, METRICS, DetectionTask
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.scenes import SceneOptions, make_scene_rng
from autoloss.tasks.segmentation.digits import load_split
from autoloss.training.recipe import Recipe

CLASSES = 10
"""Digit d is class d + 1."""
PLACES = 16
"""Random places that are tried for a digit before it is left out."""

Example = tuple[Tensor, dict[str, Tensor]]
"""An image (channels, H, W), and `boxes` (G, 4) in pixels with `labels` (G,) from 1; `masks` (G, H, W) where asked for."""

DIGITS, PIECES = (2, 7), 3
"""Minimum and maximum number of digits in a scene; maximum number of pieces of digits."""
SIDE = (18, 36)
"""Minimum and maximum side of a digit's square in pixels; its box, that of the ink, is narrower."""
STRETCH = 1.25
"""Maximum factor by which the aspect ratio of a digit is changed."""
OVERLAP = 0.1
"""Maximum share of another digit's square that a digit may cover."""
NOISE = 0.06
"""Standard deviation of the noise, where ink is 1."""
INK = 0.3
"""Grey value above which a pixel belongs to the digit."""


def compose_box_scenes(split: str, count: int, seed: int, size: int = 96, *, masks: bool = False) -> list[Example]:
    """Compose scenes: images (1, H, W) in [0, 1], 1 for ink, with at least one digit each.

    Args:
        split: train, valid or test; each has digits of its own.
        size: Side of a scene in pixels, a multiple of 32.
        masks: Add the mask of each digit, the pixels of its ink, to the targets; the scenes are the same.
    """
    images, labels = load_split(split)
    rng = make_scene_rng(split, seed, size)
    scenes = (_compose_scene(images, labels, size, rng) for _ in range(count))
    names = ("boxes", "labels", "masks") if masks else ("boxes", "labels")
    return [(image, {name: target[name] for name in names}) for image, target in scenes]


def _compose_scene(
    images: NDArray[np.float64], labels: NDArray[np.int64], size: int, rng: np.random.Generator
) -> Example:
    canvas = np.zeros((size, size))
    boxes: list[list[float]] = []
    classes: list[int] = []
    masks: list[NDArray[np.uint8]] = []
    wanted = int(rng.integers(DIGITS[0], DIGITS[1] + 1))
    pieces = int(rng.integers(0, PIECES + 1))
    for number, (top, left, height, width) in enumerate(_draw_squares(wanted + pieces, size, rng)):
        chosen = int(rng.integers(len(images)))
        source = torch.from_numpy(images[chosen])[None, None]
        grey = F.interpolate(source, (height, width), mode="bilinear")[0, 0].numpy() * rng.uniform(0.7, 1.0)
        spot = canvas[top : top + height, left : left + width]
        if number >= wanted:
            # The upper half, rotated by 180°, so that it cannot be read as a digit.
            middle = height // 2
            np.maximum(spot[:middle], grey[:middle][::-1, ::-1], out=spot[:middle])
            continue
        np.maximum(spot, grey, out=spot)
        ink = grey > INK
        mask = np.zeros(canvas.shape, np.uint8)
        mask[top : top + height, left : left + width] = ink
        masks.append(mask)
        rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
        boxes.append([left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1])
        classes.append(int(labels[chosen]) + 1)
    noisy = (canvas + rng.normal(0, NOISE, canvas.shape)).clip(0, 1)
    return torch.from_numpy(noisy[None].astype(np.float32)), {
        "boxes": torch.tensor(boxes, dtype=torch.float32),
        "labels": torch.tensor(classes, dtype=torch.int64),
        "masks": torch.from_numpy(np.stack(masks)),
    }


def _draw_squares(count: int, size: int, rng: np.random.Generator) -> Iterator[tuple[int, int, int, int]]:
    """Yield (top, left, height, width) of squares with little overlap; fewer than `count` where there is no room."""
    laid = np.zeros((0, 4))
    for _ in range(count):
        side = rng.uniform(*SIDE, size=PLACES)
        stretch = STRETCH ** rng.uniform(-0.5, 0.5, size=PLACES)
        extent = np.stack([side / stretch, side * stretch], axis=1).round().clip(max=size).astype(int)
        corner = (rng.random((PLACES, 2)) * (size - extent + 1)).astype(int)
        squares = np.concatenate([corner, corner + extent], axis=1)
        inner = np.minimum(laid[:, None, 2:], squares[:, 2:]) - np.maximum(laid[:, None, :2], squares[:, :2])
        free = (inner.clip(min=0).prod(axis=2) <= OVERLAP * extent.prod(axis=1)).all(axis=0)
        if free.any():
            first = int(free.argmax())
            laid = np.concatenate([laid, squares[None, first]])
            (top, left), (height, width) = corner[first].tolist(), extent[first].tolist()
            yield top, left, height, width


CHANNELS = 48
MASK_WIDTH = 24


def small_mask_layers(channels: int, classes: int) -> nn.Module:
    """Return two convolutions on 7×7 cells, enlarged to 14×14: a digit has at most five cells of the finest level along a side."""
    return nn.Sequential(
        MaskRCNNHeads(channels, (MASK_WIDTH,) * 2, 1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        make_predictor(MASK_WIDTH, classes),
    )


SMALL_MASK = MaskHead(layers=RegionLayers(build=small_mask_layers, roi_size=7, roi_points=1))


@declare()
class DigitOptions(SceneOptions):
    """Options of digits-det and digits-ins."""

    unit: AreaUnit = "pixels"
    """Unit of areas: square pixels, or the area of the target box."""
    size: Annotated[int, Field(ge=32, multiple_of=32)] = 96
    """Side of a scene in pixels, a multiple of 32."""
    train: Count = 1024
    valid: Count = 128
    test: Count = 256
    # A step of Adam does not depend on the scale of a loss, in which found losses differ by orders of magnitude between branches:
    # with SGD a loss that trains to AP50 0.48 came to 0.22. Gradients of the standard losses exceed the norm of 5 in the first
    # steps only; found losses of areas have poles where boxes do not overlap.
    recipe: Recipe = Recipe(
        epochs=3, batch_size=8, optimizer="adam", learning_rate=1e-3, weight_decay=1e-4, warmup_steps=20, clip_norm=5.0
    )


def build_task(
    name: str, heads: Sequence[Head], metrics: Mapping[str, PrecisionSettings], metric: str, options: DigitOptions
) -> DetectionTask:
    """Compose the scenes and build the task."""
    masks = MASKS in [target for head in heads for target in head.targets]
    return DetectionTask(
        functools.partial(small_network, options.size, heads),
        **options.compose(functools.partial(compose_box_scenes, size=options.size, masks=masks)),
        classes=CLASSES,
        metric=metric,
        recipe=options.recipe,
        unit=options.unit,
        heads=heads,
        metrics=metrics,
        name=name,
    )


def _make_factory(name: str, *parts: Any) -> TaskFactory:
    return TaskFactory(name=name, options=DigitOptions, build=functools.partial(build_task, name, *parts))


digits_det = _make_factory("digits-det", HEADS, METRICS)
digits_ins = _make_factory("digits-ins", (*HEADS, SMALL_MASK), MASK_METRICS)


def small_network(size: int, heads: Sequence[Head] = HEADS) -> FasterRCNN:
    """Return an R-CNN for digits of about 16 to 40 pixels, with heads of half the usual width and three levels."""
    shape = DetectorSettings(
        short_side=size,
        long_side=size,
        anchor_sizes=(16, 24, 36),
        aspect_ratios=(1.0, 1.6, 2.2),
        head_width=128,
        roi_size=5,
        roi_points=1,
        rpn_sampled=64,
        rcnn_sampled=32,
        proposals=(128, 64),
        # Found losses rank boxes well although their scores are low: precision is measured over all scores, not those above 0.05.
        least_score=0.0,
        mean=(0.1,),
        deviation=(0.25,),
    )
    return FasterRCNN(small_levels(CHANNELS), CLASSES, shape, heads)
