"""The task digits-seg: segmentation of handwritten digits, at a size that one core trains in seconds (Section 4.1)."""

from __future__ import annotations

import functools

from autoloss.errors import RequestError, unknown
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.segmentation.data.digits import CLASSES, SceneSettings, compose_scenes
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, SegmentationMetric
from autoloss.tasks.segmentation.networks.small import SmallSegmenter
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.recipe import Recipe

PAPER_TOLERANCE, PAPER_SIZE = 5, 128
"""Tolerance of the boundary metrics in pixels (as in Auto-Seg-Loss), and side of the proxy's images (Appendix A.1)."""


def digits_seg(
    metric: str = "miou",
    *,
    size: int = 32,
    train: int = 2048,
    valid: int = 256,
    test: int = 512,
    seed: int = 0,
    tail: float = 1.0,
    epochs: int = 2,
    batch_size: int = 16,
    learning_rate: float = 0.8,
    weight_decay: float = 2e-3,
) -> SupervisedTask:
    """Compose the scenes and make the task.

    Args:
        metric: One of the six; the boundary metrics train on the `edge` (bf1) or the `band` (biou) of each digit.
        size: Side of a scene in pixels, a multiple of 16.
        train: Number of training scenes.
        valid: Number of validation scenes.
        test: Number of test scenes.
        seed: Seed of the scenes.
        tail: Exponent of the class frequencies: how much rarer each digit is than the one before. With a long tail, as in real
            scenes, losses differ more: mIoU weights rare classes like frequent ones, cross entropy does not.
        epochs: Epochs of SGD with momentum 0.9 and the schedule poly, as in Appendix A. This and the next three options are
            fields of the `Recipe`.

    Raises:
        RequestError: An unknown metric, or a value outside its range.
    """
    if metric not in SEGMENTATION_METRICS:
        raise unknown("segmentation metric", metric, SEGMENTATION_METRICS)
    counts = {"train": train, "valid": valid, "test": test}
    for split, count in counts.items():
        if count < 1:
            raise RequestError(f"digits-seg has {count} scenes in the split {split}; it needs at least 1.")
    scenery = SceneSettings(size=size, tail=tail)
    data = {split: compose_scenes(split, count, seed, scenery) for split, count in counts.items()}
    tolerance = max(1, round(PAPER_TOLERANCE * size / PAPER_SIZE))
    # As on VOC, boundary metrics ignore the background.
    six = {name: SegmentationMetric(name, tolerance=tolerance, left_out=0) for name in SEGMENTATION_METRICS}
    return SupervisedTask(
        functools.partial(SmallSegmenter, CLASSES),
        train=data["train"],
        valid=data["valid"],
        test=data["test"],
        metric=six[metric],
        also=six,
        recipe=Recipe(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, weight_decay=weight_decay),
        branch=ActivatedBranch(encoding=SEGMENTATION_METRICS[metric].encoding, tolerance=tolerance),
        name="digits-seg",
    )
