"""Volumes (N, C, D, H, W) and sequences (N, C, L): pools and means over all axes, alike in both engines and exported."""

from __future__ import annotations

import itertools
import runpy

import pytest
import torch
from torch import Tensor, nn

from autoloss.formulas.python_file import to_python
from autoloss.rejection.engines import correlation_score
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss, bind
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import parse
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training
from tests.tasks.toy import accuracy

POOLS = ["-max_pool(y) * log(max_pool(p))", "abs(max_pool(y) - min_pool(p)) * mean_nhw(p) - y * log(p)"]


@pytest.mark.parametrize("shape", [(1, 2, 3, 4, 5), (2, 1, 1, 4, 3), (1, 2, 6, 1, 1)])
def test_a_pool_takes_the_maximum_of_all_neighbours(shape: tuple[int, ...]):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = OPERATORS["max_pool"].function(values)
    spaces = [range(size) for size in shape[2:]]
    for place in itertools.product(*spaces):
        near = tuple(slice(max(0, at - 1), at + 2) for at in place)
        assert torch.equal(found[(..., *place)], values[(..., *near)].amax(dim=(2, 3, 4)))
    assert torch.equal(OPERATORS["min_pool"].function(values), -OPERATORS["max_pool"].function(-values))
    mean = OPERATORS["mean_nhw"].function(values)
    torch.testing.assert_close(mean[0, :, 0, 0, 0], values.transpose(0, 1).flatten(1).mean(1))


def closeness(prediction: Tensor, target: Tensor) -> float:
    """Return the accuracy, or for one channel the negative distance of the probability."""
    if prediction.ndim > target.ndim:
        return accuracy(prediction, target)
    return -float((prediction - target).abs().mean())


@pytest.mark.parametrize("shape", [(1, 3, 4, 5, 6), (2, 3, 3, 4, 4), (1, 3, 5, 1, 1), (1, 1, 4, 3, 3)])
@pytest.mark.parametrize("formula", POOLS)
def test_engines_agree_on_volumes(formula: str, shape: tuple[int, ...]):
    generator = torch.Generator().manual_seed(1)
    classes = max(2, shape[1])
    branch = ActivatedBranch(channels=shape[1], measure=closeness)
    samples = [
        # Rounded: equal neighbours test which of them takes the gradient.
        Sample(
            torch.randn(shape, generator=generator).round(decimals=1),
            {"target": torch.randint(classes, (shape[0], *shape[2:]), generator=generator)},
        )
        for _ in range(2)
    ]
    scores = [correlation_score(parse(formula), branch, samples, engine=engine) for engine in ("reference", "fast")]
    assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def volumes(seed: int) -> tuple[Tensor, Tensor]:
    images = torch.randn(12, 1, 4, 5, 6, generator=torch.Generator().manual_seed(seed))
    return images, (images[:, 0] > 0).long()


def test_a_task_of_volumes_trains_and_its_loss_is_exported(tmp_path):
    recipe = Recipe(epochs=6, batch_size=4, learning_rate=0.5)
    made = SupervisedTask(lambda: nn.Conv3d(1, 2, 1), volumes(0), volumes(1), "softmax", accuracy, recipe=recipe)
    assert [tuple(sample.prediction.shape) for sample in made.samples(2, 0)["main"]] == [(1, 2, 4, 5, 6)] * 2
    outcome = made.train(bind(Loss("-y * log(p)"), made.branches), Training(seed=0))
    assert isinstance(outcome, Scored)
    assert outcome.score > 0.9
    for formula in POOLS:
        path = tmp_path / "of_volumes.py"
        path.write_text(
            to_python(Loss(formula), {"main": BranchForm()}, title="Of volumes", facts={}), encoding="utf-8"
        )
        names = runpy.run_path(str(path))
        prediction, target = torch.randn(2, 2, 3, 4, 5), volumes(0)[1][:2, :3, :4, :5]
        expected = Loss(formula).criterion(activation="softmax")(prediction, target)
        torch.testing.assert_close(names["OfVolumesLoss"]()(prediction, target), expected)


def test_a_sequence_is_pooled_along_its_length():
    inputs = torch.randn(24, 3, 20, generator=torch.Generator().manual_seed(0))
    pair = inputs, (inputs[:, 0] > 0).long()
    made = SupervisedTask(lambda: nn.Conv1d(3, 2, 1), pair, pair, "softmax", accuracy)
    (sample,) = made.samples(1, 0)["main"]
    leaves = made.branches["main"].leaves(sample.prediction, sample.context)
    pooled = parse("max_pool(p)").evaluate(leaves)
    expected = nn.functional.max_pool1d(leaves["p"].squeeze(-1), 3, 1, 1)
    assert torch.equal(pooled.squeeze(-1), expected)


@pytest.mark.parametrize("shape", [(1, 9), (1, 2, 9)], ids=["classes", "values"])
def test_the_middle_of_a_sequence_has_the_middle_of_its_target(shape: tuple[int, ...]):
    places = torch.arange(9.0).expand(shape)
    middle = Sample(
        torch.arange(9.0).view(1, 1, 9, 1).expand(1, 2, 9, 1), {"target": places, "shares": torch.ones(2)}
    ).crop([5, 1])
    assert torch.equal(middle.prediction.squeeze(3)[0, 0], torch.arange(2.0, 7.0))
    assert torch.equal(middle.context["target"], places[..., 2:7])
    assert torch.equal(middle.context["shares"], torch.ones(2))


def test_sequences_of_different_lengths_are_samples_of_one_length():
    generator = torch.Generator().manual_seed(0)
    items = []
    for length in [3, 5, 9, 4, 6, 7] * 4:
        values = torch.randn(1, length, generator=generator)
        items.append((values, (values[0] > 0).long()))
    task = SupervisedTask(
        lambda: nn.Conv1d(1, 2, 1),
        items,
        items,
        "softmax",
        accuracy,
        recipe=Recipe(epochs=1, batch_size=1, evaluation_batch=1),
    )
    found = task.samples(3, 0)["main"]
    length = found[0].prediction.shape[2]
    assert {tuple(one.prediction.shape) for one in found} == {(1, 2, length, 1)}
    assert {tuple(one.context["target"].shape) for one in found} == {(1, length)}
