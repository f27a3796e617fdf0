"""Metrics of classification and regression on tables: the predictions of all rows → one float, higher is better (Section 4).

Each returns the same number as scikit-learn or scipy, and NaN without a warning where it is undefined: a target with one class or
value only, or a prediction that is not finite. They are called on 64 rows about ten times per candidate, where the checks of
scikit-learn take about 1 ms per call; these take 0.02 to 0.3 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["classification", "regression"]
Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def f1(prediction: Tensor, target: Tensor) -> float:
    """Return the F1 of the positive class (index 1) of two, or the mean over the classes that occur."""
    if (prepared := _prepare_classes(prediction, target)) is None:
        return math.nan
    probabilities, classes = prepared
    counts = _count_confusion(probabilities, classes)
    sizes = counts.sum(0) + counts.sum(1)
    scores = 2 * np.diagonal(counts) / np.maximum(sizes, 1)
    return float(scores[1] if len(counts) == 2 else scores[sizes > 0].mean())


def balanced_accuracy(prediction: Tensor, target: Tensor) -> float:
    """Return the mean recall over the classes of the target."""
    if (prepared := _prepare_classes(prediction, target)) is None:
        return math.nan
    counts = _count_confusion(*prepared)
    sizes = counts.sum(1)
    present = sizes > 0
    return float((np.diagonal(counts)[present] / sizes[present]).mean())


def mcc(prediction: Tensor, target: Tensor) -> float:
    """Return Matthews' correlation coefficient; 0 if all predictions are the same class."""
    if (prepared := _prepare_classes(prediction, target)) is None:
        return math.nan
    counts = _count_confusion(*prepared).astype(np.float64)
    true, predicted, rows = counts.sum(1), counts.sum(0), counts.sum()
    spread = (rows**2 - true @ true) * (rows**2 - predicted @ predicted)
    return float((np.trace(counts) * rows - true @ predicted) / math.sqrt(spread)) if spread > 0 else 0.0


def auc(prediction: Tensor, target: Tensor) -> float:
    """Return the area under the ROC curve of the positive class of two, or the one-vs-rest mean."""
    return _average_one_vs_rest(prediction, target, measure_area)


def average_precision(prediction: Tensor, target: Tensor) -> float:
    """Return the average precision of the positive class of two, or the one-vs-rest mean."""
    return _average_one_vs_rest(prediction, target, measure_precision)


def r2(prediction: Tensor, target: Tensor) -> float:
    """Return the coefficient of determination R²; negative if the prediction is worse than the mean."""
    if (prepared := _prepare_values(prediction, target)) is None:
        return math.nan
    values, truth = prepared
    deviation = truth - truth.mean()
    with np.errstate(over="ignore", invalid="ignore"):
        residual = values - truth
        explained = float(1.0 - (residual @ residual) / (deviation @ deviation))
    return explained if math.isfinite(explained) else math.nan


def spearman(prediction: Tensor, target: Tensor) -> float:
    """Return Spearman's rank correlation; NaN for a constant prediction."""
    if (prepared := _prepare_values(prediction, target)) is None:
        return math.nan
    first, second = (rank_values(values) - (len(values) + 1) / 2 for values in prepared)
    spread = math.sqrt((first @ first) * (second @ second))
    return float(first @ second / spread) if spread > 0 else math.nan


TABULAR_METRICS: Mapping[Kind, Mapping[str, Callable[[Tensor, Tensor], float]]] = {
    "classification": {one.__name__: one for one in (f1, auc, average_precision, balanced_accuracy, mcc)},
    "regression": {one.__name__: one for one in (r2, spearman)},
}
"""Kind of the target → name → function (prediction, target) → value.

Predictions of classes are probabilities (N, C), or (N,) of the positive of two, those of values (N,) or (N, 1).
"""


def _prepare_classes(prediction: Tensor, target: Tensor) -> tuple[Array, Indices] | None:
    """Return probabilities (N, C) and classes (N,), or None where metrics of classification are undefined."""
    probabilities = (
        prediction.detach().double().cpu().flatten(1).numpy() if prediction.ndim > 1 else flatten(prediction)
    )
    if probabilities.ndim == 1 or probabilities.shape[1] == 1:
        positive = probabilities.reshape(-1)
        probabilities = np.stack([1 - positive, positive], axis=1)
    classes = target.detach().long().cpu().reshape(-1).numpy()
    if not len(classes) or classes.min() == classes.max() or not np.isfinite(probabilities).all():
        return None
    return probabilities, classes


def _prepare_values(prediction: Tensor, target: Tensor) -> tuple[Array, Array] | None:
    """Return the values of prediction and target (N,), or None where metrics of regression are undefined."""
    values, truth = flatten(prediction), flatten(target)
    if not len(truth) or truth.min() == truth.max() or not np.isfinite(values).all():
        return None
    return values, truth


def flatten(values: Tensor) -> Array:
    """Return a tensor as one row of doubles."""
    return values.detach().double().cpu().reshape(-1).numpy()


def _count_confusion(probabilities: Array, classes: Indices) -> Indices:
    """Return the confusion matrix, with true classes as rows and predicted classes as columns."""
    size = max(probabilities.shape[1], int(classes.max()) + 1)
    predicted = probabilities.argmax(axis=1)
    return np.bincount(classes * size + predicted, minlength=size * size).reshape(size, size)


def _average_one_vs_rest(prediction: Tensor, target: Tensor, function: Callable[..., float]) -> float:
    if (prepared := _prepare_classes(prediction, target)) is None:
        return math.nan
    probabilities, classes = prepared
    if probabilities.shape[1] == 2:
        return function(probabilities[:, 1], classes == 1)
    return float(np.mean([function(probabilities[:, one], classes == one) for one in np.unique(classes)]))


def measure_area(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Return the share of (positive, negative) pairs in the correct order; ties count half."""
    hits = int(positive.sum())
    misses = len(positive) - hits
    return float((rank_values(scores)[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def measure_precision(scores: Array, positive: NDArray[np.bool_]) -> float:
    """Return Σ (increase of recall) · precision over the thresholds; rows with equal scores share a threshold."""
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(positive[order])
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    gained = np.diff(found[ends], prepend=0)
    return float((gained * found[ends] / (ends + 1)).sum() / found[-1])


def rank_values(values: Array) -> Array:
    """Return the ranks from 1; equal values get their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
