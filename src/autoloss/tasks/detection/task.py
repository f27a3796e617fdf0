"""Object detection and instance segmentation as a task (Sections 4.2 and 4.3): an R-CNN with one branch for each of its heads."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Unpack, final

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.detection.data.examples import Example, TrainingExamples, move_target
from autoloss.tasks.detection.heads import BASELINES, HEADS
from autoloss.tasks.detection.heads.head import BranchSettings, Head, collect_targets
from autoloss.tasks.detection.masks import encode_masks
from autoloss.tasks.detection.metrics.average_precision import (
    COCO,
    VOC07,
    Detections,
    GroundTruth,
    Matches,
    PrecisionSettings,
    average_defined,
    average_precisions,
    match_images,
)
from autoloss.tasks.detection.networks.faster_rcnn import FasterRCNN
from autoloss.tasks.detection.samples import draw_samples
from autoloss.tasks.image_task import ImageTask, ImageTaskOptions
from autoloss.tasks.replicates import measure_resamples
from autoloss.training.execution import Execution
from autoloss.training.loop import seed_generators
from autoloss.training.trainer import Figures
from autoloss.training.training import Training

METRICS: Mapping[str, PrecisionSettings] = {"map": COCO, "ap50": PrecisionSettings(thresholds=(0.5,)), "voc07": VOC07}
"""COCO's AP@[.5:.95], COCO's AP at 0.5, and VOC 2007's AP50 at eleven recalls."""
MASK_METRICS: Mapping[str, PrecisionSettings] = {
    "map": PrecisionSettings(shape="masks"),
    "ap50": PrecisionSettings(thresholds=(0.5,), shape="masks"),
    "box_map": COCO,
    "box_ap50": METRICS["ap50"],
}
"""Metrics of instance segmentation: COCO's AP of masks, and that of the boxes of the same detections."""

FinalMetrics = Callable[[Sequence[Detections], Sequence[GroundTruth], Sequence[int]], Mapping[str, float]]
"""(detections of each image, ground truth of each image, classes) → metrics by name."""


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
        settings: Units and weights of the branches.
        heads: One for each branch; the network is built with those that declare layers.
        metrics: The metrics by name: those of boxes, or `MASK_METRICS` where the heads predict masks.
        flip: Probability that a training image is mirrored.
        final: Metrics of the test split that replace those of the same names.
        name: Shown in tables.
        options: Recipe, schedule `full`, device and loaders; see `ImageTaskOptions`.

    Raises:
        RequestError: An unknown metric, or a split without images.
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
        settings: BranchSettings = BranchSettings(),  # noqa: B008 - frozen
        heads: Sequence[Head] = HEADS,
        metrics: Mapping[str, PrecisionSettings] = METRICS,
        flip: float = 0.0,
        final: FinalMetrics | None = None,
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
        self.classes, self.settings, self.flip = classes, settings, flip
        self._metrics, self._final, self._heads = metrics, final, heads
        self._branches = {head.name: head.branch(classes, settings) for head in heads}
        self.standard = {head.name: head.standard for head in heads}
        self.baselines = tuple(losses for losses in BASELINES if set(losses) <= set(self._branches))

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        with seed_generators(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().train()
            return draw_samples(
                network, self._data["train"], self._heads, self._branches, self.settings, count, generator
            )

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
        targets = [move_target(target, execution.torch_device) for _, target in batch]
        with execution.autocast():
            return network.loss(images, targets, criterion, self._heads)

    def _evaluate(
        self,
        network: FasterRCNN,
        data: Sequence[Example],
        indices: Sequence[int],
        training: Training,
        execution: Execution,
    ) -> Figures | str:
        detections, truths = zip(*self.detections(network, data, execution, indices), strict=True)
        if not all(math.isfinite(float(image.boxes.sum() + image.scores.sum())) for image in detections):
            return "a predicted box is not finite"
        classes = range(1, self.classes + 1)
        matches = {name: match_images(detections, truths, settings) for name, settings in self._metrics.items()}

        def measure(name: str, images: Sequence[Matches]) -> float:
            return average_defined(average_precisions(images, classes, self._metrics[name]))

        figures = {name: measure(name, images) for name, images in matches.items()}
        final = self._final(detections, truths, classes) if training.split == "test" and self._final else {}
        replicates, scored = None, matches[self.metric]
        if training.resampled:
            replicates = measure_resamples(
                len(scored), lambda chosen: measure(self.metric, [scored[image] for image in chosen])
            )
        return self._sort_figures({**figures, **final}, replicates)


def _to_ground_truth(target: Mapping[str, Tensor]) -> GroundTruth:
    optional: dict[str, Any] = {name: target[name].numpy() for name in ("crowd", "area", "difficult") if name in target}
    if "masks" in target:
        optional["masks"] = encode_masks(target["masks"].numpy())
    return GroundTruth(target["boxes"].numpy(), target["labels"].numpy(), **optional)
