"""With several branches, or where nothing is learnt, losses are compared as the known loss that is best there is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

import autoloss
from autoloss.errors import RunError
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.space.loss_text import split_branches, split_factor
from autoloss.tasks.task import Task
from autoloss.training.training import Scored, Training

QUICK = {
    "rejection.steps": 20,
    "rejection.threshold": 0.01,
    "rejection.samples": 2,
    # What a search begins with is looked at, and no more.
    "limits.explored": 20,
}
ROWS = 24


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(1) == target).double().mean().item()


def closeness(prediction: Tensor, target: Tensor) -> float:
    return -(prediction - target).abs().mean().item()


class BalancedTask(Task):
    """'Trains' by looking at the gradients of both branches: the score falls with the distance between their norms.

    Args:
        spread: Standard deviation of the amounts, which the gradient of squared errors grows with.
    """

    name = "balanced"
    standard = {"kind": "baseline/ce", "amount": "baseline/mse"}
    tunes_learning_rate = True

    def __init__(self, spread: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self._amounts = spread * torch.randn(ROWS, 1, generator=generator)
        self._kinds = torch.arange(ROWS) % 3
        self._branches = {
            "kind": ActivatedBranch(activation="softmax", channels=3, measure=accuracy),
            "amount": ActivatedBranch(activation="none", channels=1, measure=closeness),
        }

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        predicted = 0.01 * torch.randn(ROWS, 3, 1, 1, generator=torch.Generator().manual_seed(seed))
        return {
            "kind": [Sample(predicted, {"target": self._kinds})] * count,
            "amount": [Sample(predicted[:, :1], {"target": self._amounts})] * count,
        }

    def train(self, criterion: Criterion, training: Training, execution=None, observe=None) -> Scored:
        norms = {}
        for name, (sample, *_) in self.samples(1, 0).items():
            prediction = sample.prediction.flatten(1).requires_grad_(True)
            (slope,) = torch.autograd.grad(criterion[name](prediction, sample.context), prediction)
            norms[name] = slope.norm().item()
        return Scored(-abs(math.log(norms["amount"] / norms["kind"])), {}, ((1, 0.0),))


def search(task: Task, path: Path, start: Sequence[str] = (), **settings) -> tuple[autoloss.Search, list[str]]:
    said: list[str] = []
    found = autoloss.search(
        task,
        evaluations=20,
        start=start,
        workers=0,
        final=False,
        directory=path,
        settings={**QUICK, **settings},
        say=said.append,
    )
    return found, [text for text in said if text.startswith("Losses are compared at")]


def test_the_balance_is_that_of_a_known_loss_which_is_ahead(tmp_path):
    found, (text,) = search(BalancedTask(30.0), tmp_path / "run")
    # All of these have slopes that do not grow with the outliers.
    assert any(name in text for name in ("absolute error", "Huber loss", "quantile loss"))
    weights = found.configuration.search.branch_weights
    assert weights["kind"] == 1
    # The root of the mean square of a quantile loss's slopes, 0.05 and 0.95, beside 1 of the others.
    slope = 0.67 if "quantile loss" in text else 1.0
    assert weights["amount"] == pytest.approx(slope / (2 * 30), rel=0.3)
    first = split_branches(found.history[0].candidate.loss)
    assert split_factor(first["kind"])[0] == 1
    assert split_factor(first["amount"])[0] == pytest.approx(weights["amount"], rel=0.05)


class TwoAmountsTask(BalancedTask):
    """Neither branch's squared error is any good: with another loss on one of them the score is half of that with both."""

    name = "two_amounts"
    standard = {"low": "baseline/mse", "high": "baseline/mse"}

    def __init__(self) -> None:
        super().__init__(30.0)
        self._branches = dict.fromkeys(self.standard, self._branches["amount"])

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        return dict.fromkeys(self.standard, super().samples(count, seed)["amount"])

    def train(self, criterion: Criterion, training: Training, execution=None, observe=None) -> Scored:
        (sample,) = super().samples(1, 0)["amount"]
        # Squares, by any factor, fall to a quarter half the way to the target.
        far, near = (
            [criterion[name](share * self._amounts, sample.context).item() for name in self.standard]
            for share in (0.0, 0.5)
        )
        squares = [one == pytest.approx(4 * other) for one, other in zip(far, near, strict=True)]
        return Scored(squares.count(False) / 2, {}, ((1, 0.0),))


def test_a_search_starts_from_the_known_loss_of_several_branches_that_is_ahead(tmp_path):
    found, (text,) = search(TwoAmountsTask(), tmp_path / "run")
    assert "has 1.0000 on the valid split, the standard loss 0.0000" in text
    standard, joined = (candidate.candidate.loss for candidate in found.history[:2])
    assert standard.count("square") == 2
    assert "square(add(p" not in joined
    assert "baseline/mse" not in found.settings.start[1].label


def test_the_known_loss_takes_no_given_loss_away(tmp_path):
    given = [f"low: abs(add(p, neg(mul(y, {one})))); high: square(p)" for one in ("1", "add(1, 1)")]
    found, _ = search(TwoAmountsTask(), tmp_path / "run", start=given, **{"evolution.initial": 2})
    labels = [one.label for one in found.settings.start]
    assert [labels[0], labels[2]] == given
    assert len(labels) == found.configuration.evolution.initial == 3


class OneAmountTask(TwoAmountsTask):
    """The squared error learns nothing.

    Args:
        gain: What any other loss learns.
    """

    name = "one_amount"
    standard = {"main": "baseline/mse"}

    def __init__(self, gain: float) -> None:
        super().__init__()
        self._gain = gain

    def untrained(self, seed: int) -> float:
        return 0.0

    def train(self, criterion: Criterion, training: Training, execution=None, observe=None) -> Scored:
        return Scored(2 * self._gain * super().train(criterion, training).score, {}, ((1, 0.0),))


def test_a_search_goes_on_with_a_known_loss_where_the_standard_one_learns_nothing(tmp_path):
    found, (text,) = search(OneAmountTask(1.0), tmp_path / "run")
    assert "has 1.0000 on the valid split, the standard loss 0.0000" in text
    assert "branches" not in text
    assert found.history[1].outcome.score == 1
    with pytest.raises(RunError, match=r"learns nothing in any of .* nor does a known loss that was tried: .* is 0"):
        search(OneAmountTask(0.0), tmp_path / "other")


def test_a_standard_loss_that_is_not_behind_keeps_its_balance(tmp_path):
    found, told = search(BalancedTask(0.4), tmp_path / "run")
    assert not told
    assert not found.configuration.search.weights


def test_a_rate_that_was_chosen_stays(tmp_path):
    found, told = search(BalancedTask(30.0), tmp_path / "run", **{"search.learning_rate": 0.5})
    assert not told
    assert found.configuration.search.learning_rate == 0.5
