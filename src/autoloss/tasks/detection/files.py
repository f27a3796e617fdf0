"""The tasks coco-det, voc-det and coco-ins: detection and instance segmentation on the original files (Sections 4.2, 4.3).

The defaults are the paper's: those of the proxy in `ScheduleOptions` and `PROXY`, those of retraining in `FULL`. All of them are
options of the tasks, those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from typing import Literal

from autoloss.options import PositiveShare, declare
from autoloss.space.boxes import AreaUnit
from autoloss.tasks.detection.data import coco as coco_files
from autoloss.tasks.detection.data import voc as voc_files
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.detection.heads import HEADS, INSTANCE_HEADS
from autoloss.tasks.detection.heads.head import BranchSettings, Head
from autoloss.tasks.detection.metrics.average_precision import Detections, GroundTruth, PrecisionSettings, Shape
from autoloss.tasks.detection.networks.faster_rcnn import DetectorSettings, FasterRCNN
from autoloss.tasks.detection.networks.pyramids import all_levels, last_levels
from autoloss.tasks.detection.task import MASK_METRICS, METRICS, DetectionTask
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.files.inspection import Inspection, inspect_boxes
from autoloss.tasks.files.options import AnnotatedOptions, count_held_out
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.recipe import Recipe

LEVELS = {"P4-P6": (last_levels, (128, 256, 512)), "P2-P6": (all_levels, (32, 64, 128, 256, 512))}
"""Levels of the pyramid → the function that builds the backbone, and the sides of the anchors in pixels."""
PAPER_HELD_OUT = {"coco-det": (5000, 118287), "coco-ins": (5000, 118287), "voc-det": (1500, 16551)}
"""Task → (images held out for validation, of how many); the same share of a smaller data set. For VOC the paper states none."""
SHAPES: Mapping[str, Shape] = {"coco-det": "boxes", "coco-ins": "masks"}
"""Task on COCO → what COCO's final metrics are computed of."""

_log = logging.getLogger(__name__)


@declare()
class ScheduleOptions:
    """Network and recipe of a schedule; the defaults are those of the paper's proxy."""

    backbone: str = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    levels: Literal["P4-P6", "P2-P6"] = "P4-P6"
    """Levels of the feature pyramid: P4-P6, as in the proxy of the paper, or P2-P6."""
    channels: int = 128
    """Channels of the pyramid and of the RPN's head; half of the usual."""
    head_width: int = 512
    """Width of the R-CNN head; half of the usual."""
    weights: str = "none"
    """Weights of the backbone: none, imagenet, or the path of a state dict."""
    short_side: int = 800
    """Pixels of the short side to which images are resized, unless the long side then exceeds `long_side`."""
    long_side: int = 1333
    """Maximum number of pixels of the long side."""
    recipe: Recipe

    def network(self, classes: int, heads: Sequence[Head] = HEADS) -> FasterRCNN:
        """Make the network; the mask head is as wide as the pyramid, so half as wide in the proxy."""
        backbone, anchors = LEVELS[self.levels]
        shape = DetectorSettings(
            short_side=self.short_side, long_side=self.long_side, anchor_sizes=anchors, head_width=self.head_width
        )
        return FasterRCNN(backbone(self.backbone, self.channels, self.weights), classes, shape, heads)


PROXY = ScheduleOptions(
    recipe=Recipe(epochs=1, batch_size=32, learning_rate=0.04, weight_decay=1e-4, schedule="constant", warmup_steps=250)
)
"""The proxy of detection (Appendix A), which states no decay of the learning rate within its one epoch."""
FULL = ScheduleOptions(
    levels="P2-P6",
    channels=256,
    head_width=1024,
    recipe=Recipe(
        epochs=12,
        batch_size=16,
        learning_rate=0.02,
        weight_decay=1e-4,
        schedule="steps",
        minimum_learning_rate=0.0,
        warmup_steps=500,
    ),
)


@declare()
class DetectionOptions(AnnotatedOptions):
    """Options that the proxy and retraining share."""

    share: PositiveShare = 0.25
    """Share of the other training images that the proxy trains on."""
    unit: AreaUnit = "pixels"
    """Unit of areas: square pixels, or the area of the target box."""


def build_task(
    name: str,
    heads: Sequence[Head],
    metrics: Mapping[str, PrecisionSettings],
    metric: str,
    options: DetectionOptions,
    proxy: ScheduleOptions,
    full: ScheduleOptions,
) -> DetectionTask:
    """Build the task of one data set."""
    images, test = _read(name, options)
    for note in (*images.notes, *test.notes):
        _log.warning(note)
    count = count_held_out(options.held_out, len(images), PAPER_HELD_OUT[name])
    rest, valid = images.hold_out(count, options.seed)
    classes = len(images.classes)
    return DetectionTask(
        functools.partial(proxy.network, classes, heads),
        train=rest.with_objects().draw(options.share, options.seed),
        valid=valid,
        test=test,
        classes=classes,
        metric=metric,
        recipe=proxy.recipe,
        full=FullSchedule(
            network=functools.partial(full.network, classes, heads),
            recipe=full.recipe,
            # It trains on what the search holds out.
            data={"train": images.with_objects(), "valid": None},
        ),
        settings=BranchSettings(unit=options.unit),
        heads=heads,
        metrics=metrics,
        flip=0.5,
        final=functools.partial(_evaluate_coco, shape=SHAPES[name]) if name in SHAPES else None,
        name=name,
        device=options.find_device(),
        loaders=options.loaders,
    )


def _make_factory(name: str, heads: Sequence[Head], metrics: Mapping[str, PrecisionSettings]) -> TaskFactory:
    def inspect_splits(options: DetectionOptions) -> list[Inspection]:
        return [inspect_boxes(images) for images in _read(name, options)]

    return TaskFactory(
        name=name,
        options=DetectionOptions,
        schedules={"proxy": PROXY, "full": FULL},
        build=functools.partial(build_task, name, heads, metrics),
        inspect_data=inspect_splits,
    )


coco_det = _make_factory("coco-det", HEADS, METRICS)
voc_det = _make_factory("voc-det", HEADS, METRICS)
coco_ins = _make_factory("coco-ins", INSTANCE_HEADS, MASK_METRICS)


def _read(name: str, options: DetectionOptions) -> tuple[BoxedImages, BoxedImages]:
    """Return the training images and those of the final evaluation."""
    place = options.find_data(f"the data of {name}", (coco_files if name in SHAPES else voc_files).LAYOUT)
    if name in SHAPES:
        read = functools.partial(coco_files.load_coco, place, masks=SHAPES[name] == "masks")
        return read("train2017"), read("val2017")
    years = [voc_files.load_voc(place, year, "trainval") for year in (2007, 2012)]
    return voc_files.concatenate(years), voc_files.load_voc(place, 2007, "test")


def _evaluate_coco(
    detections: Sequence[Detections], truths: Sequence[GroundTruth], classes: Sequence[int], shape: Shape
) -> Mapping[str, float]:
    # Imported here: a search does not need it.
    from autoloss.tasks.detection.metrics.coco import evaluate_coco

    return evaluate_coco(detections, truths, classes, shape)
