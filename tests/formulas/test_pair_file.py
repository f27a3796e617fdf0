"""A loss over pairs as a file that imports torch alone: the branch's value and gradient, with groups, events and weights."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from torch import Tensor

import autoloss
from autoloss.formulas.python_file import to_python
from autoloss.report.page.shapes import draw_kind
from autoloss.space.loss import Loss, bind
from autoloss.space.pairs import PairBranch

CASES = {
    "ranknet": (PairBranch(), "-y * log(p)"),
    "differences": (PairBranch(activation="none", weight=2.0), "y * log(1 + exp(-p)) + mean_nhw(p)"),
    "queries": (PairBranch(columns=("value", "group")), "1 / (p + y)"),
    "ndcg of queries": (PairBranch(columns=("value", "group"), weigh="ndcg"), "-w * log(p) + mean_nhw(w)"),
    "events": (PairBranch(columns=("value", "event")), "y - p"),
    "weights of events": (PairBranch(columns=("value", "event", "weight"), weigh="item"), "-w * log(p * y)"),
    "few of the pairs": (PairBranch(limit=20, seed=3), "y / p"),
}


def draw(seed: int, count: int = 23) -> tuple[Tensor, dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    columns = {
        "value": torch.randint(5, (count,), generator=generator).float(),
        "event": torch.randint(2, (count,), generator=generator).float(),
        "group": torch.randint(4, (count,), generator=generator).float(),
        "weight": torch.rand(count, generator=generator),
    }
    return torch.randn(count, 1, generator=generator), columns


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_the_branchs(name: str, tmp_path: Path):
    branch, formula = CASES[name]
    loss = Loss.parse(formula, {"main": branch.leaves_and_roles})
    path = tmp_path / "order.py"
    path.write_text(to_python(loss, {"main": branch.form()}, title="Order", facts={}), encoding="utf-8")
    criterion = runpy.run_path(str(path))["OrderLoss"]()
    parameters = {"event": "events", "weight": "weights", "group": "groups"}
    for seed in range(5):
        scores, columns = draw(seed)
        scores.requires_grad_()
        target = torch.stack([columns[column] for column in branch.columns], dim=1)
        expected = bind(loss, {"main": branch})["main"](scores, branch.make_context(scores, target))
        given = {parameters[column]: columns[column] for column in branch.columns if column != "value"}
        if branch.weigh != "item":
            given.pop("weights", None)
        found = criterion(scores, columns["value"], **given)
        slopes = [torch.autograd.grad(one, scores)[0] for one in (found, expected)]
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*slopes)
    assert criterion(scores, torch.ones(23), **given).item() == 0 or "event" in branch.columns
    for wrong in (scores[:9], torch.zeros(23, 2)):
        with pytest.raises(ValueError, match=f"one number for each of {wrong.numel()} scores"):
            criterion(wrong, columns["value"], **given)
    with pytest.raises(ValueError, match="for each of 23 scores"):
        criterion(scores, columns["value"], **{**given, "groups": torch.zeros(9)})


def test_a_loss_is_exported_for_a_branch_of_pairs(tmp_path: Path):
    path = autoloss.export("baseline/lambdarank", tmp_path / "a.py", branches={"main": CASES["ndcg of queries"][0]})
    assert "criterion(scores, target)" in path.read_text()


def test_the_curve_of_a_loss_stands_beside_ranknets():
    for name in ("ranknet", "differences"):
        branch, formula = CASES[name]
        tree = Loss.parse(formula, {"main": branch.leaves_and_roles})["main"]
        shape = draw_kind(tree, branch.form().kind, "", "ours", "baseline/ranknet")
        assert shape is not None
        value, slope = shape.charts
        assert (value.x.label, value.title) == ("difference of the scores of a pair", "Value, one pair")
        assert [layer.name for layer in slope.layers][1] == "ours"
        assert "RankNet" in " ".join(layer.name for layer in value.layers)
