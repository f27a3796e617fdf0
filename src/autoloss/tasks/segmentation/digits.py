"""The task digits-seg: segmentation of handwritten digits, at a size that one core trains in seconds (Section 4.1)."""

from __future__ import annotations

import functools

from autoloss.options import Amount, Count, Positive, declare
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss_text import MAIN
from autoloss.tasks.factory import TaskFactory, make_recipe
from autoloss.tasks.scenes import SceneOptions
from autoloss.tasks.segmentation.data.digits import CLASSES, SceneSettings, compose_scenes
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, make_metrics
from autoloss.tasks.segmentation.networks.small import SmallSegmenter
from autoloss.tasks.supervised import SupervisedTask

PAPER_TOLERANCE, PAPER_SIZE = 5, 128
"""Tolerance of the boundary metrics in pixels (as in Auto-Seg-Loss), and side of the proxy's images (Appendix A.1)."""


@declare()
class DigitsOptions(SceneOptions):
    """Options of digits-seg; the boundary metrics train on the `edge` (bf1) or the `band` (biou) of each digit."""

    size: int = 32
    """Side of a scene in pixels, a multiple of 16."""
    train: Count = 2048
    valid: Count = 256
    test: Count = 512
    tail: float = 1.0
    """Exponent of the class frequencies: how much rarer each digit is than the one before. With a long tail, as in real scenes,
    losses differ more: mIoU weights rare classes like frequent ones, cross entropy does not."""
    epochs: Count = 2
    """Epochs of SGD with momentum 0.9 and the schedule poly, as in Appendix A."""
    batch_size: Count = 16
    learning_rate: Positive = 0.8
    """Initial learning rate."""
    weight_decay: Amount = 2e-3
    """Factor of the L2 penalty on the weights."""


def build_task(metric: str, options: DigitsOptions) -> SupervisedTask:
    """Compose the scenes and make the task."""
    scenery = SceneSettings(size=options.size, tail=options.tail)
    tolerance = max(1, round(PAPER_TOLERANCE * options.size / PAPER_SIZE))
    # As on VOC, boundary metrics ignore the background.
    six = make_metrics(tolerance=tolerance, left_out=0)
    task = SupervisedTask(
        functools.partial(SmallSegmenter, CLASSES),
        **options.compose(functools.partial(compose_scenes, scenery=scenery)),
        metric=six[metric],
        also=six,
        recipe=make_recipe(options),
        branch=ActivatedBranch(encoding=SEGMENTATION_METRICS[metric].encoding, tolerance=tolerance),
        name="digits-seg",
    )
    task.baselines = ({MAIN: f"baseline/asl_{metric}"},)
    return task


digits_seg = TaskFactory(name="digits-seg", options=DigitsOptions, build=build_task)
