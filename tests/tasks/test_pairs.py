"""A branch of pairs in a SupervisedTask: batches without a pair are skipped, counted and reported."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss import Data, Diverged, Recipe, Scored, SupervisedTask, Training, bind, parse
from autoloss.errors import RequestError
from autoloss.space.pairs import PairBranch
from autoloss.training.loop import Execution
from tests.tasks import conformance


def share_in_order(scores: Tensor, target: Tensor) -> float:
    scores = scores.flatten()
    ahead = target[:, None] > target[None, :]
    return float((scores[:, None] > scores[None, :])[ahead].float().mean()) if bool(ahead.any()) else math.nan


def make_task(rare: int, rows: int = 64, **others: object) -> SupervisedTask:
    """Make a task whose training data have so many rows of the value 1."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2 * rows, 3, generator=generator)
    target = (inputs[:, 0] > 0).float()
    train = torch.zeros(rows)
    train[:rare] = 1
    given = {
        "branch": PairBranch(measure=share_in_order),
        "standard": "baseline/ranknet",
        "recipe": Recipe(epochs=8, batch_size=8, learning_rate=0.1),
        "data": Data(rows_per_sample=min(32, rows)),
        **others,
    }
    valid, test = ((inputs[part], target[part]) for part in (slice(rows, None), slice(rows + rows // 2, None)))
    return SupervisedTask(lambda: nn.Linear(3, 1), (inputs[:rows], train), valid, test=test, **given)


def train(task: SupervisedTask, execution: Execution | None = None) -> Scored | Diverged:
    return task.train(bind({"main": parse("-y * log(p)")}, task.branches), Training(seed=0), execution)


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim):
    claim(make_task(32, recipe=Recipe(epochs=8, batch_size=16, learning_rate=0.1)))


@pytest.mark.parametrize("how", ["argument", "further metric"])
def test_trainings_and_rejection_measure_the_same_metric(how):
    shapes = set()

    def halved(scores: Tensor, target: Tensor) -> float:
        shapes.add((scores.ndim, target.ndim))
        return share_in_order(scores, target) / 2

    task = make_task(32, **({"metric": halved} if how == "argument" else {"also": {"halved": halved}}))
    task = task if how == "argument" else task.with_metric("halved")
    sample, branch = task.samples(1, 0)["main"][0], task.branches["main"]
    assert branch.metric(branch.ideal(sample.context), sample.context) == 0.5
    plain, found = train(make_task(32)), train(task)
    assert isinstance(plain, Scored)
    assert isinstance(found, Scored)
    assert found.score == plain.score / 2
    assert shapes == {(1, 1)}


@pytest.mark.parametrize(
    ("value", "named"), [(None, "returned None"), ("0.7", "a str"), ({}, "a dict"), (1j, "a complex")]
)
def test_a_measure_that_returns_no_number_is_named(value, named):
    task = make_task(32, branch=PairBranch(measure=lambda scores, target: value))
    with pytest.raises(RequestError, match=f"The metric.*{named}.*expected one number"):
        task.samples(1, 0)


def test_batches_without_a_pair_are_skipped_counted_and_reported():
    outcome = train(make_task(1))
    assert isinstance(outcome, Scored)
    # One of the eight batches of each of eight epochs has the row.
    assert outcome.also["skipped_batches"] == 56
    assert len(outcome.curve) == 8
    assert autoloss.check(make_task(1)).outcome.endswith("; 56 batches without a loss were skipped")
    assert "skipped_batches" not in train(make_task(32)).also


def test_a_loss_that_never_saw_a_pair_is_not_trained_to_the_end():
    few, many = train(make_task(0)), train(make_task(0, recipe=Recipe(epochs=50, batch_size=8)))
    assert few == Diverged(64, "none of the first 64 batches had a loss")
    assert many == Diverged(100, "none of the first 100 batches had a loss")
