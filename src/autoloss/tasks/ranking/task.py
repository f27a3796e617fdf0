"""The task `ranking`: a small network scores the rows of a table, by queries with a graded relevance or all together."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autoloss.errors import RequestError
from autoloss.options import Count, declare
from autoloss.space.pairs import PairBranch
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.ranking.metrics import RANKING_METRICS
from autoloss.tasks.scores import (
    BundledTable,
    Rows,
    ScoreOptions,
    build_score_task,
    get_numbers,
    read_table,
    split_groups,
)
from autoloss.tasks.supervised import SupervisedTask

BUNDLED = {
    "modechoice": BundledTable(
        "statsmodels", "datasets/modechoice/modechoice.csv", {"target": "choice", "query": "individual"}
    ),
    "fair": BundledTable("statsmodels", "datasets/fair/fair.csv", {"target": "affairs"}),
}
"""Tables that statsmodels installs: the means of travel that 210 people chose, and a survey on marriages, without queries."""
LEAST_QUERIES = 5
"""Queries with items of different relevance, at least."""


@declare()
class RankingOptions(ScoreOptions):
    """Options of the task `ranking`."""

    data: str | Path = "modechoice"
    """One of the tables that statsmodels installs (modechoice, fair), or the path of a CSV file."""
    target: str = ""
    """Column of the relevance, numbers from 0; required for a CSV file."""
    query: str | None = None
    """Column of the query: items are compared with those of the same query. Without it, all rows are compared."""
    batch_size: Count | None = None
    """Queries per optimizer step; rows without a column of queries. If none, 16 queries or 128 rows."""
    size_of_sample: Count | None = None
    """Queries of a sample of the rejection protocol, or rows. If none, 16 queries or 64 rows."""


def build_task(metric: str, options: RankingOptions) -> SupervisedTask:
    """Build the task of ordering rows by their relevance.

    Raises:
        RequestError: An unknown name, a faulty file, a metric of queries without a column of them, or nothing to compare.
    """
    wanted = {"target": options.target, "query": options.query}
    table, columns = read_table(str(options.data), BUNDLED, wanted, options, "ranking")
    relevance = get_numbers(table, columns["target"], least=0)
    has_queries = "query" in columns
    measure = RANKING_METRICS[metric]
    if measure.needs_queries and not has_queries:
        fit = ", ".join(name for name, row in RANKING_METRICS.items() if not row.needs_queries)
        raise RequestError(
            f"The metric {metric} is about the first places of each query; give the column of queries as --set query=<column>, or "
            f"take a metric of all rows: {fit}."
        )
    queries = np.arange(len(relevance))
    if has_queries:
        queries = np.unique(np.array(table.targets[columns["query"]]), return_inverse=True)[1]
    check_relevance(relevance, queries if has_queries else np.zeros_like(queries), columns["target"])
    # Rows are split by relevance too: the rare ones belong into each part.
    splits = split_groups(
        queries, options.split_seed, None if has_queries else (relevance > relevance.min()).astype(int)
    )
    names = ("value", "group") if has_queries else ("value",)
    also = {
        name: row for name, row in RANKING_METRICS.items() if name != metric and (has_queries or not row.needs_queries)
    }
    branch = PairBranch(
        columns=names, weigh="ndcg" if metric.startswith("ndcg") else "none", limit=options.pairs, measure=measure
    )
    return build_score_task(
        table.inputs,
        np.stack([relevance, queries][: len(names)], axis=1).astype(np.float64),
        splits,
        branch,
        also,
        options,
        batch_size=options.batch_size or (16 if has_queries else 128),
        sample_size=options.size_of_sample or (16 if has_queries else 64),
        name="ranking",
        standard="baseline/ranknet",
        baselines=("baseline/listnet", "baseline/pointwise", *(() if has_queries else ("baseline/auc_margin",))),
        lists=queries if has_queries else None,
    )


def check_relevance(relevance: np.ndarray, queries: Rows, column: str) -> None:
    """Check that enough queries have items of different relevance.

    Raises:
        RequestError: Too few have.
    """
    names, members = np.unique(queries, return_inverse=True)
    most, least = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    np.maximum.at(most, members, relevance)
    np.minimum.at(least, members, relevance)
    useful = int((most > least).sum())
    if len(names) == 1 and not useful:
        raise RequestError(
            f"All values in column {column!r} are {relevance[0]:g}, so that no two rows can be compared."
        )
    if len(names) > 1 and useful < LEAST_QUERIES:
        single = int((np.bincount(members) == 1).sum())
        raise RequestError(
            f"Only {useful} of {len(names)} queries have items of different relevance in column {column!r}, and {single} have one "
            f"item; at least {LEAST_QUERIES} are needed. Is this the column of queries?"
        )


ranking = TaskFactory(name="ranking", options=RankingOptions, build=build_task)
