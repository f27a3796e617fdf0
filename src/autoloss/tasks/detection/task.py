"""Object detection and instance segmentation (Sections 4.2 and 4.3); the tasks coco-det, voc-det and coco-ins.

The defaults of the tasks on files are the paper's: those of the proxy in `ScheduleOptions` and `PROXY`, those of retraining in
`FULL`. All of them are options of the tasks, those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack, final

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.options import Count, PositiveShare, declare
from autoloss.space.boxes import AreaUnit
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.detection.average_precision import (
    COCO,
    COCO_AREAS,
    VOC07,
    Detections,
    GroundTruth,
    Matches,
    PrecisionSettings,
    Shape,
    average_defined,
    average_precisions,
    match_images,
)
from autoloss.tasks.detection.data import coco as coco_files
from autoloss.tasks.detection.data import voc as voc_files
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.detection.faster_rcnn import DetectorSettings, FasterRCNN, build_pyramid
from autoloss.tasks.detection.heads import BASELINES, HEADS, INSTANCE_HEADS
from autoloss.tasks.detection.heads.head import Head, collect_targets
from autoloss.tasks.detection.masks import encode_masks
from autoloss.tasks.detection.samples import Example, TrainingExamples, draw_samples
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.files import AnnotatedOptions, NetworkOptions, check_apart, count_held_out
from autoloss.tasks.metric import measure_resamples
from autoloss.tasks.trainer_task import FullSchedule, ImageTask, ImageTaskOptions
from autoloss.training.loop import Execution, seed_generators
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training

METRICS: Mapping[str, PrecisionSettings] = {"map": COCO, "ap50": PrecisionSettings(thresholds=(0.5,)), "voc07": VOC07}
"""COCO's AP@[.5:.95], COCO's AP at 0.5, and VOC 2007's AP50 at eleven recalls."""
MASK_METRICS: Mapping[str, PrecisionSettings] = {
    "map": PrecisionSettings(shape="masks"),
    "ap50": PrecisionSettings(thresholds=(0.5,), shape="masks"),
    "box_map": COCO,
    "box_ap50": METRICS["ap50"],
}
"""Metrics of instance segmentation: COCO's AP of masks, and that of the boxes of the same detections."""


@final
class DetectionTask(ImageTask):
    """Faster R-CNN on images with boxes, or with other heads besides, such as masks.

    Args:
        network: Function without arguments that builds the network, so that its weights follow from the seed.
        train: Training data; crowds and difficult objects are left out.
        valid: Validation data, on which losses are compared.
        test: Test data, used for final figures only.
        classes: C, without background.
        metric: One of `metrics`; the others are reported with it.
        unit: Unit of the areas i, u and e: square pixels, the paper's, or the area of each target box.
        heads: One for each branch; the network is built with those that declare layers.
        metrics: The metrics by name: those of boxes, or `MASK_METRICS` where the heads predict masks.
        flip: Probability that a training image is mirrored.
        final: Further metrics, of the test split alone.
        name: Shown in tables.
        options: Recipe, schedule `full`, device and loaders; see `ImageTaskOptions`.
    """

    least_images = 32

    def __init__(
        self,
        network: Callable[[], FasterRCNN],
        train: Sequence[Example],
        valid: Sequence[Example],
        *,
        classes: int,
        test: Sequence[Example] | None = None,
        metric: str = "map",
        unit: AreaUnit = "pixels",
        heads: Sequence[Head] = HEADS,
        metrics: Mapping[str, PrecisionSettings] = METRICS,
        flip: float = 0.0,
        final: Mapping[str, PrecisionSettings] = {},
        name: str = "detection",
        **options: Unpack[ImageTaskOptions],
    ) -> None:
        make_examples = functools.partial(TrainingExamples, flip=flip, further=collect_targets(heads))
        data = {"train": train, "valid": valid, "test": test}
        super().__init__(
            name, network, data, make_examples, metric=metric, metrics=metrics, kind="detection", **options
        )
        for split, images in self._data.items():
            if not len(images):
                raise RequestError(f"The {split} data holds no images; give it at least one.")
        self.classes = classes
        self._metrics, self._final, self._heads = metrics, final, heads
        self._branches = {head.name: head.branch(classes, unit) for head in heads}
        self.standard = {head.name: head.standard for head in heads}
        self.baselines = tuple(losses for losses in BASELINES if set(losses) <= set(self._branches))

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        with seed_generators(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().train()
            return draw_samples(network, self._data["train"], self._heads, self._branches, count, generator)

    @torch.no_grad()
    def detections(
        self, network: FasterRCNN, data: Sequence[Example], execution: Execution, indices: Sequence[int]
    ) -> Iterator[tuple[Detections, GroundTruth]]:
        """Yield the detections of a network in evaluation mode, and the ground truth, of each of some images."""
        for image, target in map(data.__getitem__, indices):
            (output,) = network([execution.move(image)])
            boxes, scores, classes = (output[name].cpu().numpy() for name in ("boxes", "scores", "labels"))
            height, width = image.shape[-2:]
            own = {name: part for head in self._heads for name, part in head.detect(output, (height, width)).items()}
            yield Detections(boxes, scores, classes, **own), _to_ground_truth(target)

    def _compute_loss(
        self, network: FasterRCNN, batch: Sequence[Example], criterion: Criterion, execution: Execution
    ) -> Tensor:
        images = [execution.move(image) for image, _ in batch]
        targets = [{name: part.to(execution.torch_device) for name, part in target.items()} for _, target in batch]
        with execution.autocast():
            return network.loss(images, targets, criterion, self._heads)

    def _evaluate(
        self,
        network: FasterRCNN,
        data: Sequence[Example],
        indices: Sequence[int],
        training: Training,
        execution: Execution,
    ) -> Scored | str:
        detections, truths = zip(*self.detections(network, data, execution, indices), strict=True)
        if not all(math.isfinite(float(image.boxes.sum() + image.scores.sum())) for image in detections):
            return "a predicted box is not finite"
        classes = range(1, self.classes + 1)
        metrics = {**self._metrics, **(self._final if training.split == "test" else {})}
        matches = {name: match_images(detections, truths, settings) for name, settings in metrics.items()}

        def measure(name: str, images: Sequence[Matches]) -> float:
            return average_defined(average_precisions(images, classes, metrics[name]))

        figures = {name: measure(name, images) for name, images in matches.items()}
        replicates, scored = None, matches[self.metric]
        if training.resampled:
            replicates = measure_resamples(
                len(scored), lambda chosen: measure(self.metric, [scored[image] for image in chosen])
            )
        return self._sort_figures(figures, replicates)


def _to_ground_truth(target: Mapping[str, Tensor]) -> GroundTruth:
    optional: dict[str, Any] = {name: target[name].numpy() for name in ("crowd", "area", "difficult") if name in target}
    if "masks" in target:
        optional["masks"] = encode_masks(target["masks"].numpy())
    return GroundTruth(target["boxes"].numpy(), target["labels"].numpy(), **optional)


LEVELS = {"P4-P6": ((3, 4), (128, 256, 512)), "P2-P6": ((1, 2, 3, 4), (32, 64, 128, 256, 512))}
"""Levels of the pyramid → stages of the backbone, and the sides of the anchors in pixels."""
PAPER_HELD_OUT = {"coco-det": (5000, 118287), "coco-ins": (5000, 118287), "voc-det": (1500, 16551)}
"""Task → (images held out for validation, of how many); the same share of a smaller data set. For VOC the paper states none."""
SHAPES: Mapping[str, Shape] = {"coco-det": "boxes", "coco-ins": "masks"}
"""Task on COCO → what COCO's final metrics are computed of."""


def make_final_metrics(shape: Shape) -> Mapping[str, PrecisionSettings]:
    """Return COCO's further metrics: AP75, and the AP of small, medium and large objects."""
    sizes = ("small", "medium", "large")
    of_sizes = {f"map_{size}": PrecisionSettings(area=COCO_AREAS[size], shape=shape) for size in sizes}
    return {"ap75": PrecisionSettings(thresholds=(0.75,), shape=shape), **of_sizes}


_log = logging.getLogger(__name__)


@declare()
class ScheduleOptions(NetworkOptions):
    """Network and recipe of a schedule; the defaults are those of the paper's proxy."""

    levels: Literal["P4-P6", "P2-P6"] = "P4-P6"
    """Levels of the feature pyramid: P4-P6, as in the proxy of the paper, or P2-P6."""
    channels: Count = 128
    """Channels of the pyramid and of the RPN's head; half of the usual."""
    head_width: Count = 512
    """Width of the R-CNN head; half of the usual."""
    short_side: Count = 800
    """Pixels of the short side to which images are resized, unless the long side then exceeds `long_side`."""
    long_side: Count = 1333
    """Maximum number of pixels of the long side."""

    def network(self, classes: int, heads: Sequence[Head] = HEADS) -> FasterRCNN:
        """Make the network; the mask head is as wide as the pyramid, so half as wide in the proxy."""
        stages, anchors = LEVELS[self.levels]
        shape = DetectorSettings(
            short_side=self.short_side, long_side=self.long_side, anchor_sizes=anchors, head_width=self.head_width
        )
        backbone = build_pyramid(self.backbone, self.channels, self.weights, stages)
        return FasterRCNN(backbone, classes, shape, heads)


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
    count = count_held_out(options.held_out, images, PAPER_HELD_OUT[name])
    rest, valid = images.hold_out(count, options.seed)
    for part in (valid, test):
        part.with_objects()
    train, classes = rest.with_objects().draw(options.share, options.seed), len(images.classes)
    task = DetectionTask(
        functools.partial(proxy.network, classes, heads),
        train=train,
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
        unit=options.unit,
        heads=heads,
        metrics=metrics,
        flip=0.5,
        final=make_final_metrics(SHAPES[name]) if name in SHAPES else {},
        name=name,
        device=options.find_device(),
        loaders=options.loaders,
    )
    parts = ((part, sum(len(one.labels) for one in part.annotations)) for part in (train, valid, test))
    read = "; ".join(f"{part.name}: {len(part)} images, {count} objects" for part, count in parts)
    task.describe_data(f"Read {read}.")
    return task


def _read(name: str, options: DetectionOptions) -> tuple[BoxedImages, BoxedImages]:
    """Return the training images and those of the final evaluation."""
    place = options.find_data(f"the data of {name}", (coco_files if name in SHAPES else voc_files).LAYOUT)
    if name in SHAPES:
        read = functools.partial(coco_files.load_coco, place, masks=SHAPES[name] == "masks")
        train = read("train2017")
        return train, read("val2017", like=train)
    train = voc_files.concatenate([voc_files.load_voc(place, year, "trainval") for year in (2007, 2012)])
    test = voc_files.load_voc(place, 2007, "test")
    check_apart(train.files, test.files, (train.name, test.name))
    return train, test


def _make_factory(name: str, heads: Sequence[Head], metrics: Mapping[str, PrecisionSettings]) -> TaskFactory:
    return TaskFactory(
        name=name,
        options=DetectionOptions,
        schedules={"proxy": PROXY, "full": FULL},
        build=functools.partial(build_task, name, heads, metrics),
        find_images=functools.partial(_read, name),
    )


coco_det = _make_factory("coco-det", HEADS, METRICS)
voc_det = _make_factory("voc-det", HEADS, METRICS)
coco_ins = _make_factory("coco-ins", INSTANCE_HEADS, MASK_METRICS)
