"""The task digits-det: detection in scenes of handwritten digits, at a size that one core trains in a minute (Section 4.2)."""

from __future__ import annotations

import functools
from typing import Literal

from autoloss.errors import RequestError
from autoloss.space.boxes import AreaUnit
from autoloss.tasks.detection.data.digits import CLASSES, BoxSceneSettings, compose_box_scenes
from autoloss.tasks.detection.heads.head import BranchSettings
from autoloss.tasks.detection.networks.faster_rcnn import DetectorSettings, FasterRCNN
from autoloss.tasks.detection.networks.pyramids import small_levels
from autoloss.tasks.detection.task import DetectionTask
from autoloss.tasks.training.recipe import Recipe

CHANNELS = 48


def digits_det(
    metric: str = "map",
    *,
    unit: AreaUnit = "pixels",
    size: int = 96,
    train: int = 1024,
    valid: int = 128,
    test: int = 256,
    seed: int = 0,
    epochs: int = 3,
    batch_size: int = 8,
    optimizer: Literal["sgd", "adam"] = "adam",
    learning_rate: float = 1e-3,
    weight_decay: float = 1e-4,
    warmup_steps: int = 20,
    clip_norm: float = 5.0,
) -> DetectionTask:
    """Compose the scenes and make the task.

    Args:
        metric: map, ap50 or voc07.
        unit: Unit of areas: square pixels, or the area of the target box.
        size: Side of a scene in pixels, a multiple of 32.
        train: Number of training scenes.
        valid: Number of validation scenes.
        test: Number of test scenes.
        seed: Seed of the scenes.
        epochs: Epochs of the proxy. This and the next six options are fields of its `Recipe`. A step of Adam does not depend on
            the scale of a loss, in which found losses differ by orders of magnitude between branches: with SGD a loss that trains
            to AP50 0.48 came to 0.22. Gradients are clipped at a norm that those of the standard losses exceed in the first steps
            only; found losses of areas have poles where boxes do not overlap.

    Raises:
        RequestError: An unknown metric, or a value outside its range.
    """
    counts = {"train": train, "valid": valid, "test": test}
    for split, count in counts.items():
        if count < 1:
            raise RequestError(f"digits-det has {count} scenes in the split {split}; it needs at least 1.")
    scenery = BoxSceneSettings(size=size)
    data = {split: compose_box_scenes(split, count, seed, scenery) for split, count in counts.items()}
    return DetectionTask(
        functools.partial(small_network, size),
        train=data["train"],
        valid=data["valid"],
        test=data["test"],
        classes=CLASSES,
        metric=metric,
        recipe=Recipe(
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            warmup_steps=warmup_steps,
            clip_norm=clip_norm,
        ),
        settings=BranchSettings(unit=unit),
        name="digits-det",
    )


def small_network(size: int) -> FasterRCNN:
    """Return a Faster R-CNN for digits of about 16 to 40 pixels, with heads of half the usual width and three levels."""
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
    return FasterRCNN(small_levels(CHANNELS), CLASSES, shape)
