"""The six segmentation metrics of Section 4: mIoU, FWIoU, gAcc, mAcc, BIoU and BF1, on counts that add up over batches.

A prediction is first turned into counts, on the device where it lies; counts of several batches are added, and a metric is
a function of the sum. One image, as the rejection protocol measures it, is averaged over the classes of its own target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import unknown
from autoloss.space.activated import Encoding, inner_band

Counts = Tensor
"""A confusion matrix (C, C), rows the target's classes; or boundary counts (C, 4), see `count_boundary`. 64-bit integers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountSettings:
    """How pixels are counted.

    Args:
        tolerance: Pixels, measured along rows and columns at once (a square window).
        ignore_index: Class index of the target that counts nowhere.
        left_out: Class that the mean leaves out, such as the background of VOC.
    """

    tolerance: int = 5
    ignore_index: int | None = None
    left_out: int | None = None


def count_confusion(prediction: Tensor, target: Tensor, setting: CountSettings) -> Counts:
    """Count pixels by the target's class (rows) and the predicted one (columns).

    Args:
        prediction: Scores of classes, (N, C, H, W); the largest decides.
        target: Class indices, (N, H, W).
    """
    return _confusion(prediction, target, _counted_mask(target, setting))


def count_band_confusion(prediction: Tensor, target: Tensor, setting: CountSettings) -> Counts:
    """Count like `count_confusion`, only the pixels within the tolerance of one of the target's class borders."""
    counted = _counted_mask(target, setting)
    classes = _one_hot(target, counted, prediction.shape[1])
    near = inner_band(classes, setting.tolerance).any(dim=1)
    return _confusion(prediction, target, counted & near)


def count_boundary(prediction: Tensor, target: Tensor, setting: CountSettings) -> Counts:
    """Count the pixels on the 1-pixel inner edges of each class, and those with a counterpart within the tolerance.

    Returns:
        (C, 4): predicted edge, of it matched; the target's edge, of it matched.
    """
    counted = _counted_mask(target, setting)
    count = prediction.shape[1]
    found, wanted = (
        inner_band(_one_hot(labels, counted, count), 1) for labels in (_predicted_labels(prediction), target)
    )
    columns = (found, found * _dilate(wanted, setting.tolerance), wanted, wanted * _dilate(found, setting.tolerance))
    return torch.stack([column.sum(dim=(0, 2, 3)) for column in columns], dim=1).long()


def miou(counts: Counts, setting: CountSettings, *, single: bool) -> Tensor:
    """Average the intersection over union of the classes that are there.

    Args:
        single: One image, averaged over the classes of its target; else over those with any target or predicted pixel.
    """
    hit, wanted, found = counts.diagonal().double(), counts.sum(dim=1), counts.sum(dim=0)
    union = wanted + found - hit
    return _mean(hit / union, (wanted if single else union) > 0, setting)


def fwiou(counts: Counts, setting: CountSettings, *, single: bool) -> Tensor:
    """Average the intersection over union of all classes, each by its share of the target's pixels."""
    hit, wanted, found = counts.diagonal().double(), counts.sum(dim=1), counts.sum(dim=0)
    return (wanted * hit / (wanted + found - hit).clamp(min=1)).sum() / counts.sum()


def gacc(counts: Counts, setting: CountSettings, *, single: bool) -> Tensor:
    """Return the share of pixels whose class is right."""
    return counts.diagonal().sum() / counts.sum().double()


def macc(counts: Counts, setting: CountSettings, *, single: bool) -> Tensor:
    """Average the share of pixels whose class is right over the classes of the target."""
    wanted = counts.sum(dim=1)
    return _mean(counts.diagonal().double() / wanted, wanted > 0, setting)


def bf1(counts: Counts, setting: CountSettings, *, single: bool) -> Tensor:
    """Average the boundary F1 of the classes that are there: 2·precision·recall / (precision + recall)."""
    found, matched, wanted, met = counts.double().unbind(dim=1)
    precision, recall = matched / found.clamp(min=1), met / wanted.clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return _mean(f1, (wanted if single else wanted + found) > 0, setting)


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric: what is counted, what is made of the counts, and what y is when a loss is trained for it."""

    count: Callable[[Tensor, Tensor, CountSettings], Counts]
    value: Callable[..., Tensor]
    encoding: Encoding = "one_hot"
    of_boundary: bool = False
    """Only these leave a class out, and only these have a tolerance."""


SEGMENTATION_METRICS: Mapping[str, MetricDefinition] = {
    "miou": MetricDefinition(count_confusion, miou),
    "fwiou": MetricDefinition(count_confusion, fwiou),
    "gacc": MetricDefinition(count_confusion, gacc),
    "macc": MetricDefinition(count_confusion, macc),
    "biou": MetricDefinition(count_band_confusion, miou, "band", True),
    "bf1": MetricDefinition(count_boundary, bf1, "edge", True),
}


class SegmentationMetric:
    """One of the six: called, it measures one image; streamed by update, compute and reset, a whole split.

    Args:
        name: One of `SEGMENTATION_METRICS`.
        left_out: Class that boundary metrics leave out of their mean.

    Raises:
        RequestError: There is no such metric.
    """

    def __init__(
        self, name: str, *, tolerance: int = 5, ignore_index: int | None = None, left_out: int | None = None
    ) -> None:
        if name not in SEGMENTATION_METRICS:
            raise unknown("segmentation metric", name, SEGMENTATION_METRICS)
        self.name = name
        self.definition = SEGMENTATION_METRICS[name]
        kept = left_out if self.definition.of_boundary else None
        self.setting = CountSettings(tolerance=tolerance, ignore_index=ignore_index, left_out=kept)
        self._counts: Counts | None = None

    def __call__(self, prediction: Tensor, target: Tensor) -> float:
        """Measure one image; NaN where no class is left to average over.

        Args:
            prediction: Scores of classes, (1, C, H, W).
            target: Class indices, (1, H, W).
        """
        counts = self.definition.count(prediction, target, self.setting)
        return self.definition.value(counts, self.setting, single=True).item()

    def reset(self) -> None:
        self._counts = None

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch: scores of classes (N, C, H, W), class indices (N, H, W)."""
        counts = self.definition.count(prediction, target, self.setting)
        self._counts = counts if self._counts is None else self._counts + counts

    def compute(self) -> float:
        """Return the metric of all that was added, NaN where that is nothing."""
        if self._counts is None:
            return float("nan")
        return self.definition.value(self._counts, self.setting, single=False).item()


def _predicted_labels(prediction: Tensor) -> Tensor:
    # The same as argmax, first of equals included, in a quarter of its time on a CPU.
    return prediction.max(dim=1).indices


def _counted_mask(target: Tensor, setting: CountSettings) -> Tensor:
    if setting.ignore_index is None:
        return torch.ones_like(target, dtype=torch.bool)
    return target != setting.ignore_index


def _confusion(prediction: Tensor, target: Tensor, counted: Tensor) -> Counts:
    classes = prediction.shape[1]
    pairs = target[counted].long() * classes + _predicted_labels(prediction)[counted]
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def _one_hot(labels: Tensor, counted: Tensor, classes: int) -> Tensor:
    """Return (N, C, H, W) in floating point, zero where a pixel does not count."""
    kept = labels.long().masked_fill(~counted, classes)
    return F.one_hot(kept, classes + 1)[..., :classes].movedim(-1, 1).float()


def _dilate(edges: Tensor, tolerance: int) -> Tensor:
    return F.max_pool2d(edges, kernel_size=2 * tolerance + 1, stride=1, padding=tolerance)


def _mean(values: Tensor, present: Tensor, setting: CountSettings) -> Tensor:
    """Average over the classes present, NaN where there are none."""
    if setting.left_out is not None:
        present = present.clone()
        present[setting.left_out] = False
    return values[present].mean()
