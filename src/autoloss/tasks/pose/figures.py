"""The task figures-pose: poses of drawn figures, at a size that one core trains in seconds (Section 4.4)."""

from __future__ import annotations

import functools
import math
from typing import Literal

from autoloss.options import Count, Natural, Positive, declare
from autoloss.tasks.factory import TaskFactory, make_recipe
from autoloss.tasks.pose.data.crops import Augmentation, CropSettings
from autoloss.tasks.pose.data.figures import FigureSettings, compose_figures
from autoloss.tasks.pose.networks.simple_baseline import small_baseline
from autoloss.tasks.pose.task import Inference, PoseTask
from autoloss.tasks.scenes import SceneOptions

CROPS = CropSettings(size=(64, 64), stride=4, sigma=1.0, padding=1.15)
"""The sigma of the paper's 64×48 cells, in proportion to 16×16."""
MIRRORED_ONLY = Augmentation(flip=0.5, rotation=0.0, scale=(1.0, 1.0))


@declare()
class FigureOptions(SceneOptions):
    """Options of figures-pose."""

    size: int = 128
    train: Count = 640
    """Number of training scenes, with one or two figures each."""
    valid: Count = 128
    test: Count = 256
    epochs: Count = 8
    """Epochs of Adam with a cosine schedule, as in Appendix A."""
    batch_size: Count = 8
    optimizer: Literal["sgd", "adam"] = "adam"
    """sgd or adam."""
    learning_rate: Positive = 3e-3
    """Initial learning rate, after the warm-up."""
    warmup_steps: Natural = 20
    """Steps over which the learning rate rises linearly."""


def build_task(metric: str, options: FigureOptions) -> PoseTask:
    """Compose the scenes and make the task."""
    scenery = FigureSettings(size=options.size)
    return PoseTask(
        small_baseline,
        **options.compose(functools.partial(compose_figures, settings=scenery)),
        metric=metric,
        recipe=make_recipe(options, weight_decay=0.0, schedule="cosine", minimum_learning_rate=0.0),
        crops=CROPS,
        augmentation=MIRRORED_ONLY,
        # Found losses rank poses well although their heatmaps are low.
        inference=Inference(least_value=-math.inf),
        name="figures-pose",
    )


figures_pose = TaskFactory(name="figures-pose", options=FigureOptions, build=build_task)
