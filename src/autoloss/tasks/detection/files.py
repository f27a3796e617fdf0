"""The tasks coco-det, voc-det and coco-ins: detection and instance segmentation on the original files (Sections 4.2, 4.3).

The defaults are the paper's: those of the proxy in `Stage`, those of retraining in `FULL`. All of them are options of the tasks,
those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Signature, signature
from pathlib import Path
from random import Random
from typing import Any, final

from autoloss.errors import RequestError, unknown
from autoloss.space.boxes import AREA_UNITS
from autoloss.tasks import stages
from autoloss.tasks.detection.data import coco as coco_files
from autoloss.tasks.detection.data import voc as voc_files
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.detection.heads import HEADS, INSTANCE_HEADS
from autoloss.tasks.detection.heads.head import BranchSettings, Head
from autoloss.tasks.detection.metrics.average_precision import Detections, GroundTruth, PrecisionSettings, Shape
from autoloss.tasks.detection.networks.faster_rcnn import DetectorSettings, FasterRCNN
from autoloss.tasks.detection.networks.pyramids import all_levels, last_levels
from autoloss.tasks.detection.task import MASK_METRICS, METRICS, DetectionTask, FullSchedule
from autoloss.tasks.files.faults import report_faults
from autoloss.tasks.files.inspection import inspect_boxes
from autoloss.training.recipe import Recipe

LEVELS = {"P4-P6": (last_levels, (128, 256, 512)), "P2-P6": (all_levels, (32, 64, 128, 256, 512))}
"""Levels of the pyramid → the function that builds the backbone, and the sides of the anchors in pixels."""
PAPER_HELD_OUT = {"coco-det": (5000, 118287), "coco-ins": (5000, 118287), "voc-det": (1500, 16551)}
"""Task → (images held out for validation, of how many); the same share of a smaller data set. For VOC the paper states none."""
SHAPES: Mapping[str, Shape] = {"coco-det": "boxes", "coco-ins": "masks"}
"""Task on COCO → what COCO's final metrics are computed of."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Network and recipe of a schedule; the defaults, with those of `RECIPE`, are the paper's proxy.

    Raises:
        RequestError: Unknown levels.
    """

    backbone: str = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    levels: str = "P4-P6"
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
    recipe: Recipe = field(default_factory=lambda: RECIPE)

    def __post_init__(self) -> None:
        if self.levels not in LEVELS:
            raise unknown("choice of levels", self.levels, LEVELS)

    def network(self, classes: int, heads: Sequence[Head] = HEADS) -> FasterRCNN:
        """Make the network; the mask head is as wide as the pyramid, so half as wide in the proxy."""
        backbone, anchors = LEVELS[self.levels]
        shape = DetectorSettings(
            short_side=self.short_side, long_side=self.long_side, anchor_sizes=anchors, head_width=self.head_width
        )
        return FasterRCNN(backbone(self.backbone, self.channels, self.weights), classes, shape, heads)


RECIPE = Recipe(epochs=1, batch_size=32, learning_rate=0.04, weight_decay=1e-4, schedule="constant", warmup_steps=250)
"""The proxy of detection (Appendix A), which states no decay of the learning rate within its one epoch."""
PROXY = Stage()
FULL = Stage(
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
STAGES = {"proxy": PROXY, "full": FULL}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options that the proxy and retraining share.

    Args:
        data: Folder of the data set.
        held_out: Number of training images held out for validation.
        share: Share of the other training images that the proxy trains on.
        seed: Seed of both draws.
        unit: Unit of areas: square pixels, or the area of the target box.
        device: Device on which networks are trained; auto is a GPU if there is one.
        loaders: Worker processes that read images ahead; without them a GPU waits for its data.
    """

    data: str | None = None
    held_out: int | None = None
    share: float = 0.25
    seed: int = 0
    unit: str = "pixels"
    device: str = "auto"
    loaders: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise RequestError(f"The option share is {self.share}; it needs to be above 0 and at most 1.")
        if self.loaders < 0:
            raise RequestError(f"The option loaders is {self.loaders}; it needs to be at least 0.")
        if self.unit not in AREA_UNITS:
            raise unknown("unit of areas", self.unit, AREA_UNITS)


@final
@dataclass(frozen=True, slots=True)
class DetectionFactory:
    """Builds the task of one data set; its signature lists the options.

    Args:
        task: Name in the catalogue.
        metric: Default metric.
        heads: Those of the network.
        metrics: Metrics by name.
    """

    task: str
    metric: str
    heads: Sequence[Head] = HEADS
    metrics: Mapping[str, PrecisionSettings] = field(default_factory=lambda: METRICS)

    @property
    def __signature__(self) -> Signature:
        """All options, for `help` and for the catalogue."""

        listed = [stages.make_parameter("metric", "str", self.metric), *stages.list_parameters(CommonOptions(), STAGES)]
        return Signature(listed, return_annotation=DetectionTask)

    def __call__(self, metric: str | None = None, **options: Any) -> DetectionTask:
        """Build the task.

        Raises:
            RequestError: An unknown name, a value out of range, or data that is missing or faulty.
        """
        common = self._common(options)
        proxy, full = stages.apply_options(STAGES, options)
        images, test = self._read(common)
        for note in (*images.notes, *test.notes):
            _log.warning(note)
        rest, valid = images.hold_out(self._count_held_out(common, len(images)), common.seed)
        train = _draw_share(rest.with_objects(), common)
        classes = len(images.classes)
        return DetectionTask(
            functools.partial(proxy.network, classes, self.heads),
            train=train,
            valid=valid,
            test=test,
            classes=classes,
            metric=metric or self.metric,
            recipe=proxy.recipe,
            full=FullSchedule(
                network=functools.partial(full.network, classes, self.heads),
                recipe=full.recipe,
                train=images.with_objects(),
            ),
            settings=BranchSettings(unit="target" if common.unit == "target" else "pixels"),
            heads=self.heads,
            metrics=self.metrics,
            flip=0.5,
            final=functools.partial(_evaluate_coco, shape=SHAPES[self.task]) if self.task in SHAPES else None,
            name=self.task,
            device=stages.resolve_device(common.device),
            loaders=common.loaders,
        )

    def inspect(self, **options: Any) -> None:
        """Inspect the files of the data.

        Raises:
            RequestError: Files are missing, or annotations or images are faulty; up to twenty are listed.
        """
        inspections = [inspect_boxes(images) for images in self._read(self._common(options))]
        if faults := [fault for inspection in inspections for fault in inspection.faults]:
            raise report_faults(f"The data of {self.task}", faults, "\n".join(map(str, inspections)))

    def _common(self, options: Mapping[str, Any]) -> CommonOptions:
        stages.check_options(self.task, options, signature(self))
        return CommonOptions(**stages.select_fields(CommonOptions, options))

    def _read(self, common: CommonOptions) -> tuple[BoxedImages, BoxedImages]:
        """Return the training images and those of the final evaluation."""
        layout = coco_files.LAYOUT if self.task in SHAPES else voc_files.LAYOUT
        if common.data is None:
            raise RequestError(
                f"The option data is missing: the folder of the data of {self.task}, which holds\n{layout}",
                argument="data",
            )
        place = Path(common.data)
        if self.task in SHAPES:
            read = functools.partial(coco_files.load_coco, place, masks=SHAPES[self.task] == "masks")
            return read("train2017"), read("val2017")
        years = [voc_files.load_voc(place, year, "trainval") for year in (2007, 2012)]
        return voc_files.concatenate(years), voc_files.load_voc(place, 2007, "test")

    def _count_held_out(self, common: CommonOptions, count: int) -> int:
        held, of = PAPER_HELD_OUT[self.task]
        return common.held_out if common.held_out is not None else max(1, round(held * min(1.0, count / of)))


coco_det = DetectionFactory("coco-det", "map")
voc_det = DetectionFactory("voc-det", "voc07")
coco_ins = DetectionFactory("coco-ins", "map", INSTANCE_HEADS, MASK_METRICS)


def _draw_share(images: BoxedImages, common: CommonOptions) -> BoxedImages:
    """Draw the share of the images that the proxy trains on."""
    count = max(1, round(common.share * len(images)))
    return images.select(sorted(Random(common.seed).sample(range(len(images)), count)), images.name)


def _evaluate_coco(
    detections: Sequence[Detections], truths: Sequence[GroundTruth], classes: Sequence[int], shape: Shape
) -> Mapping[str, float]:
    # Imported here: a search does not need it.
    from autoloss.tasks.detection.metrics.coco import evaluate_coco

    return evaluate_coco(detections, truths, classes, shape)
