"""What any Task must satisfy: claims about one, as functions, so that a user's own can be held to them too."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.branch import Branch, BranchLoss, Criterion, Role, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.tasks.task import Diverged, Scored, Task, Training


def branches_are_named_and_have_roles(task: Task) -> None:
    assert len(task.branches) > 0
    assert list(task.branches) == list(task.branches)
    assert set(task.standard) == set(task.branches)
    for branch in task.branches.values():
        roles = set(branch.leaves_and_roles.values())
        assert Role.BOTH in roles or {Role.PREDICTION, Role.TARGET} <= roles
        assert math.isfinite(branch.weight)
        assert branch.weight > 0


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
    valid = task.train(trees(task), Training(seed=0))
    test = task.train(trees(task), Training(seed=0, split="test"))
    assert isinstance(valid, Scored)
    assert isinstance(test, Scored)
    assert valid.curve == test.curve
    assert (valid.score, dict(valid.also)) != (test.score, dict(test.also))


def unknown_names_are_refused(task: Task) -> None:
    with pytest.raises(RequestError, match="split"):
        task.train(trees(task), Training(seed=0, split="tset"))
    with pytest.raises(RequestError, match="schedule"):
        task.train(trees(task), Training(seed=0, schedule="fulll"))


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
    assert outcome == task.train(trees(task), Training(seed=0))
    assert 1 <= len(outcome.curve) <= 100


def a_pickled_task_is_the_same_task(task: Task) -> None:
    other = cloudpickle.loads(cloudpickle.dumps(task))
    assert other.train(trees(other), Training(seed=0)) == task.train(trees(task), Training(seed=0))
    assert identical(other.samples(2, seed=0), task.samples(2, seed=0))


CLAIMS: tuple[Callable[[Task], None], ...] = (
    branches_are_named_and_have_roles,
    samples_cover_every_branch,
    samples_follow_from_the_seed,
    samples_can_gain,
    leaves_are_differentiable_and_of_one_shape,
    ideal_has_the_predictions_shape,
    training_follows_from_the_seed_alone,
    training_leaves_the_global_generators_alone,
    splits_differ_in_what_is_measured,
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
