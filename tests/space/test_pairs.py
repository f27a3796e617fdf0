"""The branch of pairs: which pairs are compared, their weights, and the criterion, against sums written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.formulas.python_file import make_branch
from autoloss.formulas.simplify import simplify, simplify_loss
from autoloss.rejection.scale import move_half_to_ideal
from autoloss.space.branch import Sample
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss, bind
from autoloss.space.pair_lists import find_pairs, list_pairs
from autoloss.space.pairs import PairBranch
from autoloss.tasks.ranking import RANKING_METRICS
from autoloss.zoo import resolve

CPU = torch.device("cpu")


def pairs_of(branch: PairBranch, target: Tensor) -> set[tuple[int, int]]:
    context = branch.make_context(torch.zeros(len(target)), target)
    found = list(zip(context["first"].tolist(), context["second"].tolist(), strict=True))
    assert len(set(found)) == len(found)
    return set(found)


def compute(loss: object, branch: PairBranch, scores: Tensor, target: Tensor) -> Tensor:
    return bind({"main": loss}, {"main": branch})["main"](scores, branch.make_context(scores, target))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weight": -1.0}, "weight is -1.0; expected"),
        ({"weight": "a"}, "weight is 'a'; expected"),
        ({"columns": ("value", "relevance")}, "columns is"),
        ({"columns": "value"}, "columns is 'value'; expected"),
    ],
)
def test_what_a_branch_of_pairs_cannot_be_is_named(wrong: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        PairBranch(**wrong)


@pytest.mark.parametrize("events", [[1.0, 2, 2], [0, -1, 1], [0, 0.5, 2]])
def test_events_are_0_and_1(events: list[float]):
    target = torch.stack([torch.arange(3.0), torch.tensor(events)], dim=1)
    with pytest.raises(RequestError, match=r"column event has values from .* expected 1 where the event was observed"):
        PairBranch(columns=("value", "event")).make_context(torch.zeros(3, 1), target)


def test_the_larger_value_comes_first_and_ties_are_left_out():
    assert pairs_of(PairBranch(), torch.tensor([1.0, 3.0, 1.0, 0.0])) == {(1, 0), (1, 2), (1, 3), (0, 3), (2, 3)}


def test_items_without_a_number_are_left_out():
    value, event = torch.tensor([1.0, math.nan, 0.0]), torch.tensor([1, 1, 0])
    assert [part.tolist() for part in find_pairs(value, None, None, 10, 0)] == [[0], [2]]
    assert [part.tolist() for part in find_pairs(value, event, None, 10, 0)] == [[], []]


def test_only_items_of_one_group_are_compared():
    branch = PairBranch(columns=("value", "group"))
    target = torch.tensor([[1.0, 7], [0, 7], [2, -3], [0, -3], [1, -3], [5, 1]])
    assert pairs_of(branch, target) == {(0, 1), (2, 3), (2, 4), (4, 3)}


def test_the_earlier_event_comes_first_and_censoring_forbids_pairs():
    branch = PairBranch(columns=("value", "event"))
    target = torch.tensor([[1.0, 1], [2, 0], [3, 1], [3, 0], [3, 1], [4, 0]])
    assert pairs_of(branch, target) == {(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (2, 3), (4, 3), (2, 5), (4, 5)}


@pytest.mark.parametrize("groups", [None, torch.tensor([3, 1, 3, 1, 1, 9] * 30)], ids=["one", "three"])
def test_beyond_the_limit_pairs_are_drawn_alike_and_from_one_group(groups: Tensor | None):
    all_pairs = {
        frozenset(pair) for pair in zip(*map(Tensor.tolist, list_pairs(groups, 180, 10**6, 0, CPU)), strict=True)
    }
    same = (lambda i, j: True) if groups is None else lambda i, j: groups[i] == groups[j]
    assert all_pairs == {frozenset((i, j)) for i in range(180) for j in range(i) if same(i, j)}
    first, second = list_pairs(groups, 180, 3000, 0, CPU)
    assert len(first) == 3000
    assert {frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True)} <= all_pairs
    # Each group stands for as many pairs as it has.
    if groups is not None:
        share = torch.stack([(groups[first] == one).float().mean() for one in (1, 3, 9)])
        sizes = torch.tensor([90.0, 60.0, 30.0])
        torch.testing.assert_close(share, sizes * (sizes - 1) / (sizes * (sizes - 1)).sum(), atol=0.03, rtol=0)
    again, other = list_pairs(groups, 180, 3000, 0, CPU), list_pairs(groups, 180, 3000, 1, CPU)
    assert torch.equal(again[0], first)
    assert not torch.equal(other[0], first)


def test_many_items_need_no_square_of_their_number():
    first, second = list_pairs(None, 200_000, 1000, 0, CPU)
    assert len(first) == 1000
    assert not bool((first == second).any())
    groups = torch.arange(200_000) // 3
    assert len(list_pairs(groups, 200_000, 10**6, 0, CPU)[0]) == 199_999


@pytest.mark.parametrize("count", [0, 1])
def test_no_items_or_one_make_no_pair(count: int):
    for groups in (None, torch.zeros(count)):
        assert not len(list_pairs(groups, count, 100, 0, CPU)[0])


def test_ranknet_is_the_mean_softplus_of_the_pairs_in_any_order_of_items():
    scores, target = torch.tensor([0.3, -1.0, 2.0], requires_grad=True), torch.tensor([1.0, 0.0, 1.0])
    expected = (F.softplus(-(scores[0] - scores[1])) + F.softplus(-(scores[2] - scores[1]))) / 2
    losses = {
        activation: compute(parsed, PairBranch(activation=activation), scores, target)
        for activation, parsed in (("sigmoid", Loss("-y * log(p)")), ("none", Loss("y * log(1 + exp(-p))")))
    }
    for loss in losses.values():
        torch.testing.assert_close(loss, expected)
    (slope,) = torch.autograd.grad(losses["sigmoid"], scores)
    torch.testing.assert_close(slope, torch.autograd.grad(expected, scores)[0])


def test_a_batch_without_a_pair_has_a_loss_of_0_and_no_gradient():
    scores, branch = torch.randn(4, 1, requires_grad=True), PairBranch()
    for text in ("-y * log(p)", "y * log(mean_nhw(p))", "y / p"):
        loss = compute(Loss(text), branch, scores, torch.ones(4))
        (slope,) = torch.autograd.grad(loss, scores)
        assert loss.item() == 0
        assert not bool(slope.any())
    assert branch.is_empty(branch.make_context(scores, torch.ones(4)))


def test_the_weight_is_the_change_of_ndcg_or_that_of_the_first_item():
    scores, value = torch.tensor([0.1, 0.4, 0.3, 9.0]), torch.tensor([2.0, 0.0, 1.0, 3.0])
    target = torch.stack([value, torch.tensor([0.0, 0, 0, 1])], dim=1)
    branch = PairBranch(columns=("value", "group"), weigh="ndcg")
    context = branch.make_context(scores, target)
    rank, best = {1: 1, 2: 2, 0: 3}, 2 / math.log2(2) + 1 / math.log2(3)
    for i, j, weight in zip(*(context[name].tolist() for name in ("first", "second", "pair_weight")), strict=True):
        change = abs(value[i] - value[j]) * abs(1 / math.log2(1 + rank[i]) - 1 / math.log2(1 + rank[j])) / best
        assert weight == pytest.approx(float(change))
    branch = PairBranch(columns=("value", "event", "weight"), weigh="item")
    context = branch.make_context(torch.zeros(2), torch.tensor([[1.0, 1, 4.0], [2.0, 0, 7.0]]))
    assert context["pair_weight"].tolist() == [4.0]
    assert set(branch.leaves(torch.zeros(2), context)) == {"y", "p", "w"} == set(branch.leaves_and_roles)


def test_the_ideal_prediction_orders_all_pairs():
    for branch, target in (
        (PairBranch(), torch.tensor([3.0, 1.0, 2.0, 2.0])),
        (PairBranch(columns=("value", "event")), torch.tensor([[1.0, 1], [2, 0], [2, 1], [0.5, 0]])),
    ):
        ideal = branch.ideal({"target": target})
        assert ideal.shape == (4, 1, 1, 1)
        p = branch.leaves(ideal, branch.make_context(ideal, target))["p"]
        assert bool((p > 0.99).all())
        sample = Sample(torch.zeros(4, 1, 1, 1), branch.make_context(ideal, target))
        assert bool(move_half_to_ideal(branch, sample, torch.Generator().manual_seed(0)).prediction.abs().max() <= 1)


def test_forms_are_stored_and_formulas_simplified_by_ranges():
    branch = PairBranch(columns=("value", "group", "weight"), weigh="item", limit=77, weight=2.0)
    form = branch.form()
    assert BranchForm(**form.to_dict()) == form
    assert make_branch(form) == branch
    assert form.kind == "pairs"
    loss = Loss.parse("abs(w) * mean_c(max_pool(abs(p)))", {"main": form.leaves})
    assert str(simplify_loss(loss, {"main": form})["main"]) == "p * w"
    assert str(simplify("abs(w) * abs(p)", "pair_difference")) == "w * abs(p)"
    with pytest.raises(RequestError):
        BranchForm(**{**form.to_dict(), "pairs": {**form.to_dict()["pairs"], "columns": ["x"]}})


def test_losses_of_differences_are_losses_of_probabilities_too():
    scores, target = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([1.0, 0.0, 1.0])
    difference = torch.tensor([1.3, 3.0])
    for name, expected in (
        ("baseline/auc_hinge", (1 - difference).clamp(min=0)),
        ("baseline/auc_square", (1 - difference).square()),
        ("baseline/auc_exponential", (-difference).exp()),
        ("baseline/ranknet", F.softplus(-difference)),
        ("shelf/pair_exponential", (-difference).exp()),
        ("shelf/pair_sigmoid", -difference.sigmoid()),
    ):
        for activation in ("sigmoid", "none"):
            branch = PairBranch(activation=activation)
            losses = resolve(name, {"main": branch})[1]
            found = bind(losses, {"main": branch})["main"](scores, branch.make_context(scores, target))
            torch.testing.assert_close(found, expected.mean(), msg=f"{name} {activation}")


def test_coxs_partial_likelihood_with_ties_is_breslows():
    scores = torch.tensor([0.2, -0.5, 1.0, 0.1], dtype=torch.float64)
    target = torch.tensor([[2.0, 1], [2, 1], [3, 0], [1, 1]], dtype=torch.float64)
    branch = PairBranch(columns=("value", "event"))
    later, everyone = scores[[0, 1, 2]].logsumexp(0), scores.logsumexp(0)
    expected = (later - scores[0] + later - scores[1] + everyone - scores[3]) / 3
    (cox,) = resolve("baseline/cox", {"main": branch})[1].values()
    torch.testing.assert_close(cox(scores, {"target": target}), expected)
    assert cox(scores, {"target": target * torch.tensor([1.0, 0])}).item() == 0
    begun = target - torch.tensor([1.0, 0])
    torch.testing.assert_close(cox(scores, {"target": begun.to(torch.uint8)}), expected)


def test_a_batch_without_rows_has_no_pair():
    for columns in (("value",), ("value", "event"), ("value", "group", "weight")):
        branch = PairBranch(columns=columns)
        assert branch.is_empty(branch.make_context(torch.zeros(0, 1), torch.zeros(0, len(columns))))


def test_ndcg_of_negative_relevance_is_refused():
    values = torch.tensor([-1.0, 0, 1])
    with pytest.raises(RequestError, match="expected relevance of at least 0"):
        PairBranch(weigh="ndcg").make_context(torch.zeros(3, 1), values)
    with pytest.raises(RequestError, match="expected relevance of at least 0"):
        RANKING_METRICS["ndcg"](torch.zeros(3), values)


def test_listnet_pointwise_and_the_margin_of_auc():
    scores = torch.tensor([0.2, -0.5, 1.0, 0.1, 0.7])
    value, group = torch.tensor([1.0, 0, 1, 0, 0]), torch.tensor([0.0, 0, 1, 1, 2])
    branch, target = PairBranch(columns=("value", "group")), torch.stack([value, group], dim=1)
    found = {
        name: resolve(f"baseline/{name}", {"main": branch})[1]["main"](scores, {"target": target})
        for name in ("listnet", "pointwise", "auc_margin")
    }
    lists = [F.cross_entropy(scores[None, part], torch.tensor([0])) for part in ([0, 1], [2, 3])]
    torch.testing.assert_close(found["listnet"], sum(lists) / 2)
    torch.testing.assert_close(found["pointwise"], F.binary_cross_entropy_with_logits(scores, value))
    p = scores.sigmoid()
    one, other = p[value == 1], p[value == 0]
    expected = one.var(correction=0) + other.var(correction=0) + (1 + other.mean() - one.mean()).square()
    torch.testing.assert_close(found["auc_margin"], expected)
    signed = torch.stack([2 * value - 1, group], dim=1)
    (pointwise,) = resolve("baseline/pointwise", {"main": branch})[1].values()
    torch.testing.assert_close(pointwise(scores, {"target": signed}), found["pointwise"])


def test_what_does_not_fit_is_refused():
    for options in (
        {"columns": ("event",)},
        {"columns": ("value", "value")},
        {"weigh": "item"},
        {"limit": 0},
        {"limit": 10**12},
    ):
        with pytest.raises(RequestError):
            PairBranch(**options)
    with pytest.raises(RequestError, match="columns value, group"):
        PairBranch(columns=("value", "group")).make_context(torch.zeros(3), torch.zeros(3))
    with pytest.raises(RequestError, match="make_context"):
        PairBranch().leaves(torch.zeros(3), {"target": torch.zeros(3)})
    with pytest.raises(RequestError, match="times, with the column event; this branch has the columns value"):
        resolve("baseline/cox", {"main": PairBranch()})
    for name in ("listnet", "pointwise", "auc_margin"):
        with pytest.raises(RequestError, match="relevance, without the column event"):
            resolve(f"baseline/{name}", {"main": PairBranch(columns=("value", "event"))})
    from autoloss.space.activated import ActivatedBranch

    with pytest.raises(RequestError, match="ranking and survival"):
        resolve("baseline/listnet", {"main": ActivatedBranch()})
    with pytest.raises(RequestError, match="needs w"):
        resolve("baseline/lambdarank", {"main": PairBranch()})
    assert "baseline/ranknet" in zoo.names()
