"""Object detection as a task (Section 4.2): Faster R-CNN with four branches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from autoloss.errors import RequestError, unknown
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.data import load_batches
from autoloss.tasks.detection.data.examples import Example, TrainingExamples, move_target
from autoloss.tasks.detection.heads import BASELINES, HEADS
from autoloss.tasks.detection.heads.head import BranchSettings, Head
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
from autoloss.tasks.task import Diverged, Observe, Scored, Task, Training, check_training
from autoloss.tasks.training.course import Figures, Trainer
from autoloss.tasks.training.execution import Execution
from autoloss.tasks.training.loop import seed_generators
from autoloss.tasks.training.recipe import Recipe

METRICS: Mapping[str, PrecisionSettings] = {"map": COCO, "ap50": PrecisionSettings(thresholds=(0.5,)), "voc07": VOC07}
"""COCO's AP@[.5:.95], the same at 0.5 alone, and VOC 2007's AP50 at eleven points."""

FinalMetrics = Callable[[Sequence[Detections], Sequence[GroundTruth], Sequence[int]], Mapping[str, float]]
"""(what was found in each image, what is there, classes) → figures by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSchedule:
    """What the schedule `full` trains, and how.

    Args:
        train: Where it differs from the proxy's; an untouched search may give back what it held out.
    """

    network: Callable[[], FasterRCNN]
    recipe: Recipe
    train: Sequence[Example] | None = None


@final
class DetectionTask(Task):
    """Faster R-CNN on images with boxes.

    Args:
        network: Builds the network; every seed starts from weights of its own.
        train: Examples; crowds and difficult objects are not trained on.
        valid: What losses are compared on.
        test: Touched only when it is asked for.
        classes: C, without background.
        metric: One of `METRICS`; the others are reported beside it.
        recipe: How the proxy is trained.
        full: What the schedule `full` trains and how; as the proxy when left out.
        settings: Units and weights of the branches.
        heads: One for each branch.
        flip: Probability that a training image is mirrored.
        final: Figures of the test split, instead of those of the same names.
        name: Shown in tables.
        device: Where networks are trained.
        loaders: Processes that read images ahead; 0 reads each batch when it is needed.

    Raises:
        RequestError: Something does not fit together.
    """

    tunes_learning_rate = True

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
        full: FullSchedule | None = None,
        settings: BranchSettings = BranchSettings(),  # noqa: B008 - frozen
        heads: Sequence[Head] = HEADS,
        flip: float = 0.0,
        final: FinalMetrics | None = None,
        name: str = "detection",
        device: str = "cpu",
        loaders: int = 0,
    ) -> None:
        if metric not in METRICS:
            raise unknown("detection metric", metric, METRICS)
        self.name = name
        self.classes = classes
        self.metric = metric
        self.recipes = {"proxy": recipe, "full": full.recipe if full else recipe}
        self.settings = settings
        self.flip = flip
        self.execution = self._execution = Execution(device=device)
        self.also = tuple(name for name in METRICS if name != metric)
        self._final = final
        self._loaders = loaders
        self._networks = {"proxy": network, "full": full.network if full else network}
        self._full_train = full.train if full else None
        given = {"train": train, "valid": valid, "test": test}
        self._data = {split: data for split, data in given.items() if data is not None}
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
        return self.recipes[training.schedule].steps(len(self._trained(training.schedule)))

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        return dataclasses.asdict(self.recipes[schedule])

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        with seed_generators(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().train()
            return draw_samples(
                network, self._data["train"], self._heads, self._branches, self.settings, count, generator
            )

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        check_training(self, criterion, training)
        return self._course(criterion, training, execution).train(training, observe)

    def untrained(self, seed: int) -> float | None:
        return self._course({}, Training(seed=seed)).untrained(seed)

    def detections(
        self, network: FasterRCNN, data: Sequence[Example], how: Execution
    ) -> Iterator[tuple[Detections, GroundTruth]]:
        """Yield what a network in evaluation mode detects in each image, beside the ground truth."""
        for index in range(len(data)):
            image, target = data[index]
            with torch.no_grad():
                (found,) = network([how.moved(image)])
            boxes, scores, classes = (found[name].cpu().numpy() for name in ("boxes", "scores", "labels"))
            yield Detections(boxes, scores, classes), _to_ground_truth(target)

    def _course(
        self, criterion: Criterion, training: Training, execution: Execution | None = None
    ) -> Trainer[FasterRCNN, Sequence[Example]]:
        schedule, how = training.schedule, execution or self._execution
        data = self._trained(schedule)
        trained = TrainingExamples(data, self.flip)

        def loss_of(network: FasterRCNN) -> Callable[[Sequence[Example]], Tensor]:
            return lambda batch: self._loss(network, batch, criterion, how)

        def batches(order: Sequence[Tensor], first: int) -> Iterable[Sequence[Example]]:
            return load_batches(trained, order, training.seed, first, self._loaders)

        return Trainer(
            build=self._networks[schedule],
            recipe=self.recipes[schedule].at_learning_rate(training.learning_rate),
            execution=how,
            examples=len(data),
            batches=batches,
            loss_of=loss_of,
            measure=lambda network: self._measured(network, training.split, how),
        )

    def _loss(self, network: FasterRCNN, batch: Sequence[Example], losses: Criterion, how: Execution) -> Tensor:
        images = [how.moved(image) for image, _ in batch]
        targets = [move_target(target, how.where) for _, target in batch]
        with how.arithmetic():
            return network.loss(images, targets, losses, self._heads)

    def _measured(self, network: FasterRCNN, split: str, how: Execution) -> Figures | str:
        found, truths = zip(*self.detections(network, self._data[split], how), strict=True)
        if not all(math.isfinite(float(one.boxes.sum() + one.scores.sum())) for one in found):
            return "a predicted box is not finite"
        classes = range(1, self.classes + 1)
        figures = {name: mean_average_precision(found, truths, classes, setting) for name, setting in METRICS.items()}
        if split == "test" and self._final is not None:
            figures |= self._final(found, truths, classes)
        return figures.pop(self.metric), figures

    def _trained(self, schedule: str) -> Sequence[Example]:
        """Return what a schedule trains on."""
        whole = self._full_train if schedule == "full" else None
        return self._data["train"] if whole is None else whole


def _to_ground_truth(target: Mapping[str, Tensor]) -> GroundTruth:
    given = {name: target[name].numpy() for name in ("crowd", "area", "difficult") if name in target}
    return GroundTruth(target["boxes"].numpy(), target["labels"].numpy(), **given)
