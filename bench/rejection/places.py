"""Branches with samples on which decisions are compared: every metric of the catalogue, and metrics that it does not have.

A place is made anew for each seed: samples of an untrained network where the task is of the catalogue, else drawn scenes or rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau
from torch import Tensor
from torch.nn import functional as F

import autoloss
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Sample
from autoloss.space.form import Activation
from autoloss.tasks.tabular.metrics import average_precision

SAMPLES = 5
SEGMENTATION = {"size": 16, "train": 64, "valid": 16, "test": 16}
Measure = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True, slots=True)
class Place:
    """A branch of a task, or one of drawn samples where the task has no name.

    Args:
        own: A metric that takes the place of the task's.
        draw: Draws a sample.
    """

    task: str = ""
    branch: str = "main"
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    own: Measure | None = None
    activation: Activation = "softmax"
    draw: Callable[[torch.Generator], Sample] | None = None

    def make(self, seed: int) -> tuple[Branch, list[Sample]]:
        """Return the branch and its samples of a seed."""
        if self.draw is not None:
            generator = torch.Generator().manual_seed(seed)
            samples = [self.draw(generator) for _ in range(SAMPLES)]
            channels = samples[0].prediction.shape[1]
            return ActivatedBranch(measure=self.own, channels=channels, activation=self.activation), samples
        task = autoloss.tasks.get(self.task, **self.options)
        branch, samples = task.branches[self.branch], list(task.samples(SAMPLES, seed)[self.branch])
        if self.own is not None and isinstance(branch, ActivatedBranch):
            branch = replace(branch, measure=self.own)
        return branch, samples


def f2(prediction: Tensor, target: Tensor) -> float:
    """F2 of one channel at 0.5."""
    found, wanted = prediction.flatten() > 0.5, target.flatten() > 0.5
    hit = int((found & wanted).sum())
    total = 5 * hit + 4 * int((~found & wanted).sum()) + int((found & ~wanted).sum())
    return 5 * hit / total if total else 0.0


def macro_f1(prediction: Tensor, target: Tensor) -> float:
    counts = _confusion(prediction, target)
    sizes = counts.sum(0) + counts.sum(1)
    return float((2 * counts.diagonal()[sizes > 0] / sizes[sizes > 0]).mean())


def kappa(prediction: Tensor, target: Tensor) -> float:
    counts = _confusion(prediction, target)
    chance = float(counts.sum(0) @ counts.sum(1)) / counts.sum() ** 2
    return float((counts.trace() / counts.sum() - chance) / (1 - chance))


def worst_iou(prediction: Tensor, target: Tensor) -> float:
    counts = _confusion(prediction, target)
    there = counts.sum(1) > 0
    return float((counts.diagonal() / np.maximum(counts.sum(0) + counts.sum(1) - counts.diagonal(), 1))[there].min())


def border_f1(prediction: Tensor, target: Tensor) -> float:
    """F1 of the borders between columns, whatever the classes beside them are."""
    classes = prediction.argmax(1)
    found, wanted = classes[..., 1:] != classes[..., :-1], target[..., 1:] != target[..., :-1]
    total = int(found.sum() + wanted.sum())
    return 2 * int((found & wanted).sum()) / total if total else 0.0


def kendall(prediction: Tensor, target: Tensor) -> float:
    return float(kendalltau(prediction.flatten().numpy(), target.flatten().numpy()).statistic)


def multilabel_ap(prediction: Tensor, target: Tensor) -> float:
    """Average the average precision of the labels."""
    values = [average_precision(prediction[:, label].flatten(), target[:, label].flatten()) for label in range(4)]
    return float(np.nanmean(values)) if not all(map(math.isnan, values)) else math.nan


def r2(prediction: Tensor, target: Tensor) -> float:
    rest = (prediction.double() - target).square().sum() / (target.double() - target.mean()).square().sum()
    return float(1 - rest) if torch.isfinite(rest) else math.nan


def _confusion(prediction: Tensor, target: Tensor) -> Any:
    count = prediction.shape[1]
    pairs = (target.flatten() * count + prediction.argmax(dim=1).flatten()).numpy()
    return np.bincount(pairs, minlength=count * count).reshape(count, count)


def discs(generator: torch.Generator, classes: int, side: int) -> Tensor:
    """Background with one disc of each other class, (1, side, side)."""
    target = torch.zeros(side, side, dtype=torch.long)
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    for label in range(1, classes):
        row, column, radius = torch.randint(2, side - 2, (3,), generator=generator).tolist()
        target[(rows - row) ** 2 + (columns - column) ** 2 <= (2 + radius / 6) ** 2] = label
    return target.unsqueeze(0)


def logits(generator: torch.Generator, channels: int, side: int, bias: float) -> Tensor:
    """Coarse random logits; with a bias, one class is predicted nearly everywhere."""
    coarse = torch.randn(1, channels, side // 4, side // 4, generator=generator)
    spread = 0.05 if bias else 0.3
    shift = bias * torch.randn(1, channels, 1, 1, generator=generator)
    return shift + spread * F.interpolate(coarse, size=(side, side), mode="bilinear")


def scene(generator: torch.Generator, channels: int, side: int, bias: float = 0.0) -> Sample:
    target = discs(generator, max(channels, 3), side)
    target = target if channels > 1 else (target > 0).long()
    return Sample(logits(generator, channels, side, bias), {"target": target})


def labelled_maps(generator: torch.Generator, side: int) -> Sample:
    target = torch.stack([(discs(generator, 3, side) > 0).float() for _ in range(4)], dim=1)
    return Sample(logits(generator, 4, side, 0.0), {"target": target})


def surface(generator: torch.Generator, side: int) -> Sample:
    target = F.interpolate(torch.randn(1, 1, 4, 4, generator=generator), size=(side, side), mode="bicubic")
    return Sample(logits(generator, 1, side, 0.0), {"target": (target - target.mean()) / target.std()})


def rows(generator: torch.Generator, channels: int, labels: bool = False) -> Sample:
    """64 rows: one logit with a rare class, or four labels."""
    shape = (64, channels) if labels else (64,)
    target = torch.rand(shape, generator=generator) < 0.3
    prediction = 0.3 * torch.randn(64, channels, generator=generator)
    return Sample(prediction, {"target": target.float() if labels else target.long()})


TABLES = {
    "f1": "breast_cancer_hard",
    "auc": "breast_cancer",
    "average_precision": "breast_cancer_hard",
    "balanced_accuracy": "wine",
    "mcc": "digits",
    "r2": "diabetes",
    "spearman": "diabetes",
}
PLACES: dict[str, Place] = {
    **{
        f"digits-seg, {metric}": Place("digits-seg", options={"metric": metric, **SEGMENTATION})
        for metric in ("miou", "fwiou", "gacc", "macc", "biou", "bf1")
    },
    **{f"tabular, {metric}": Place("tabular", options={"metric": metric, "data": TABLES[metric]}) for metric in TABLES},
    **{
        f"digits-det, {branch}": Place("digits-det", branch)
        for branch in ("rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg")
    },
    "digits-ins, mask": Place("digits-ins", "mask"),
    "figures-pose": Place("figures-pose"),
    # Metrics that the catalogue does not have, first of images, then of rows.
    "one-channel masks, F2": Place(own=f2, draw=partial(scene, channels=1, side=32)),
    "one-channel masks from one class, F2": Place(own=f2, draw=partial(scene, channels=1, side=32, bias=0.5)),
    "scenes from one class, worst IoU": Place(own=worst_iou, draw=partial(scene, channels=5, side=16, bias=0.5)),
    "scenes, kappa": Place(own=kappa, draw=partial(scene, channels=6, side=20)),
    "scenes, border F1": Place(own=border_f1, draw=partial(scene, channels=4, side=24)),
    "scenes, macro F1": Place(own=macro_f1, draw=partial(scene, channels=8, side=16)),
    "four label maps, average precision": Place(
        own=multilabel_ap, activation="sigmoid", draw=partial(labelled_maps, side=16)
    ),
    "surface, R²": Place(own=r2, activation="none", draw=partial(surface, side=32)),
    "rows, Kendall's τ": Place("tabular", options={"metric": "spearman", "data": "diabetes"}, own=kendall),
    "rows, one-channel F2": Place(own=f2, draw=partial(rows, channels=1)),
    "rows, macro F1": Place("tabular", options={"metric": "mcc", "data": "wine"}, own=macro_f1),
    "rows, four labels, average precision": Place(
        own=multilabel_ap, activation="sigmoid", draw=partial(rows, channels=4, labels=True)
    ),
}
