"""The contract of `Task`, as functions that each check one claim about a task: a user's own task can be checked with them too.

A task is small enough for this when one training takes about a second.
"""

from __future__ import annotations

import functools
import json
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.branch import Branch, BranchLoss, Criterion, Role, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import bind, scale_criterion
from autoloss.space.parsing import parse
from autoloss.tasks.task import Picture, Task
from autoloss.training.checkpoints import NETWORK, Checkpoints
from autoloss.training.loop import Execution
from autoloss.training.training import Diverged, Scored, Stopped, Training


def branches_are_named_and_have_roles(task: Task) -> None:
    assert len(task.branches) > 0
    assert list(task.branches) == list(task.branches)
    assert set(task.standard) == set(task.branches)
    for branch in task.branches.values():
        roles = set(branch.leaves_and_roles.values())
        assert Role.BOTH in roles or {Role.PREDICTION, Role.TARGET} <= roles
        assert math.isfinite(branch.weight)
        assert branch.weight > 0


def what_a_task_offers_is_declared(task: Task) -> None:
    assert task.name
    assert task.splits[0] == "valid"
    assert task.schedules[0] == "proxy"
    assert len(set(task.splits)) == len(task.splits)
    assert task.also is None or len(set(task.also)) == len(task.also)
    for losses in task.baselines:
        assert losses
        assert losses.keys() <= task.branches.keys()
    for schedule in task.schedules:
        steps = task.steps(Training(seed=0, schedule=schedule))
        assert steps is None or steps >= 1
        # Plain values: they are stored with a retraining.
        assert json.loads(json.dumps(dict(task.recipe(schedule)))) is not None


def samples_cover_every_branch(task: Task) -> None:
    drawn = task.samples(3, seed=0)
    assert set(drawn) == set(task.branches)
    assert all(len(samples) == 3 for samples in drawn.values())


def samples_follow_from_the_seed(task: Task) -> None:
    first = task.samples(2, seed=1)
    disturb()
    assert identical(first, task.samples(2, seed=1))
    assert not identical(first, task.samples(2, seed=2))


def samples_can_gain(task: Task) -> None:
    for branch, sample in every_sample(task):
        assert sample.prediction.ndim == 4
        assert bool(torch.isfinite(sample.prediction).all())
        assert not sample.prediction.requires_grad
        initial = branch.metric(sample.prediction, sample.context)
        assert math.isfinite(initial)
        assert initial < branch.metric(branch.ideal(sample.context), sample.context)


def leaves_are_differentiable_and_of_one_shape(task: Task) -> None:
    for branch, sample in every_sample(task):
        prediction = sample.prediction.clone().requires_grad_()
        leaves = branch.leaves(prediction, sample.context)
        assert set(leaves) == set(branch.leaves_and_roles)
        shapes = {leaf.shape for leaf in leaves.values()}
        assert len(shapes) == 1
        assert len(next(iter(shapes))) == 4
        for name, role in branch.leaves_and_roles.items():
            depends = leaves[name].requires_grad
            assert depends is (role is not Role.TARGET) or role is Role.BOTH
        mask = branch.mask(sample.context)
        assert mask is None or torch.broadcast_shapes(mask.shape, next(iter(shapes))) == next(iter(shapes))
        assert branch.divisor(sample.context) > 0


def ideal_has_the_predictions_shape(task: Task) -> None:
    for branch, sample in every_sample(task):
        assert branch.ideal(sample.context).shape == sample.prediction.shape


def training_follows_from_the_seed_alone(task: Task) -> None:
    criterion = trees(task)
    first = task.train(criterion, Training(seed=3))
    assert isinstance(first, Scored)
    disturb()
    assert task.train(criterion, Training(seed=3)) == first
    assert task.train(criterion, Training(seed=4)) != first


def training_leaves_the_global_generators_alone(task: Task) -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    task.train(trees(task), Training(seed=0))
    task.samples(1, seed=0)
    assert bool((torch.get_rng_state() == before[0]).all())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[1:]


def splits_differ_in_what_is_measured(task: Task) -> None:
    valid = train_plainly(task)
    test = task.train(trees(task), Training(seed=0, split="test"))
    assert isinstance(valid, Scored)
    assert isinstance(test, Scored)
    assert valid.curve == test.curve
    assert (valid.score, dict(valid.also)) != (test.score, dict(test.also))


def further_metrics_are_those_declared(task: Task) -> None:
    outcome = train_plainly(task)
    assert isinstance(outcome, Scored)
    assert task.also is None or outcome.also.keys() <= set(task.also)


def steps_are_those_that_run(task: Task) -> None:
    assert task.steps(Training(seed=0)) in (None, run_steps(task, Training(seed=0))[-1])


def a_shorter_training_is_followed_or_refused(task: Task) -> None:
    half = Training(seed=0, fidelity=0.5)
    if not task.shortens:
        with pytest.raises(RequestError, match="fidelity"):
            task.train(trees(task), half)
        return
    whole = run_steps(task, Training(seed=0))
    for fidelity in (0.1, 0.5, 0.75):
        short = Training(seed=0, fidelity=fidelity)
        steps = run_steps(task, short)
        assert steps == list(range(1, max(1, round(fidelity * len(whole))) + 1))
        assert task.steps(short) in (None, len(steps))


def a_shorter_training_follows_from_the_seed_and_is_not_the_whole_one(task: Task) -> None:
    if not task.shortens:
        return
    half = Training(seed=3, fidelity=0.5)
    first = task.train(trees(task), half)
    assert isinstance(first, Scored)
    disturb()
    assert task.train(trees(task), half) == first
    assert first.curve != task.train(trees(task), Training(seed=3)).curve
    assert first != task.train(trees(task), Training(seed=4, fidelity=0.5))


def a_shorter_training_begins_as_the_whole_one_does(task: Task) -> None:
    """With the same network and the same first batch; the rate of the second step is that of a short schedule."""
    if not task.shortens:
        return
    losses: dict[float, float] = {}
    for fidelity in (0.5, 1.0):
        training = Training(seed=3, fidelity=fidelity)
        task.train(trees(task), training, observe=lambda step, loss, at=fidelity: losses.setdefault(at, loss))
    assert losses[0.5] == losses[1.0]


def another_learning_rate_is_followed_or_refused(task: Task) -> None:
    slow = Training(seed=0, learning_rate=0.1)
    if not task.tunes_learning_rate:
        with pytest.raises(RequestError, match="learning rate"):
            task.train(trees(task), slow)
        return
    outcome = task.train(trees(task), slow)
    assert isinstance(outcome, Scored)
    assert outcome == task.train(trees(task), slow)
    assert outcome.curve != train_plainly(task).curve


def a_scale_is_left_to_the_caller(task: Task) -> None:
    scale = dict.fromkeys(task.branches, 3.0)
    assert task.train(trees(task), Training(seed=0, scale=scale)) == train_plainly(task)


def norms_are_replayed_where_that_is_declared(task: Task) -> None:
    criterion = trees(task)
    training = Training(seed=0, paced_by="another loss")
    if not task.replays_norms:
        return
    # Whatever factor a loss has, its steps are as long as those of the loss that paces it.
    scaled = {name: scale_criterion({"main": loss}, {"main": 4.0})["main"] for name, loss in criterion.items()}
    first, second = (task.train(one, training, pacing=criterion) for one in (criterion, scaled))
    alone = train_plainly(task)
    assert isinstance(first, Scored)
    assert isinstance(second, Scored)
    assert isinstance(alone, Scored)
    assert first == alone
    assert second.score == pytest.approx(alone.score, abs=0.05)


def an_execution_is_followed_or_declared_to_be_ignored(task: Task) -> None:
    plain = train_plainly(task)
    with tempfile.TemporaryDirectory() as place:
        keep = Checkpoints(directory=Path(place), is_due=lambda step: False)
        assert task.train(trees(task), Training(seed=0), Execution(checkpoints=keep)) == plain
        assert (Path(place) / NETWORK).is_file() is (task.execution is not None)
    if task.execution is not None:
        assert task.train(trees(task), Training(seed=0), task.execution) == plain


def the_score_before_training_is_a_number_that_follows_from_the_seed(task: Task) -> None:
    first = task.untrained(3)
    disturb()
    assert first == task.untrained(3)
    assert first is None or math.isfinite(first)


def pictures_have_one_shape_or_there_are_none(task: Task) -> None:
    try:
        pictures = task.pictures(trees(task), Training(seed=0), 2)
    except RequestError:
        return
    assert not isinstance(pictures, Diverged)
    assert len(pictures) == 2
    for picture in pictures:
        assert isinstance(picture, Picture)
        assert picture.image.shape[0] in (1, 3)
        assert picture.image.shape[1:] == picture.target.shape == picture.prediction.shape
        assert not picture.prediction.is_floating_point()
    with pytest.raises(RequestError, match="split"):
        task.pictures(trees(task), Training(seed=0, split="tset"), 1)


def unknown_names_are_refused(task: Task) -> None:
    with pytest.raises(RequestError, match="split"):
        task.train(trees(task), Training(seed=0, split="tset"))
    with pytest.raises(RequestError, match="schedule"):
        task.train(trees(task), Training(seed=0, schedule="fulll"))
    with pytest.raises(RequestError, match=f"{task.folds} fold"):
        task.train(trees(task), Training(seed=0, fold=task.folds))
    with pytest.raises(RequestError, match="loss for the branch"):
        task.train({}, Training(seed=0))


def hand_written_losses_train(task: Task) -> None:
    outcome = task.train(bind(hand_written(task), task.branches), Training(seed=0))
    assert isinstance(outcome, Scored)
    assert math.isfinite(outcome.score)
    assert all(math.isfinite(value) for value in outcome.also.values())


def a_loss_that_is_no_number_stops_the_training_where_it_shows(task: Task) -> None:
    for branch in task.branches:
        for step in (1, 3):
            seen: list[int] = []
            criterion = {**trees(task), branch: spoilt(trees(task)[branch], step)}
            outcome = task.train(criterion, Training(seed=0), observe=lambda step, loss, seen=seen: seen.append(step))
            assert isinstance(outcome, Diverged)
            assert outcome.step == step
            assert "loss" in outcome.reason
            assert seen == list(range(1, step))


def a_gradient_that_is_no_number_stops_the_training_too(task: Task) -> None:
    for branch in task.branches:

        def loss(prediction: Tensor, context: object) -> Tensor:
            # The value is 0 and finite; the root's gradient at 0 is not.
            return (prediction - prediction.detach()).abs().sum().sqrt()

        outcome = task.train({**trees(task), branch: loss}, Training(seed=0))
        assert isinstance(outcome, Diverged)
        assert outcome.step == 1
        assert "gradient" in outcome.reason


def observers_see_every_step_and_change_nothing(task: Task) -> None:
    seen: list[tuple[int, float]] = []
    outcome = task.train(trees(task), Training(seed=0), observe=lambda step, loss: seen.append((step, loss)))
    assert isinstance(outcome, Scored)
    assert [step for step, _ in seen] == list(range(1, len(seen) + 1))
    assert set(outcome.curve) <= set(seen)
    assert outcome == train_plainly(task)
    assert 1 <= len(outcome.curve) <= 100


def a_pickled_task_is_the_same_task(task: Task) -> None:
    other = cloudpickle.loads(cloudpickle.dumps(task))
    assert other.train(trees(other), Training(seed=0)) == train_plainly(task)
    assert identical(other.samples(2, seed=0), task.samples(2, seed=0))
    for name in ("name", "standard", "baselines", "splits", "schedules", "also", "tunes_learning_rate", "shortens"):
        assert getattr(other, name) == getattr(task, name)
    assert other.execution == task.execution


CLAIMS: tuple[Callable[[Task], None], ...] = (
    branches_are_named_and_have_roles,
    what_a_task_offers_is_declared,
    samples_cover_every_branch,
    samples_follow_from_the_seed,
    samples_can_gain,
    leaves_are_differentiable_and_of_one_shape,
    ideal_has_the_predictions_shape,
    training_follows_from_the_seed_alone,
    training_leaves_the_global_generators_alone,
    splits_differ_in_what_is_measured,
    further_metrics_are_those_declared,
    steps_are_those_that_run,
    a_shorter_training_is_followed_or_refused,
    a_shorter_training_follows_from_the_seed_and_is_not_the_whole_one,
    a_shorter_training_begins_as_the_whole_one_does,
    another_learning_rate_is_followed_or_refused,
    a_scale_is_left_to_the_caller,
    norms_are_replayed_where_that_is_declared,
    an_execution_is_followed_or_declared_to_be_ignored,
    the_score_before_training_is_a_number_that_follows_from_the_seed,
    pictures_have_one_shape_or_there_are_none,
    unknown_names_are_refused,
    hand_written_losses_train,
    a_loss_that_is_no_number_stops_the_training_where_it_shows,
    a_gradient_that_is_no_number_stops_the_training_too,
    observers_see_every_step_and_change_nothing,
    a_pickled_task_is_the_same_task,
)


def trees(task: Task) -> Criterion:
    """Bind a tree that any branch can be trained with: (p − y)², or e − i of boxes."""
    return bind({name: _tree(branch) for name, branch in task.branches.items()}, task.branches)


@functools.lru_cache(maxsize=4)
def train_plainly(task: Task) -> Scored | Diverged | Stopped:
    """Train by the whole schedule with seed 0, once for all claims about a task: equal trainings are equal, as one claim says."""
    return task.train(trees(task), Training(seed=0))


@functools.lru_cache(maxsize=4)
def run_steps(task: Task, training: Training) -> list[int]:
    """Train, and return the steps that were taken."""
    seen: list[int] = []
    assert isinstance(task.train(trees(task), training, observe=lambda step, loss: seen.append(step)), Scored)
    return seen


def hand_written(task: Task) -> dict[str, Expression | BranchLoss]:
    def absolute(branch: Branch) -> BranchLoss:
        def loss(prediction: Tensor, context: dict[str, Tensor]) -> Tensor:
            leaves = branch.leaves(prediction, context)
            if "p" in leaves:
                return (leaves["p"] - leaves["y"]).abs().mean()
            return 1 - (leaves["i"] / leaves["u"].clamp(min=1e-6)).mean()

        return loss

    return {name: absolute(branch) for name, branch in task.branches.items()}


def _tree(branch: Branch) -> Expression:
    return parse("(p - y) ** 2") if "p" in branch.leaves_and_roles else parse("e - i", leaves=["i", "u", "e"])


def spoilt(loss: BranchLoss, at: int) -> BranchLoss:
    """Return the loss, NaN from its call number `at` on."""
    calls = 0

    def spoilt_loss(prediction: Tensor, context: dict[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        value = loss(prediction, context)
        return value * math.nan if calls >= at else value

    return spoilt_loss


def every_sample(task: Task) -> list[tuple[Branch, Sample]]:
    drawn = task.samples(2, seed=0)
    return [(task.branches[name], sample) for name, samples in drawn.items() for sample in samples]


def identical(one: object, other: object) -> bool:
    """Say whether two sets of samples are bitwise equal."""
    return [_flat(one)] == [_flat(other)]


def _flat(drawn: object) -> list[object]:
    return [
        (name, sample.prediction.tolist(), {key: value.tolist() for key, value in sample.context.items()})
        for name, samples in drawn.items()  # type: ignore[attr-defined]
        for sample in samples
    ]


def disturb() -> None:
    """Draw from every global generator, as whatever ran before may have."""
    torch.rand(7)
    random.random()
    np.random.random(3)
