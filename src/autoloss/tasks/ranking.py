"""The task `ranking`: a small network scores the rows of a table, by queries with a graded relevance or all together.

Its metrics map scores of items and their relevance to one float, higher is better. The target has the columns `value`, the
relevance, and `group`, the query; without queries all items are one group. Each metric is that of one query, averaged over the
queries in which some order is better than another; NaN if there is none, or if a score is not finite. Values are scikit-learn's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.options import Count, declare
from autoloss.space.pair_lists import NEGATIVE_RELEVANCE
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
from autoloss.tasks.tabular.metrics import flatten, measure_area, measure_precision

Array = NDArray[np.float64]
OfQuery = Callable[[Array, Array], float]
"""(scores, relevance) of the items of one query → value."""


@dataclass(frozen=True, slots=True)
class RankingMetric:
    """A row of the table of metrics: the metric of one query; without queries, all items may be one group."""

    of_query: OfQuery
    needs_queries: bool = True

    def __call__(self, scores: Tensor, target: Tensor) -> float:
        values = [self.of_query(*query) for query in split_queries(scores, target)]
        return float(np.mean(values)) if values else math.nan

    def measure_lists(self, scores: Tensor, target: Tensor) -> Tensor | None:
        """Return the metric of each query in which some order is better than another; None without queries."""
        if target.ndim == 1 or target.shape[1] == 1:
            return None
        return torch.tensor([self.of_query(*query) for query in split_queries(scores, target)], dtype=torch.float64)


def split_queries(scores: Tensor, target: Tensor) -> Iterator[tuple[Array, Array]]:
    """Yield scores and relevance of each query with items of different relevance; nothing if a score is not finite.

    Scores are (N,) or (N, 1); the target (N,) or (N, 1), the relevance, or (N, 2), relevance and query.
    """
    given, columns = flatten(scores), target.detach().double().cpu().numpy()
    columns = columns[:, None] if columns.ndim == 1 else columns
    if not np.isfinite(given).all():
        return
    groups = columns[:, 1] if columns.shape[1] > 1 else np.zeros(len(columns))
    order = np.argsort(groups, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(groups[order])) + 1):
        relevance = columns[rows, 0]
        if len(rows) and relevance.min() < relevance.max():
            yield given[rows], relevance


def measure_ndcg(scores: Array, relevance: Array, k: int | None = None) -> float:
    """Return the discounted gain of the first k items over the best one; items of equal scores share their mean gain.

    The gain is the relevance itself, and the discount the binary logarithm of the rank plus one, as in scikit-learn.
    """
    if relevance.min() < 0:
        raise RequestError(NEGATIVE_RELEVANCE)
    discounts = 1 / np.log2(np.arange(2, len(scores) + 2))
    if k is not None:
        discounts[k:] = 0
    best = float(np.sort(relevance)[::-1] @ discounts)
    _, places, counts = np.unique(-scores, return_inverse=True, return_counts=True)
    gains = np.bincount(places, relevance) / counts
    ends = np.cumsum(counts)
    shared = np.diff(np.concatenate([[0.0], np.cumsum(discounts)])[ends], prepend=0)
    return float(gains @ shared) / best


def measure_average_precision(scores: Array, relevance: Array) -> float:
    """Return the average precision where relevance above the query's least is a hit; equal scores share a threshold."""
    return measure_precision(scores, relevance > relevance.min())


def measure_reciprocal_rank(scores: Array, relevance: Array) -> float:
    """Return one over the place of the first hit; of equal scores the hit is the last."""
    hits = relevance > relevance.min()
    return 1 / (1 + int((scores[~hits] >= scores[hits].max()).sum()))


def measure_auc(scores: Array, relevance: Array) -> float:
    """Return the share of the pairs of different relevance that are in order; equal scores count half.

    With two values of the relevance it is the area under the ROC curve.
    """
    values = np.unique(relevance)
    if len(values) == 2:
        return measure_area(scores, relevance == values[1])
    right = pairs = 0.0
    for value in values[1:]:
        kept, high = relevance <= value, relevance == value
        count = int(high.sum()) * int((kept & ~high).sum())
        right += measure_area(scores[kept], high[kept]) * count
        pairs += count
    return right / pairs


RANKING_METRICS = {
    "ndcg": RankingMetric(measure_ndcg),
    "ndcg5": RankingMetric(partial(measure_ndcg, k=5)),
    "ndcg10": RankingMetric(partial(measure_ndcg, k=10)),
    "map": RankingMetric(measure_average_precision),
    "mrr": RankingMetric(measure_reciprocal_rank),
    "auc": RankingMetric(measure_auc, needs_queries=False),
    "average_precision": RankingMetric(measure_average_precision, needs_queries=False),
}

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
    """Build the task of ordering rows by their relevance."""
    wanted = {"target": options.target, "query": options.query}
    table, columns = read_table(str(options.data), BUNDLED, wanted, options, "ranking")
    relevance = get_numbers(table, columns["target"])
    has_queries = "query" in columns
    measure = RANKING_METRICS[metric]
    if measure.needs_queries and not has_queries:
        fit = ", ".join(name for name, row in RANKING_METRICS.items() if not row.needs_queries)
        raise RequestError(
            f"The metric {metric} is about the first places of each query; give the column of queries as --set query=<column>, or "
            f"take a metric of all rows: {fit}."
        )
    # Each part gets its share of the queries that say something, or of the rows that are relevant.
    if has_queries:
        # Identifiers may be whole numbers of more digits than a float holds.
        queries = np.unique(np.array(table.targets[columns["query"]], dtype=object), return_inverse=True)[1]
        strata = find_useful(relevance, queries, columns["target"])
    else:
        queries = np.arange(len(relevance))
        strata = find_relevant(relevance, columns["target"])
    splits = split_groups(queries, options.split_seed, strata)
    names = ("value", "group") if has_queries else ("value",)
    fitting = {name: row for name, row in RANKING_METRICS.items() if has_queries or not row.needs_queries}
    also = {name: row for name, row in fitting.items() if name != metric}
    weigh = "ndcg" if metric.startswith("ndcg") else "none"
    branch = PairBranch(columns=names, weigh=weigh, limit=options.pairs, measure=measure)
    return build_score_task(
        table,
        columns,
        np.stack([relevance, queries][: len(names)], axis=1).astype(np.float64),
        splits,
        branch,
        also,
        options,
        batch_size=options.batch_size or (16 if has_queries else 128),
        sample_size=options.size_of_sample or (16 if has_queries else 64),
        name="ranking",
        # Chosen by cross-validation; on rows held back the softmax and RankNet are level (docs/measurements.md).
        standard="baseline/listnet" if has_queries and set(relevance) <= {0, 1} else "baseline/ranknet",
        lists=queries if has_queries else None,
    )


def find_useful(relevance: Array, queries: Rows, column: str) -> NDArray[np.bool_]:
    """Return whether the items of each query, counted from 0, differ in relevance; check that enough do."""
    sizes, distinct = np.bincount(queries), np.unique(np.stack([queries, relevance], axis=1), axis=0)
    useful = np.bincount(distinct[:, 0].astype(np.int64)) > 1
    if useful.sum() < LEAST_QUERIES:
        raise RequestError(
            f"Only {useful.sum()} of {len(sizes)} queries have items of different relevance in column {column!r}, and "
            f"{(sizes == 1).sum()} have one item; at least {LEAST_QUERIES} are needed. Is this the column of queries?"
        )
    return useful


def find_relevant(relevance: Array, column: str) -> NDArray[np.bool_]:
    """Return whether each row has more than the least relevance, or the median; check that each split can have both kinds."""
    # Where hardly two rows share a relevance, any two can be compared.
    bound = relevance.min() if (relevance == relevance.min()).sum() >= 3 else np.median(relevance)
    relevant = relevance > bound
    if not 3 <= relevant.sum() <= len(relevant) - 3:
        raise RequestError(
            f"{relevant.sum()} of {len(relevant)} rows have more than {bound:g} in column {column!r}; "
            "train, valid and test each need one that has and one that has not, or no two rows can be compared."
        )
    return relevant


ranking = TaskFactory(name="ranking", options=RankingOptions, build=build_task)
