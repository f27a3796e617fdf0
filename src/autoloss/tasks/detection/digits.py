"""The tasks digits-det and digits-ins: scenes of handwritten digits, which one core trains in a minute (Sections 4.2, 4.3)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads

from autoloss.options import Amount, Count, Natural, Positive, declare
from autoloss.space.boxes import AreaUnit
from autoloss.tasks.detection.data.digits import CLASSES, BoxSceneSettings, compose_box_scenes
from autoloss.tasks.detection.heads import HEADS
from autoloss.tasks.detection.heads.head import BranchSettings, Head, RegionLayers
from autoloss.tasks.detection.heads.mask import MASKS, MaskHead, make_predictor
from autoloss.tasks.detection.metrics.average_precision import PrecisionSettings
from autoloss.tasks.detection.networks.faster_rcnn import DetectorSettings, FasterRCNN
from autoloss.tasks.detection.networks.pyramids import small_levels
from autoloss.tasks.detection.task import MASK_METRICS, METRICS, DetectionTask
from autoloss.tasks.factory import TaskFactory, make_recipe
from autoloss.tasks.scenes import SceneOptions

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
    size: int = 96
    """Side of a scene in pixels, a multiple of 32."""
    train: Count = 1024
    valid: Count = 128
    test: Count = 256
    epochs: Count = 3
    batch_size: Count = 8
    optimizer: Literal["sgd", "adam"] = "adam"
    """A step of Adam does not depend on the scale of a loss, in which found losses differ by orders of magnitude between branches:
    with SGD a loss that trains to AP50 0.48 came to 0.22."""
    learning_rate: Positive = 1e-3
    """Initial learning rate, after the warm-up."""
    weight_decay: Amount = 1e-4
    """Factor of the L2 penalty on the weights."""
    warmup_steps: Natural = 20
    """Steps over which the learning rate rises linearly."""
    clip_norm: Amount = 5.0
    """Maximum norm of all gradients, which those of the standard losses exceed in the first steps only; found losses of areas have
    poles where boxes do not overlap."""


def build_task(
    name: str, heads: Sequence[Head], metrics: Mapping[str, PrecisionSettings], metric: str, options: DigitOptions
) -> DetectionTask:
    """Compose the scenes and build the task."""
    masks = MASKS in [target for head in heads for target in head.targets]
    scenery = BoxSceneSettings(size=options.size)
    return DetectionTask(
        functools.partial(small_network, options.size, heads),
        **options.compose(functools.partial(compose_box_scenes, scenery=scenery, masks=masks)),
        classes=CLASSES,
        metric=metric,
        recipe=make_recipe(options),
        settings=BranchSettings(unit=options.unit),
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
