"""Weights of items: what a loss gives them is measured, and given to another loss."""

from __future__ import annotations

import pytest
import torch

from autoloss import ActivatedBranch, Sample, bind, parse
from autoloss.errors import RequestError
from autoloss.space.branch import BranchLoss
from autoloss.space.item_weights import BINS, find_groups, measure_weights, weigh_items

SHARES = torch.tensor([0] * 40 + [1] * 16 + [2] * 8)


def samples(channels: int, target: torch.Tensor) -> list[Sample]:
    generator = torch.Generator().manual_seed(0)
    return [
        Sample(0.3 * torch.randn(len(target), channels, 1, 1, generator=generator), {"target": target})
        for _ in range(4)
    ]


def bound(formula: str, branch: ActivatedBranch) -> BranchLoss:
    return bind({"main": parse(formula)}, {"main": branch})["main"]


def test_class_weights_of_balanced_cross_entropy_are_the_inverse_shares():
    branch = ActivatedBranch(channels=3)
    found = measure_weights(
        bound("-y * log(p) / mean_nhw(y)", branch),
        bound("-y * log(p)", branch),
        branch,
        samples(3, SHARES[:, None, None]),
        "class",
        seed=0,
    )
    assert found is not None
    assert [weight / found[0] for weight in found] == pytest.approx([1, 2.5, 5], rel=0.02)


def test_confidence_weights_of_the_absolute_error_are_the_confidence():
    # The gradient of -p is p times that of -log p.
    branch = ActivatedBranch(channels=3)
    loss, standard = bound("-y * p", branch), bound("-y * log(p)", branch)
    found = measure_weights(loss, standard, branch, samples(3, SHARES[:, None, None]), "confidence", seed=0)
    assert found is not None
    assert len(found) == BINS
    assert list(found[1:9]) == sorted(found[1:9])
    evenly = measure_weights(loss, loss, branch, samples(3, SHARES[:, None, None]), "confidence", seed=0)
    assert set(evenly or ()) == {1.0}


def test_labels_have_two_groups_each_and_values_have_no_classes():
    labels = ActivatedBranch(activation="sigmoid", channels=2)
    context = {"target": torch.tensor([[1.0, 0.0]])}
    groups = find_groups(labels, "class", torch.zeros(1, 2), context)
    assert groups is not None
    assert groups.flatten().tolist() == [1, 2]
    values = ActivatedBranch(activation="none", channels=2)
    assert find_groups(values, "class", torch.zeros(1, 2), context) is None
    assert find_groups(values, "confidence", torch.zeros(1, 2), context) is not None
    with pytest.raises(RequestError, match="grouping of items"):
        find_groups(values, "colour", torch.zeros(1, 2), context)


def test_one_logit_is_one_item():
    branch = ActivatedBranch(activation="sigmoid", channels=1)
    loss = weigh_items(bound("-(y * log(p) + (1 - y) * log(1 - p))", branch), branch, "class", [0.0, 2.0])
    prediction = torch.zeros(2, requires_grad=True)
    plain = bound("-(y * log(p) + (1 - y) * log(1 - p))", branch)(prediction, {"target": torch.tensor([0.0, 1.0])})
    value = loss(prediction, {"target": torch.tensor([0.0, 1.0])})
    assert value.item() == plain.item()
    value.backward()
    assert prediction.grad is not None
    assert prediction.grad[0] == 0
    assert prediction.grad[1] < 0
