"""Metrics of rankings are scikit-learn's on each query, on random and degenerate input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score
from torch import Tensor

from autoloss.tasks.ranking import RANKING_METRICS, split_queries

RNG = np.random.default_rng(0)


def draw(rows: int, queries: int, levels: int, ties: bool) -> tuple[Tensor, Tensor]:
    scores = RNG.normal(size=rows)
    scores = np.round(scores) if ties else scores
    columns = [RNG.integers(0, levels, rows), RNG.integers(0, queries, rows)]
    return torch.tensor(scores), torch.tensor(np.stack(columns, 1), dtype=torch.float64)


def average(scores: Tensor, target: Tensor, of_query) -> float:
    found = []
    for query in target[:, 1].unique():
        rows = target[:, 1] == query
        relevance = target[rows, 0].numpy()
        if relevance.min() < relevance.max():
            found.append(of_query(relevance, scores[rows].numpy()))
    return float(np.mean(found))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("levels", [2, 4])
@pytest.mark.parametrize("queries", [1, 7, 40])
def test_values_are_those_of_scikit_learn(queries: int, levels: int, ties: bool):
    scores, target = draw(120, queries, levels, ties)
    for name, k in (("ndcg", None), ("ndcg5", 5), ("ndcg10", 10)):
        expected = average(scores, target, lambda y, s, k=k: ndcg_score(y[None], s[None], k=k))
        assert RANKING_METRICS[name](scores, target) == pytest.approx(expected)
    expected = average(scores, target, lambda y, s: average_precision_score(y > y.min(), s))
    assert RANKING_METRICS["map"](scores, target) == pytest.approx(expected)
    if levels == 2:
        assert RANKING_METRICS["auc"](scores, target) == pytest.approx(average(scores, target, roc_auc_score))


def test_of_graded_relevance_auc_is_the_share_of_pairs_in_order():
    scores, target = draw(60, 1, 5, True)
    ahead = target[:, None, 0] > target[None, :, 0]
    right = (scores[:, None] > scores[None, :]).double() + (scores[:, None] == scores[None, :]).double() / 2
    assert RANKING_METRICS["auc"](scores, target[:, :1]) == pytest.approx(float(right[ahead].mean()))


def test_the_reciprocal_rank_is_that_of_the_first_hit_and_ties_count_against_it():
    metric, relevance = RANKING_METRICS["mrr"], torch.tensor([0.0, 1, 0, 1])
    for scores, expected in (([4, 3, 2, 1], 1 / 2), ([1, 2, 3, 4], 1), ([1, 1, 1, 1], 1 / 3), ([2, 1, 2, 1], 1 / 3)):
        assert metric(torch.tensor(scores).float(), relevance) == pytest.approx(expected)


@pytest.mark.parametrize("name", RANKING_METRICS)
def test_degenerate_input(name: str):
    metric = RANKING_METRICS[name]
    one_each = torch.tensor([[1.0, 0], [0, 1], [2, 2]])
    assert math.isnan(metric(torch.randn(3), one_each))
    assert math.isnan(metric(torch.randn(3), torch.ones(3)))
    assert math.isnan(metric(torch.empty(0), torch.empty(0, 2)))
    for bad in (math.nan, math.inf):
        assert math.isnan(metric(torch.tensor([1.0, bad]), torch.tensor([1.0, 0.0])))
    # A query of one item, or of equal relevance, says nothing; the others count.
    target = torch.tensor([[1.0, 0], [0, 0], [5, 1], [3, 2], [3, 2]])
    assert metric(torch.tensor([2.0, 1, 0, 0, 9]), target) == 1.0
    assert metric(torch.tensor([[2.0], [1], [0], [0], [9]]), target) == 1.0
    assert len(list(split_queries(torch.zeros(5), target))) == 1
