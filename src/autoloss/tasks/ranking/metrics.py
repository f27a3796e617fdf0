"""Metrics of rankings: scores of items and their relevance → one float, higher is better.

The target has the columns `value`, the relevance, and `group`, the query; without queries all items are one group. Each metric is
that of one query, averaged over the queries in which some order is better than another; NaN if there is none, or if a score is not
finite. Values are those of scikit-learn on each query.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
OfQuery = Callable[[Array, Array], float]
"""(scores, relevance) of the items of one query → value."""


@dataclass(frozen=True, slots=True)
class RankingMetric:
    """A row of the table of metrics.

    Args:
        of_query: The metric of one query.
        needs_queries: Whether the metric is about the first places of a list; otherwise all items may be one group.
    """

    name: str
    of_query: OfQuery
    needs_queries: bool = True

    def __call__(self, scores: Tensor, target: Tensor) -> float:
        values = [self.of_query(one, relevance) for one, relevance in split_queries(scores, target)]
        return float(np.mean(values)) if values else math.nan

    def measure_lists(self, scores: Tensor, target: Tensor) -> Tensor | None:
        """Return the metric of each query in which some order is better than another; None without queries."""
        if target.ndim == 1 or target.shape[1] == 1:
            return None
        values = [self.of_query(one, relevance) for one, relevance in split_queries(scores, target)]
        return torch.tensor(values, dtype=torch.float64)


def split_queries(scores: Tensor, target: Tensor) -> Iterator[tuple[Array, Array]]:
    """Yield scores and relevance of each query with items of different relevance; nothing if a score is not finite.

    Args:
        scores: (N,) or (N, 1).
        target: (N,) or (N, 1), the relevance; or (N, 2), relevance and query.
    """
    given, columns = _flatten(scores), target.detach().double().cpu().numpy()
    columns = columns[:, None] if columns.ndim == 1 else columns
    if not np.isfinite(given).all():
        return
    groups = columns[:, 1] if columns.shape[1] > 1 else np.zeros(len(columns))
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    for rows in np.split(order, ends):
        relevance = columns[rows, 0]
        if len(rows) and relevance.min() < relevance.max():
            yield given[rows], relevance


def measure_ndcg(scores: Array, relevance: Array, k: int | None = None) -> float:
    """Return the discounted gain of the first k items over the best one; items of equal scores share their mean gain.

    The gain is the relevance itself, and the discount the binary logarithm of the rank plus one, as in scikit-learn.
    """
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
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(_find_hits(relevance)[order])
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    gained = np.diff(found[ends], prepend=0)
    return float((gained * found[ends] / (ends + 1)).sum() / found[-1])


def measure_reciprocal_rank(scores: Array, relevance: Array) -> float:
    """Return one over the place of the first hit; of equal scores the hit is the last."""
    best = scores[_find_hits(relevance)].max()
    return 1 / int((scores >= best).sum())


def measure_auc(scores: Array, relevance: Array) -> float:
    """Return the share of the pairs of different relevance that are in order; equal scores count half.

    With two values of the relevance it is the area under the ROC curve.
    """
    values = np.unique(relevance)
    if len(values) == 2:
        return _measure_area(scores, relevance == values[1])
    right = pairs = 0.0
    for value in values[1:]:
        low, high = scores[relevance < value], scores[relevance == value]
        right += _measure_area(np.concatenate([low, high]), np.arange(len(low) + len(high)) >= len(low)) * (
            len(low) * len(high)
        )
        pairs += len(low) * len(high)
    return right / pairs


def _measure_area(scores: Array, positive: NDArray[np.bool_]) -> float:
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    hits = int(positive.sum())
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * (len(scores) - hits)))


def _find_hits(relevance: Array) -> NDArray[np.bool_]:
    return relevance > relevance.min()


def _flatten(values: Tensor) -> Array:
    return values.detach().double().cpu().reshape(-1).numpy()


RANKING_METRICS = {
    row.name: row
    for row in (
        RankingMetric("ndcg", measure_ndcg),
        RankingMetric("ndcg5", partial(measure_ndcg, k=5)),
        RankingMetric("ndcg10", partial(measure_ndcg, k=10)),
        RankingMetric("map", measure_average_precision),
        RankingMetric("mrr", measure_reciprocal_rank),
        RankingMetric("auc", measure_auc, needs_queries=False),
        RankingMetric("average_precision", measure_average_precision, needs_queries=False),
    )
}
