"""The tasks digits-det and digits-ins: scenes of handwritten digits, which one core trains in a minute (Sections 4.2, 4.3)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import Signature
from typing import Any, Literal, final

from torch import nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads

from autoloss.errors import RequestError
from autoloss.space.boxes import AreaUnit
from autoloss.tasks import stages
from autoloss.tasks.detection.data.digits import CLASSES, BoxSceneSettings, compose_box_scenes
from autoloss.tasks.detection.heads import HEADS
from autoloss.tasks.detection.heads.head import BranchSettings, Head, RegionLayers
from autoloss.tasks.detection.heads.mask import MASKS, MaskHead, make_predictor
from autoloss.tasks.detection.metrics.average_precision import PrecisionSettings
from autoloss.tasks.detection.networks.faster_rcnn import DetectorSettings, FasterRCNN
from autoloss.tasks.detection.networks.pyramids import small_levels
from autoloss.tasks.detection.task import MASK_METRICS, METRICS, DetectionTask
from autoloss.training.recipe import Recipe

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SceneOptions:
    """Options of the tasks on scenes of digits.

    Args:
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
    """

    unit: AreaUnit = "pixels"
    size: int = 96
    train: int = 1024
    valid: int = 128
    test: int = 256
    seed: int = 0
    epochs: int = 3
    batch_size: int = 8
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    warmup_steps: int = 20
    clip_norm: float = 5.0


@final
@dataclass(frozen=True, slots=True)
class SceneFactory:
    """Composes the scenes and builds the task; its signature lists the options.

    Args:
        task: Name in the catalogue.
        heads: Those of the network.
        metrics: Metrics by name.
    """

    task: str
    heads: Sequence[Head] = HEADS
    metrics: Mapping[str, PrecisionSettings] = dataclasses.field(default_factory=lambda: METRICS)

    @property
    def __signature__(self) -> Signature:
        """All options, for `help` and for the catalogue."""
        metric = stages.make_parameter("metric", "str", "map")
        return Signature([metric, *stages.list_fields(SceneOptions())], return_annotation=DetectionTask)

    def __call__(self, metric: str = "map", **options: Any) -> DetectionTask:
        """Compose the scenes and build the task.

        Raises:
            RequestError: An unknown metric, or a value outside its range.
        """
        chosen = SceneOptions(**options)
        scenery = BoxSceneSettings(size=chosen.size)
        masks = MASKS in [target for head in self.heads for target in head.targets]
        counts = {"train": chosen.train, "valid": chosen.valid, "test": chosen.test}
        for split, count in counts.items():
            if count < 1:
                raise RequestError(f"{self.task} has {count} scenes in the split {split}; it needs at least 1.")
        data = {
            split: compose_box_scenes(split, count, chosen.seed, scenery, masks=masks)
            for split, count in counts.items()
        }
        return DetectionTask(
            functools.partial(small_network, chosen.size, self.heads),
            train=data["train"],
            valid=data["valid"],
            test=data["test"],
            classes=CLASSES,
            metric=metric,
            recipe=Recipe(**stages.select_fields(Recipe, dataclasses.asdict(chosen))),
            settings=BranchSettings(unit=chosen.unit),
            heads=self.heads,
            metrics=self.metrics,
            name=self.task,
        )


digits_det = SceneFactory("digits-det")
digits_ins = SceneFactory("digits-ins", (*HEADS, SMALL_MASK), MASK_METRICS)


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
