"""Object detection as a task (Section 4.2): Faster R-CNN with four branches, any of which may keep a loss of its own."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from autoloss.errors import RequestError, unknown
from autoloss.space.boxes import PLAIN, AreaUnit, BoxClassification, BoxRegression, rescaled, smooth_l1
from autoloss.space.branch import Branch, BranchLoss, Criterion, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.tasks.metrics.detection import COCO, VOC07, Detections, Setting, Truth, mean_average_precision
from autoloss.tasks.metrics.regions import RCNN_NMS, RPN_NMS, OfBoxes, OfScores
from autoloss.tasks.networks.faster_rcnn import BRANCHES, FasterRCNN
from autoloss.tasks.task import Diverged, Observe, Scored, Task
from autoloss.tasks.training import Recipe, fit, seeded, shuffled

METRICS: Mapping[str, Setting] = {"map": COCO, "ap50": Setting(thresholds=(0.5,)), "voc07": VOC07}
"""COCO's AP@[.5:.95], the same at 0.5 alone, and VOC 2007's AP50 at eleven points."""

STANDARD: Mapping[str, str] = {name: "baseline/ce" if name.endswith("cls") else "baseline/l1" for name in BRANCHES}
DRAWS_PER_SAMPLE = 50
"""After so many images for each sample asked for, no more useful ones are expected."""

Example = tuple[Tensor, Mapping[str, Tensor]]
"""An image (channels, H, W) in [0, 1]; `boxes` (G, 4), `labels` (G,), and where the data has them `crowd`, `area` and
`difficult`, see `metrics.detection.Truth`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSettings:
    """What the four branches are like.

    Args:
        unit: Of the areas i, u and e: square `pixels`, the paper's, or the area of each `target` box.
        regression_weight: Of trees of areas; a hand-written loss on deltas keeps its own, 1.
        deviations: In which the rejection protocol counts deltas.
    """

    unit: AreaUnit = "pixels"
    regression_weight: float = 10.0
    deviations: tuple[float, float, float, float] = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """What the schedule `full` trains, and how.

    Args:
        train: Where it differs from the proxy's; an untouched search may give back what it held out.
    """

    network: Callable[[], FasterRCNN]
    recipe: Recipe
    train: Sequence[Example] | None = None


def standard_loss(branch: str) -> Expression | BranchLoss:
    """Return the usual loss of Faster R-CNN's branch: cross entropy, or smooth L1 on deltas."""
    return parse("-y * log(p)") if branch.endswith("cls") else smooth_l1


def frozen_losses(text: str) -> dict[str, Expression | BranchLoss]:
    """Read which branches keep a loss: `rpn_cls; rpn_reg: e / (i + u)`; a branch without a formula keeps its usual loss.

    Args:
        text: Branches separated by semicolons; `rpn` stands for its two, `rcnn` for its two.

    Raises:
        RequestError: There is no such branch, or a formula is wrong.
    """
    kept: dict[str, Expression | BranchLoss] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, colon, formula = (piece.strip() for piece in part.partition(":"))
        named = [branch for branch in BRANCHES if branch == name or branch.split("_")[0] == name]
        if not named:
            raise unknown("branch", name, [*BRANCHES, "rpn", "rcnn"])
        for branch in named:
            leaves = ("y", "p") if branch.endswith("cls") else ("i", "u", "e")
            kept[branch] = parse(formula, leaves) if colon else standard_loss(branch)
    return kept


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
        frozen: Branch → the loss that it keeps. The search has the other branches only.
        settings: Units and weights.
        flip: Probability that a training image is mirrored.
        name: Shown in tables.
        device: Where networks are trained.

    Raises:
        RequestError: Something does not fit together.
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
        full: Full | None = None,
        frozen: Mapping[str, Expression | BranchLoss] | None = None,
        settings: BranchSettings = BranchSettings(),
        flip: float = 0.0,
        name: str = "detection",
        device: str = "cpu",
    ) -> None:
        if metric not in METRICS:
            raise unknown("detection metric", metric, METRICS)
        self.name = name
        self.classes = classes
        self.metric = metric
        self.recipes = {"proxy": recipe, "full": full.recipe if full else recipe}
        self.settings = settings
        self.flip = flip
        self.device = device
        self._networks = {"proxy": network, "full": full.network if full else network}
        self._full_train = full.train if full else None
        given = {"train": train, "valid": valid, "test": test}
        self._data = {split: data for split, data in given.items() if data is not None}
        for split, data in self._data.items():
            if not len(data):
                raise RequestError(f"The {split} data holds no images; give it at least one.")
        self.splits = tuple(split for split in self._data if split != "train")
        every = _branches(classes, settings)
        for branch in frozen or {}:
            if branch not in every:
                raise unknown("branch", branch, every)
        self._branches = {branch: every[branch] for branch in BRANCHES if branch not in (frozen or {})}
        if not self._branches:
            raise RequestError("All four branches are frozen; leave at least one to the search.")
        kept = {branch: every[branch] for branch in frozen or {}}
        self.frozen: Criterion = bind(frozen, kept) if frozen else {}
        self.standard = {branch: STANDARD[branch] for branch in self._branches}

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    @property
    def also(self) -> tuple[str, ...]:
        """The names of all metrics that a training reports beside its score."""
        return tuple(name for name in METRICS if name != self.metric)

    def at_learning_rate(self, factor: float) -> DetectionTask:
        """Return the same task trained at `factor` times its learning rates: comparisons tune baselines with it."""
        other = copy.copy(self)
        other.recipes = {schedule: recipe.at_learning_rate(factor) for schedule, recipe in self.recipes.items()}
        return other

    def steps(self, schedule: str) -> int:
        """Return the number of optimizer steps of a schedule, so that a training's time can be told from a few."""
        return self.recipes[schedule].steps(len(self._trained(schedule)))

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        found: dict[str, list[Sample]] = {name: [] for name in self._branches}
        drawn = 0
        with seeded(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().train()
            # One image has no batch statistics of its own.
            network.backbone.eval()
            for example in self._draws(count * DRAWS_PER_SAMPLE, generator):
                drawn += 1
                for name, sample in self._sampled(network, example).items():
                    if len(found[name]) < count and self._can_gain(name, sample):
                        found[name].append(sample)
                if all(len(samples) == count for samples in found.values()):
                    return found
        lacking = ", ".join(f"{name} {len(samples)}" for name, samples in found.items() if len(samples) < count)
        raise RequestError(
            f"Of {drawn} training images too few can be used as samples: {lacking} of {count}. A sample needs a metric that "
            "is defined and below what the target itself reaches. Check that boxes are in pixels as left, top, right, "
            "bottom, and that anchors are of the objects' size."
        )

    def train(
        self,
        criterion: Criterion,
        seed: int,
        *,
        split: str = "valid",
        schedule: str = "proxy",
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        for kind, asked, known in (("split", split, self.splits), ("schedule", schedule, self.recipes)):
            if asked not in known:
                raise unknown(kind, asked, known)
        for name in self._branches:
            if name not in criterion:
                raise unknown("loss for the branch", name, criterion)
        recipe, losses = self.recipes[schedule], {**self.frozen, **criterion}
        with seeded(seed) as generator:
            network = self._networks[schedule]().to(self.device)
            data = self._trained(schedule)
            order = shuffled(len(data), recipe, generator)
            batches = ([self._augmented(data[index], generator) for index in rows.tolist()] for rows in order)

            def loss_of(batch: list[Example]) -> Tensor:
                images = [image.to(self.device) for image, _ in batch]
                targets = [_moved(target, self.device) for _, target in batch]
                return network.loss(images, targets, losses)

            curve = fit(network, batches, loss_of, recipe, len(order), observe=observe)
            if isinstance(curve, Diverged):
                return curve
            figures = self._measured(network.eval(), self._data[split])
        if figures is None:
            return Diverged(len(order), "a predicted box is not finite")
        score = figures.pop(self.metric)
        if not math.isfinite(score):
            return Diverged(len(order), "the metric is not finite")
        return Scored(score, {name: value for name, value in figures.items() if math.isfinite(value)}, curve)

    def detections(self, network: FasterRCNN, data: Sequence[Example]) -> Iterator[tuple[Detections, Truth]]:
        """Yield what a network in use finds in each image, beside what is there."""
        for index in range(len(data)):
            image, target = data[index]
            with torch.no_grad():
                (found,) = network([image.to(self.device)])
            boxes, scores, classes = (found[name].cpu().numpy() for name in ("boxes", "scores", "labels"))
            yield Detections(boxes, scores, classes), _truth(target)

    def _measured(self, network: FasterRCNN, data: Sequence[Example]) -> dict[str, float] | None:
        found, truths = zip(*self.detections(network, data), strict=True)
        if not all(math.isfinite(float(one.boxes.sum() + one.scores.sum())) for one in found):
            return None
        classes = range(1, self.classes + 1)
        return {name: mean_average_precision(found, truths, classes, setting) for name, setting in METRICS.items()}

    def _trained(self, schedule: str) -> Sequence[Example]:
        """Return what a schedule trains on."""
        whole = self._full_train if schedule == "full" else None
        return self._data["train"] if whole is None else whole

    def _augmented(self, example: Example, generator: torch.Generator) -> Example:
        image, target = example
        target = trainable(target)
        if self.flip and float(torch.rand((), generator=generator)) < self.flip:
            return mirrored(image, target)
        return image, target

    def _draws(self, limit: int, generator: torch.Generator) -> Iterator[Example]:
        data, drawn = self._data["train"], 0
        while drawn < limit:
            for index in torch.randperm(len(data), generator=generator).tolist():
                drawn += 1
                image, target = data[index]
                target = trainable(target)
                # Without an object no precision is defined.
                if len(target["boxes"]):
                    yield image, target
                if drawn == limit:
                    return

    def _sampled(self, network: FasterRCNN, example: Example) -> dict[str, Sample]:
        """Return what the criterion would be given for one image, the deltas in the protocol's own unit."""
        taken: dict[str, Sample] = {}

        def taking(name: str) -> BranchLoss:
            def take(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
                unit = prediction.new_tensor([self.settings.deviations])
                seen = rescaled(prediction, context, unit) if "deviations" in context else (prediction, dict(context))
                taken[name] = Sample(*seen)
                return prediction.sum()

            return take

        network.loss([example[0]], [example[1]], {name: taking(name) for name in BRANCHES})
        return {name: taken[name] for name in self._branches}

    def _can_gain(self, name: str, sample: Sample) -> bool:
        branch = self._branches[name]
        initial = branch.metric(sample.prediction, sample.context)
        # Comparisons with NaN are false.
        return initial < branch.metric(branch.ideal(sample.context), sample.context)


def _branches(classes: int, settings: BranchSettings) -> dict[str, Branch]:
    regression = {"unit": settings.unit, "weight": settings.regression_weight}
    return {
        "rpn_cls": BoxClassification(channels=1, measure_boxes=OfScores(RPN_NMS)),
        "rpn_reg": BoxRegression(measure=OfBoxes(RPN_NMS), **regression),
        "rcnn_cls": BoxClassification(channels=classes + 1, measure_boxes=OfScores(RCNN_NMS)),
        "rcnn_reg": BoxRegression(measure=OfBoxes(RCNN_NMS), **regression),
    }


def trainable(target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out crowds, difficult objects, and boxes without width or height."""
    boxes, labels = target["boxes"], target["labels"]
    left_out = (boxes[:, 2:] <= boxes[:, :2]).any(dim=1)
    for mark in ("crowd", "difficult"):
        if mark in target:
            left_out |= target[mark].bool()
    return {"boxes": boxes[~left_out], "labels": labels[~left_out]}


def mirrored(image: Tensor, target: Mapping[str, Tensor]) -> Example:
    """Swap left and right."""
    left, top, right, bottom = target["boxes"].unbind(dim=1)
    width = image.shape[-1]
    return image.flip(-1), {**target, "boxes": torch.stack([width - right, top, width - left, bottom], dim=1)}


def _truth(target: Mapping[str, Tensor]) -> Truth:
    given = {name: target[name].numpy() for name in ("crowd", "area", "difficult") if name in target}
    return Truth(target["boxes"].numpy(), target["labels"].numpy(), **given)


def _moved(target: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: part.to(device) for name, part in target.items()}
