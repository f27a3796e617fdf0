"""Metrics of survival: risk scores of rows, their times and events → one float, higher is better.

The target has the columns `value`, the time, and `event`, 1 where the event was observed and 0 where the observation ended before.
A higher score means an earlier event. NaN where nothing can be compared, or if a score is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Censoring:
    """The probability of not being censored until a time, estimated by Kaplan and Meier's method.

    Args:
        times: Times in order, each once.
        probabilities: Probability of staying uncensored beyond each of them.
    """

    times: Array
    probabilities: Array

    @classmethod
    def estimate(cls, times: Array, events: Flags) -> Censoring:
        """Estimate it from rows; at equal times, an event comes before a censoring.

        >>> Censoring.estimate(np.array([1.0, 2.0, 3.0]), np.array([True, False, True])).probabilities.tolist()
        [1.0, 0.5, 0.5]
        """
        distinct, places = np.unique(times, return_inverse=True)
        censored = np.bincount(places, ~events, minlength=len(distinct))
        seen = np.bincount(places, events, minlength=len(distinct))
        left = len(times) - np.cumsum(seen + censored) + censored
        share = np.divide(censored, left, out=np.zeros(len(distinct)), where=left > 0)
        return cls(distinct, np.cumprod(1.0 - share, dtype=np.float64))

    def weigh(self, times: Array, power: int = 1) -> Array:
        """Return the inverse probabilities at times, to a power; 0 where the probability is 0 and a row stands for nothing."""
        place = np.searchsorted(self.times, times, side="right") - 1
        found = np.where(place >= 0, self.probabilities[np.maximum(place, 0)], 1.0)
        return np.divide(1.0, found**power, out=np.zeros(len(times)), where=found > 0)


@dataclass(frozen=True, slots=True)
class SurvivalMetric:
    """A row of the table of metrics.

    Args:
        function: (scores, times, events, censoring) → value.
    """

    name: str
    function: Callable[[Array, Array, Flags, Censoring], float]

    def with_censoring(self, times: Array, events: Flags) -> BoundMetric:
        """Return the metric with the censoring of training rows, as a function of scores and target."""
        return BoundMetric(self, Censoring.estimate(times, events))


@dataclass(frozen=True, slots=True)
class BoundMetric:
    """A metric as a function of scores (N,) or (N, 1) and a target (N, K) whose first columns are time and event."""

    metric: SurvivalMetric
    censoring: Censoring

    def __call__(self, scores: Tensor, target: Tensor) -> float:
        given = scores.detach().double().cpu().reshape(-1).numpy()
        if not np.isfinite(given).all() or not len(given):
            return math.nan
        columns = target.detach().double().cpu().numpy()
        return self.metric.function(given, columns[:, 0], columns[:, 1] > 0, self.censoring)


def measure_harrell(scores: Array, times: Array, events: Flags, censoring: Censoring) -> float:
    """Return Harrell's C: the share of comparable pairs whose earlier event has the higher score; equal scores count half.

    Source: Harrell et al., 1996, Multivariable Prognostic Models, Section 5.5; ties as in lifelines.
    """
    return _measure_concordance(scores, times, events, np.ones(len(times)))


def measure_uno(scores: Array, times: Array, events: Flags, censoring: Censoring) -> float:
    """Return Uno's C: Harrell's with each pair weighted by the inverse squared probability of no censoring before its event.

    Source: Uno et al., 2011, On the C-statistics for Evaluating Overall Adequacy of Risk Prediction Procedures.
    """
    return _measure_concordance(scores, times, events, censoring.weigh(times, 2))


def measure_time_auc(scores: Array, times: Array, events: Flags, censoring: Censoring) -> float:
    """Return the mean over three times of the AUC between rows with an event until then and rows without one.

    The times are the quartiles of the observed events. Each event is weighted by the inverse probability of no censoring before it.

    Source: Uno et al., 2007, Evaluating Prediction Rules for t-Year Survivors; Hung & Chiang, 2010.
    """
    if not events.any():
        return math.nan
    found = [
        measure_auc_at(time, scores, times, events, censoring) for time in np.quantile(times[events], (0.25, 0.5, 0.75))
    ]
    known = [value for value in found if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def measure_auc_at(time: float, scores: Array, times: Array, events: Flags, censoring: Censoring) -> float:
    """Return the AUC between rows with an event until a time and rows that are observed beyond it; NaN if one side is empty."""
    cases, controls = events & (times <= time), times > time
    weights = censoring.weigh(times[cases])
    if not controls.any() or not weights.sum() > 0:
        return math.nan
    below, level = _count_below(scores[controls], scores[cases])
    return float(weights @ (below + level / 2) / (weights.sum() * controls.sum()))


SURVIVAL_METRICS = {
    row.name: row
    for row in (
        SurvivalMetric("c_index", measure_harrell),
        SurvivalMetric("uno_c", measure_uno),
        SurvivalMetric("time_auc", measure_time_auc),
    )
}


def _measure_concordance(scores: Array, times: Array, events: Flags, weights: Array) -> float:
    right = total = 0.0
    # Rows with an event, the latest time first; what can be compared with them stands behind in time.
    for row in np.flatnonzero(events & (weights > 0)):
        later = (times > times[row]) | ((times == times[row]) & ~events)
        below, level = int((scores[later] < scores[row]).sum()), int((scores[later] == scores[row]).sum())
        right += weights[row] * (below + level / 2)
        total += weights[row] * int(later.sum())
    return right / total if total else math.nan


def _count_below(values: Array, bounds: Array) -> tuple[Array, Array]:
    """Return how many values lie below each bound, and how many are equal to it."""
    ordered = np.sort(values)
    below = np.searchsorted(ordered, bounds, side="left")
    return below.astype(np.float64), (np.searchsorted(ordered, bounds, side="right") - below).astype(np.float64)
