"""The task `survival`: a small network scores the risk of the rows of a table with times and events."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from autoloss.errors import RequestError
from autoloss.options import Count, declare
from autoloss.space.pairs import PairBranch
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.scores import (
    BundledTable,
    ScoreOptions,
    build_score_task,
    get_numbers,
    read_table,
    split_groups,
)
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.survival.metrics import SURVIVAL_METRICS, Censoring
from autoloss.tasks.tabular.data.table import ColumnsRead

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


@declare()
class SurvivalOptions(ScoreOptions):
    """Options of the task `survival`."""

    data: str | Path = "rossi"
    """One of the tables that lifelines installs (rossi, gbsg2, kidney_transplant, regimes), or the path of a CSV file."""
    time: str = ""
    """Column of the time of the event, or of the end of the observation; required for a CSV file."""
    event: str = ""
    """Column that is 1 where the event was observed, and 0 where the observation ended before; required for a CSV file."""
    batch_size: Count = 128
    """Rows per optimizer step."""
    rows_per_sample: Annotated[int, Field(ge=4)] = 64
    """Rows of a sample of the rejection protocol."""


def build_task(metric: str, options: SurvivalOptions) -> SupervisedTask:
    """Build the task of ordering rows by the time of their event.

    Raises:
        RequestError: An unknown name, a faulty file, or times and events of which nothing can be compared.
    """
    table, columns = read_table(
        str(options.data), BUNDLED, {"time": options.time, "event": options.event}, options, "survival"
    )
    times, events = read_target(table, columns["time"], columns["event"])
    splits = split_groups(np.arange(len(times)), options.split_seed, events.astype(np.int64))
    train = splits[0]
    censoring = Censoring.estimate(times[train], events[train])
    weights = censoring.weigh(times, WEIGHTS.get(metric, 0))
    counted = weights[train][events[train]]
    measures = {name: row.with_censoring(times[train], events[train]) for name, row in SURVIVAL_METRICS.items()}
    branch = PairBranch(columns=("value", "event"), limit=options.pairs, measure=measures.pop(metric))
    target = [times, events]
    if metric in WEIGHTS:
        branch = replace(branch, columns=("value", "event", "weight"), weigh="item")
        target.append(weights / max(counted.mean(), 1e-12))
    return build_score_task(
        table.inputs,
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


def read_target(table: ColumnsRead, time: str, event: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the times and whether the event was observed, (N,) each.

    Raises:
        RequestError: A time is negative or no number, an event is neither 0 nor 1, or no two rows can be compared.
    """
    times, events = get_numbers(table, time, least=0), get_numbers(table, event)
    for line, value in zip(table.lines, events, strict=True):
        if value not in (0, 1):
            raise RequestError(
                f"Line {line}, column {event!r}: {value:g}; expected 1 where the event was observed and 0 where the observation "
                "ended before. Recode the column."
            )
    observed = events > 0
    if len(times) < LEAST_ROWS or observed.sum() < 3:
        raise RequestError(
            f"Found {len(times)} rows and {observed.sum()} events in column {event!r}; train, valid and test together need at "
            f"least {LEAST_ROWS} rows and 3 events."
        )
    if not (times > times[observed].min()).any() and observed.all():
        raise RequestError(
            f"All times in column {time!r} are {times[0]:g}, so that no two rows can be compared. Give the column of the time of "
            "the event."
        )
    return times, observed


survival = TaskFactory(name="survival", options=SurvivalOptions, build=build_task)
