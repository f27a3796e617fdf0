"""The task `survival`: a small network scores the risk of the rows of a table with times and events, some of them censored.

Its metrics map risk scores of rows, their times and events to one float, higher is better. The target has the columns `value`, the
time, and `event`, 1 where the event was observed, 0 where the observation ended before. A higher score means an earlier event. NaN
where nothing can be compared, or if a score is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.options import Count, declare
from autoloss.space.pairs import PairBranch
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.table_task import (
    BundledTable,
    Rows,
    ScoreOptions,
    build_score_task,
    get_numbers,
    read_table,
    split_groups,
)
from autoloss.tasks.tabular.metrics import flatten
from autoloss.tasks.tabular.table import ColumnsRead

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Censoring:
    """The probability of staying uncensored beyond each of some times, in order, estimated by Kaplan and Meier's method."""

    times: Array
    probabilities: Array

    @classmethod
    def estimate(cls, times: Array, events: Flags) -> Censoring:
        """Estimate it from rows; at equal times, an event comes before a censoring.

        >>> Censoring.estimate(np.array([1.0, 2.0, 3.0]), np.array([True, False, True])).probabilities.tolist()
        [1.0, 0.5, 0.5]
        """
        distinct, places = np.unique(times, return_inverse=True)
        # They may come as whole numbers, of which ~ is no negation.
        events = np.asarray(events) > 0
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
    """A row of the table of metrics: a function of (scores, times, events, censoring)."""

    function: Callable[[Array, Array, Flags, Censoring], float]

    def with_censoring(self, times: Array, events: Flags) -> Callable[[Tensor, Tensor], float]:
        """Return the metric with the censoring of training rows, as a function of scores and target.

        Scores are (N,) or (N, 1), the target (N, K) with time and event as its first columns.
        """
        censoring = Censoring.estimate(times, events)

        def measure(scores: Tensor, target: Tensor) -> float:
            given, columns = flatten(scores), target.detach().double().cpu().numpy()
            if not np.isfinite(given).all() or not len(given):
                return math.nan
            return self.function(given, columns[:, 0], columns[:, 1] > 0, censoring)

        return measure


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
    """Return the mean over the quartiles of the observed events of the AUC between rows with an event until then and without.

    Each event is weighted by the inverse probability of no censoring before it (Uno et al., 2007, Evaluating Prediction
    Rules for t-Year Survivors; Hung & Chiang, 2010).
    """
    if not events.any():
        return math.nan
    quartiles = np.quantile(times[events], (0.25, 0.5, 0.75))
    found = [measure_auc_at(time, scores, times, events, censoring) for time in quartiles]
    known = [value for value in found if not math.isnan(value)]
    return float(np.mean(known)) if known else math.nan


def measure_auc_at(time: float, scores: Array, times: Array, events: Flags, censoring: Censoring) -> float:
    """Return the AUC between rows with an event until a time and rows that are observed beyond it; NaN if one side is empty."""
    cases, controls = events & (times <= time), times > time
    weights = censoring.weigh(times[cases])
    if not controls.any() or not weights.sum() > 0:
        return math.nan
    ordered = np.sort(scores[controls])
    below, until = (np.searchsorted(ordered, scores[cases], side) for side in ("left", "right"))
    return float(weights @ (below + until) / (2 * weights.sum() * controls.sum()))


SURVIVAL_METRICS = {
    "c_index": SurvivalMetric(measure_harrell),
    "uno_c": SurvivalMetric(measure_uno),
    "time_auc": SurvivalMetric(measure_time_auc),
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


BUNDLED = {
    "rossi": BundledTable("lifelines", "datasets/rossi.csv", {"time": "week", "event": "arrest"}),
    "gbsg2": BundledTable("lifelines", "datasets/gbsg2.csv", {"time": "time", "event": "cens"}),
    "kidney_transplant": BundledTable(
        "lifelines", "datasets/kidney_transplant.csv", {"time": "time", "event": "death"}
    ),
    "regimes": BundledTable(
        "lifelines",
        "datasets/dd.csv",
        {"time": "duration", "event": "observed"},
        ("ctryname", "cowcode2", "politycode", "ehead", "leaderspellreg"),
    ),
}
"""Tables that lifelines installs: recidivism, breast cancer, kidney transplants, and the time in office of governments."""
WEIGHTS = {"uno_c": 2, "time_auc": 1}
"""Metric → power of the inverse probability of no censoring that it weights an event by."""
LEAST_ROWS = 10
FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}
"""Value of the column of events, in lower case → whether the event was observed."""


@declare()
class SurvivalOptions(ScoreOptions):
    """Options of the task `survival`."""

    data: str | Path = "rossi"
    """One of the tables that lifelines installs (rossi, gbsg2, kidney_transplant, regimes), or the path of a CSV file."""
    time: str = ""
    """Column of the time of the event, or of the end of the observation; required for a CSV file."""
    event: str = ""
    """Column that is 1 or true where the event was observed, else 0 or false; required for a CSV file."""
    batch_size: Count = 128
    """Rows per optimizer step."""
    steps: Count = 100
    """Optimizer steps, rounded up to whole epochs; with more of them small tables are overfitted."""
    rows_per_sample: Annotated[int, Field(ge=4)] = 64
    """Rows of a sample of the rejection protocol."""


def build_task(metric: str, options: SurvivalOptions) -> SupervisedTask:
    """Build the task of ordering rows by the time of their event."""
    asked = {"time": options.time, "event": options.event}
    table, columns = read_table(str(options.data), BUNDLED, asked, options, "survival")
    times, events, splits = read_target(table, columns["time"], columns["event"], options.split_seed)
    train = splits[0]
    weights = Censoring.estimate(times[train], events[train]).weigh(times, WEIGHTS.get(metric, 0))
    counted = weights[train][events[train]]
    measures = {name: row.with_censoring(times[train], events[train]) for name, row in SURVIVAL_METRICS.items()}
    branch = PairBranch(columns=("value", "event"), limit=options.pairs, measure=measures.pop(metric))
    target = [times, events]
    if metric in WEIGHTS:
        branch = replace(branch, columns=("value", "event", "weight"), weigh="item")
        target.append(weights / max(counted.mean(), 1e-12))
    return build_score_task(
        table,
        columns,
        np.stack(target, axis=1).astype(np.float64),
        splits,
        branch,
        measures,
        options,
        batch_size=options.batch_size,
        sample_size=options.rows_per_sample,
        name="survival",
        standard="baseline/cox",
    )


def read_target(table: ColumnsRead, time: str, event: str, seed: int) -> tuple[Array, Flags, tuple[Rows, Rows, Rows]]:
    """Return the times and whether the event was observed, (N,) each, and the rows of train, valid and test."""
    times, values = get_numbers(table, time), [str(value).lower() for value in table.targets[event]]
    for line, value in zip(table.lines, values, strict=True):
        if value not in FLAGS:
            raise RequestError(
                f"Line {line}, column {event!r}: {value!r}; expected 1 or true where the event was observed, and 0 or false where "
                "the observation ended before. Recode the column."
            )
    observed = np.array([FLAGS[value] for value in values])
    if len(times) < LEAST_ROWS or observed.sum() < 3:
        raise RequestError(
            f"Found {len(times)} rows and {observed.sum()} events in column {event!r}; train, valid and test together need at "
            f"least {LEAST_ROWS} rows and 3 events."
        )
    splits = split_groups(np.arange(len(times)), seed, observed)
    for name, rows in zip(("train", "valid", "test"), splits, strict=True):
        first = times[rows][observed[rows]].min()
        if not (times[rows] > first).any():
            raise RequestError(
                f"No time in column {time!r} is later than that of the first event, {first:g}, in the {name} split, so no two "
                "of its rows can be compared. Give the column of the time of the event, or another split_seed."
            )
    return times, observed, splits


survival = TaskFactory(name="survival", options=SurvivalOptions, build=build_task)
