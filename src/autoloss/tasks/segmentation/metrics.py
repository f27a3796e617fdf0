"""The six segmentation metrics of Section 4: mIoU, FWIoU, gAcc, mAcc, BIoU and BF1, from counts that are summed over batches.

Predictions are converted to counts on their device; the counts of several batches are added, and a metric is a function of the
sum. For a single image, as in the rejection protocol, the mean is over the classes of its own target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import unknown
from autoloss.space.activated import Encoding, dilate, inner_band

Counts = Tensor
"""A confusion matrix (C, C), rows the target's classes; or boundary counts (C, 4), see `count_boundary`. 64-bit integers."""


def count_confusion(prediction: Tensor, target: Tensor, counted: Tensor, tolerance: int) -> Counts:
    """Count pixels by the target's class (rows) and the predicted class (columns), the one of the largest score.

    The prediction is (N, C, H, W), the target class indices (N, H, W), of which those that are `counted` count.
    """
    classes = prediction.shape[1]
    pairs = target[counted].long() * classes + _predicted_labels(prediction)[counted]
    return torch.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def count_band_confusion(prediction: Tensor, target: Tensor, counted: Tensor, tolerance: int) -> Counts:
    """Count like `count_confusion`, only the pixels within the tolerance of one of the target's class borders."""
    near = inner_band(_one_hot(target, counted, prediction.shape[1]), tolerance).any(dim=1)
    return count_confusion(prediction, target, counted & near, tolerance)


def count_boundary(prediction: Tensor, target: Tensor, counted: Tensor, tolerance: int) -> Counts:
    """Count the pixels on the 1-pixel inner edges of each class, and those within the tolerance of the other edge.

    The columns of (C, 4): the predicted edge, matched pixels of it, the target's edge, matched pixels of it.
    """
    both = (_predicted_labels(prediction), target)
    found, wanted = (inner_band(_one_hot(labels, counted, prediction.shape[1]), 1) for labels in both)
    columns = (found, found * dilate(wanted, tolerance), wanted, wanted * dilate(found, tolerance))
    return torch.stack([column.sum(dim=(0, 2, 3)) for column in columns], dim=1).long()


def miou(counts: Counts, left_out: int | None, *, single: bool) -> Tensor:
    """Return the mean intersection over union of the classes of the target of a `single` image, or else of all that are present."""
    hit, wanted, found = counts.diagonal().double(), counts.sum(dim=1), counts.sum(dim=0)
    union = wanted + found - hit
    return _mean(hit / union, (wanted if single else union) > 0, left_out)


def fwiou(counts: Counts, left_out: int | None, *, single: bool) -> Tensor:
    """Return the mean intersection over union, weighted by the frequency of each class in the target."""
    hit, wanted, found = counts.diagonal().double(), counts.sum(dim=1), counts.sum(dim=0)
    return (wanted * hit / (wanted + found - hit).clamp(min=1)).sum() / counts.sum()


def gacc(counts: Counts, left_out: int | None, *, single: bool) -> Tensor:
    """Return the share of correctly classified pixels."""
    return counts.diagonal().sum() / counts.sum().double()


def macc(counts: Counts, left_out: int | None, *, single: bool) -> Tensor:
    """Return the mean over the classes of the target of the share of correctly classified pixels."""
    wanted = counts.sum(dim=1)
    return _mean(counts.diagonal().double() / wanted, wanted > 0, left_out)


def bf1(counts: Counts, left_out: int | None, *, single: bool) -> Tensor:
    """Return the mean boundary F1 of the classes that are present: 2·precision·recall / (precision + recall)."""
    found, matched, wanted, met = counts.double().unbind(dim=1)
    precision, recall = matched / found.clamp(min=1), met / wanted.clamp(min=1)
    f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return _mean(f1, (wanted if single else wanted + found) > 0, left_out)


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric: the function that counts, the function of the counts, and the encoding of y in losses for it."""

    count: Callable[[Tensor, Tensor, Tensor, int], Counts]
    value: Callable[..., Tensor]
    encoding: Encoding = "one_hot"
    of_boundary: bool = False
    """True for a metric of boundaries: only these have a tolerance, and only these leave a class out."""


SEGMENTATION_METRICS: Mapping[str, MetricDefinition] = {
    "miou": MetricDefinition(count_confusion, miou),
    "fwiou": MetricDefinition(count_confusion, fwiou),
    "gacc": MetricDefinition(count_confusion, gacc),
    "macc": MetricDefinition(count_confusion, macc),
    "biou": MetricDefinition(count_band_confusion, miou, "band", True),
    "bf1": MetricDefinition(count_boundary, bf1, "edge", True),
}


class SegmentationMetric:
    """One of `SEGMENTATION_METRICS`: of one image when called, of a whole split by the sum of the counts of its batches.

    Args:
        tolerance: In pixels, as the Chebyshev distance.
        ignore_index: Class index of the target that is ignored.
        left_out: Class, such as the background of VOC, that is left out of the mean of boundary metrics.
    """

    def __init__(
        self, name: str, *, tolerance: int = 5, ignore_index: int | None = None, left_out: int | None = None
    ) -> None:
        if name not in SEGMENTATION_METRICS:
            raise unknown("segmentation metric", name, SEGMENTATION_METRICS)
        self.name, self.definition = name, SEGMENTATION_METRICS[name]
        self._tolerance, self._ignore_index = tolerance, ignore_index
        self._left_out = left_out if self.definition.of_boundary else None

    def __call__(self, prediction: Tensor, target: Tensor) -> float:
        """Measure one image, scores of classes (1, C, H, W), target (1, H, W); NaN where there is no class to average over."""
        return self.definition.value(self.count(prediction, target), self._left_out, single=True).item()

    def count(self, prediction: Tensor, target: Tensor) -> Counts:
        """Return the counts of a batch: scores of classes (N, C, H, W), class indices (N, H, W)."""
        counted = torch.ones_like(target, dtype=torch.bool)
        if self._ignore_index is not None:
            counted = target != self._ignore_index
        return self.definition.count(prediction, target, counted, self._tolerance)

    def evaluate(self, counts: Counts) -> float:
        """Return the metric of the counts of several images; NaN where there is no class to average over."""
        return self.definition.value(counts, self._left_out, single=False).item()


def make_metrics(**settings: Any) -> dict[str, SegmentationMetric]:
    """Return all six metrics by name; arguments as for `SegmentationMetric`."""
    return {name: SegmentationMetric(name, **settings) for name in SEGMENTATION_METRICS}


def _predicted_labels(prediction: Tensor) -> Tensor:
    # The same as argmax, also for equal scores, in a quarter of the time on a CPU.
    return prediction.max(dim=1).indices


def _one_hot(labels: Tensor, counted: Tensor, classes: int) -> Tensor:
    """Return (N, C, H, W) in floating point, zero where a pixel is ignored."""
    kept = labels.long().masked_fill(~counted, classes)
    return F.one_hot(kept, classes + 1)[..., :classes].movedim(-1, 1).float()


def _mean(values: Tensor, present: Tensor, left_out: int | None) -> Tensor:
    """Return the mean over the classes present, NaN where there are none."""
    if left_out is not None:
        present[left_out] = False
    return values[present].mean()
