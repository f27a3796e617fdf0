"""Object detection and instance segmentation as a task (Sections 4.2 and 4.3): an R-CNN with one branch for each of its heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor

from autoloss.errors import RequestError, unknown
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
    PrecisionSettings,
    mean_average_precision,
)
from autoloss.tasks.detection.networks.faster_rcnn import FasterRCNN
from autoloss.tasks.detection.samples import draw_samples
from autoloss.tasks.loading import Loading, load_batches
from autoloss.tasks.trainer_task import FullSchedule, TrainerTask
from autoloss.training.execution import Execution
from autoloss.training.loop import seed_generators
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import Figures, Trainer, select_examples
from autoloss.training.training import Training

LEAST_IMAGES = 32
"""Images that also a short training is evaluated on."""

METRICS: Mapping[str, PrecisionSettings] = {"map": COCO, "ap50": PrecisionSettings(thresholds=(0.5,)), "voc07": VOC07}
"""COCO's AP@[.5:.95], COCO's AP at 0.5, and VOC 2007's AP50 at eleven recalls."""
MASK_METRICS: Mapping[str, PrecisionSettings] = {
    "map": PrecisionSettings(shape="masks"),
    "ap50": PrecisionSettings(thresholds=(0.5,), shape="masks"),
    "box_map": COCO,
    "box_ap50": METRICS["ap50"],
}
"""Of instance segmentation: COCO's AP of masks, and that of the boxes of the same detections."""

FinalMetrics = Callable[[Sequence[Detections], Sequence[GroundTruth], Sequence[int]], Mapping[str, float]]
"""(detections of each image, ground truth of each image, classes) → metrics by name."""


@final
class DetectionTask(TrainerTask):
    """Faster R-CNN on images with boxes, or with other heads besides, such as masks.

    Args:
        network: Function without arguments that builds the network, so that its weights follow from the seed.
        train: Training data; crowds and difficult objects are left out.
        valid: Validation data, on which losses are compared.
        test: Test data, used for final figures only.
        classes: C, without background.
        metric: One of `metrics`; the others are reported with it.
        recipe: Recipe of the proxy training.
        full: Network, recipe and data of the schedule `full` where they differ from the proxy's.
        settings: Units and weights of the branches.
        heads: One for each branch; the network is built with those that declare layers.
        metrics: The metrics by name: those of boxes, or `MASK_METRICS` where the heads predict masks.
        flip: Probability that a training image is mirrored.
        final: Metrics of the test split that replace those of the same names.
        name: Shown in tables.
        device: Device on which networks are trained.
        loaders: Worker processes that read images ahead; 0 reads each batch when it is needed.

    Raises:
        RequestError: An unknown metric, or a split without images.
    """

    def __init__(
        self,
        network: Callable[[], FasterRCNN],
        train: Sequence[Example],
        valid: Sequence[Example],
        *,
        classes: int,
        test: Sequence[Example] | None = None,
        metric: str = "map",
        recipe: Recipe = Recipe(),  # noqa: B008 - frozen
        full: FullSchedule = FullSchedule(),  # noqa: B008 - frozen
        settings: BranchSettings = BranchSettings(),  # noqa: B008 - frozen
        heads: Sequence[Head] = HEADS,
        metrics: Mapping[str, PrecisionSettings] = METRICS,
        flip: float = 0.0,
        final: FinalMetrics | None = None,
        name: str = "detection",
        device: str = "cpu",
        loaders: int = 0,
    ) -> None:
        if metric not in metrics:
            raise unknown("detection metric", metric, metrics)
        self.name = name
        self.classes = classes
        self.metric = metric
        self.recipes = {"proxy": recipe, "full": full.recipe or recipe}
        self.settings = settings
        self.flip = flip
        self.execution = self._execution = Execution(device=device)
        self.also = tuple(other for other in metrics if other != metric)
        self._metrics = metrics
        self._final = final
        self._loaders = loaders
        self._networks = {"proxy": network, "full": full.network or network}
        self._full = full
        self._training_data = {"proxy": train, "full": full.data.get("train", train)}
        splits = {"train": train, "valid": valid, "test": test}
        self._data = {split: data for split, data in splits.items() if data is not None}
        for split, data in self._data.items():
            if not len(data):
                raise RequestError(f"The {split} data holds no images; give it at least one.")
        self.splits = tuple(split for split in self._data if split != "train")
        self._heads = heads
        self._branches = {head.name: head.branch(classes, settings) for head in heads}
        self.standard = {head.name: head.standard for head in heads}
        self.baselines = tuple(losses for losses in BASELINES if set(losses) <= set(self._branches))

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    def steps(self, training: Training) -> int:
        examples = len(self._training_data[training.schedule])
        return self.recipes[training.schedule].steps(examples, training.fidelity)

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        with seed_generators(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().train()
            return draw_samples(
                network, self._data["train"], self._heads, self._branches, self.settings, count, generator
            )

    def detections(
        self, network: FasterRCNN, data: Sequence[Example], execution: Execution, examples: Iterable[int] | None = None
    ) -> Iterator[tuple[Detections, GroundTruth]]:
        """Yield the detections of a network in evaluation mode, and the ground truth, of each image or of some by index."""
        for index in range(len(data)) if examples is None else examples:
            image, target = data[index]
            with torch.no_grad():
                (output,) = network([execution.move(image)])
            boxes, scores, classes = (output[name].cpu().numpy() for name in ("boxes", "scores", "labels"))
            height, width = image.shape[-2:]
            own = {name: part for head in self._heads for name, part in head.detect(output, (height, width)).items()}
            yield Detections(boxes, scores, classes, **own), _to_ground_truth(target)

    def _trainer(
        self, criterion: Criterion, training: Training, execution: Execution | None = None
    ) -> Trainer[FasterRCNN, Sequence[Example]]:
        schedule, execution = training.schedule, execution or self._execution
        data = self._training_data[schedule]
        examples = TrainingExamples(data, self.flip, collect_targets(self._heads))

        def make_loss(network: FasterRCNN) -> Callable[[Sequence[Example]], Tensor]:
            return lambda batch: self._compute_loss(network, batch, criterion, execution)

        def batches(order: Sequence[Tensor], first: int) -> Iterable[Sequence[Example]]:
            return load_batches(examples, order, training.seed, first, Loading(loaders=self._loaders))

        return Trainer(
            build=self._networks[schedule],
            recipe=self.recipes[schedule].scale_learning_rate(training.learning_rate),
            execution=execution,
            examples=len(data),
            batches=batches,
            make_loss=make_loss,
            evaluate=lambda network, fidelity: self._evaluate(network, training.split, execution, fidelity),
        )

    def _compute_loss(
        self, network: FasterRCNN, batch: Sequence[Example], criterion: Criterion, execution: Execution
    ) -> Tensor:
        images = [execution.move(image) for image, _ in batch]
        targets = [move_target(target, execution.torch_device) for _, target in batch]
        with execution.autocast():
            return network.loss(images, targets, criterion, self._heads)

    def _evaluate(self, network: FasterRCNN, split: str, execution: Execution, fidelity: float) -> Figures | str:
        data = self._data[split]
        examples = select_examples(len(data), fidelity, LEAST_IMAGES).tolist()
        detections, truths = zip(*self.detections(network, data, execution, examples), strict=True)
        if not all(math.isfinite(float(image.boxes.sum() + image.scores.sum())) for image in detections):
            return "a predicted box is not finite"
        classes = range(1, self.classes + 1)
        figures = {
            name: mean_average_precision(detections, truths, classes, settings)
            for name, settings in self._metrics.items()
        }
        if split == "test" and self._final is not None:
            figures |= self._final(detections, truths, classes)
        return figures.pop(self.metric), figures


def _to_ground_truth(target: Mapping[str, Tensor]) -> GroundTruth:
    optional: dict[str, Any] = {name: target[name].numpy() for name in ("crowd", "area", "difficult") if name in target}
    if "masks" in target:
        optional["masks"] = encode_masks(target["masks"].numpy())
    return GroundTruth(target["boxes"].numpy(), target["labels"].numpy(), **optional)
