"""The task figures-pose: poses of drawn figures, at a size that one core trains in seconds (Section 4.4)."""

from __future__ import annotations

import math
from typing import Literal

from autoloss.errors import RequestError
from autoloss.tasks.pose.data.crops import Augmentation, CropSettings
from autoloss.tasks.pose.data.figures import FigureSettings, compose_figures
from autoloss.tasks.pose.networks.simple_baseline import small_baseline
from autoloss.tasks.pose.task import Inference, PoseTask
from autoloss.training.recipe import Recipe

CROPS = CropSettings(size=(64, 64), stride=4, sigma=1.0, padding=1.15)
"""The sigma of the paper's 64×48 cells, in proportion to 16×16."""
MIRRORED_ONLY = Augmentation(flip=0.5, rotation=0.0, scale=(1.0, 1.0))


def figures_pose(
    metric: str = "map",
    *,
    size: int = 128,
    train: int = 640,
    valid: int = 128,
    test: int = 256,
    seed: int = 0,
    epochs: int = 8,
    batch_size: int = 8,
    optimizer: Literal["sgd", "adam"] = "adam",
    learning_rate: float = 3e-3,
    warmup_steps: int = 20,
) -> PoseTask:
    """Compose the scenes and make the task.

    Args:
        metric: map, ap50, ap75, map_medium, map_large, mar or oks.
        size: Side of a scene in pixels.
        train: Number of training scenes, with one or two figures each.
        valid: Number of validation scenes.
        test: Number of test scenes.
        seed: Seed of the scenes.
        epochs: Epochs of Adam with a cosine schedule, as in Appendix A. This and the next four options are fields of the `Recipe`.

    Raises:
        RequestError: An unknown metric, or a value outside its range.
    """
    counts = {"train": train, "valid": valid, "test": test}
    for split, count in counts.items():
        if count < 1:
            raise RequestError(f"figures-pose has {count} scenes in the split {split}; it needs at least 1.")
    scenery = FigureSettings(size=size)
    data = {split: compose_figures(split, count, seed, scenery) for split, count in counts.items()}
    return PoseTask(
        small_baseline,
        train=data["train"],
        valid=data["valid"],
        test=data["test"],
        metric=metric,
        recipe=Recipe(
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            learning_rate=learning_rate,
            weight_decay=0.0,
            schedule="cosine",
            minimum_learning_rate=0.0,
            warmup_steps=warmup_steps,
        ),
        crops=CROPS,
        augmentation=MIRRORED_ONLY,
        # Found losses rank poses well although their heatmaps are low.
        inference=Inference(least_value=-math.inf),
        name="figures-pose",
    )
