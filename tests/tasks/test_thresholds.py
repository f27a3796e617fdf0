"""The tuned threshold: where it exists, that it is chosen on the valid split, and that its choice does not flatter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.loss import Loss, bind
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.thresholds import Batches, move_threshold, tune_threshold
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training

TUNED = Training(seed=0, split="test", tuned_threshold=True)


def f_two(prediction: Tensor, target: Tensor) -> float:
    """Return F2, which wants more found than precise."""
    found, wanted = prediction.reshape(-1) > 0.5, target.reshape(-1) > 0.5
    hits = (found & wanted).sum()
    return (5 * hits / (4 * wanted.sum() + found.sum()).clamp(min=1)).item()


def rows(seed: int, count: int = 400) -> tuple[Tensor, Tensor]:
    """Return rows of which one in ten is wanted, and hard to tell."""
    generator = torch.Generator().manual_seed(seed)
    target = (torch.rand(count, 1, generator=generator) < 0.1).float()
    return torch.randn(count, 3, generator=generator) + 1.2 * target, target


def task(activation: str = "sigmoid", metric=f_two) -> SupervisedTask:
    recipe = Recipe(epochs=6, batch_size=32, learning_rate=0.3)
    return SupervisedTask(lambda: nn.Linear(3, 1), rows(0), rows(1), activation, metric, test=rows(2), recipe=recipe)


def score(made: SupervisedTask, training: Training) -> Scored:
    outcome = made.train(bind(Loss("-(y * log(p) + (1 - y) * log(1 - p))"), made.branches), training)
    assert isinstance(outcome, Scored)
    return outcome


def test_a_tuned_threshold_finds_what_the_metric_wants():
    plain, tuned = score(task(), Training(seed=0, split="test")), score(task(), TUNED)
    assert tuned.score > plain.score + 0.1
    assert tuned.also["threshold"] < 0.4
    on_valid = score(task(), Training(seed=0, tuned_threshold=True))
    assert on_valid.also["threshold"] == tuned.also["threshold"]


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_it_is_the_same_for_a_network_that_returns_a_number_for_each_row(activation: str):
    recipe = Recipe(epochs=6, batch_size=32, learning_rate=0.3)

    def train(network: Callable[[], nn.Module], shape: tuple[int, ...]) -> Scored:
        splits = [(inputs, target.reshape(shape).long()) for inputs, target in (rows(0), rows(1), rows(2))]
        return score(SupervisedTask(network, *splits[:2], activation, f_two, test=splits[2], recipe=recipe), TUNED)

    flat = train(lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)), (-1,))
    assert flat.also["threshold"] < 0.4
    assert flat == train(lambda: nn.Linear(3, 1), (-1, 1))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_further_metrics_of_probabilities_and_of_their_order_are_those_of_the_network(split: str):
    also = {
        "auc": lambda prediction, target: float(roc_auc_score(target.numpy(), prediction.numpy())),
        "brier": lambda prediction, target: -(prediction - target).square().mean().item(),
        "found": lambda prediction, target: ((prediction > 0.5) & (target > 0.5)).sum().item() / target.sum().item(),
    }
    recipe = Recipe(epochs=6, batch_size=32, learning_rate=0.3)
    made = SupervisedTask(
        lambda: nn.Linear(3, 1), rows(0), rows(1), "sigmoid", f_two, test=rows(2), recipe=recipe, also=also
    )
    plain, tuned = (score(made, Training(seed=0, split=split, tuned_threshold=one)).also for one in (False, True))
    assert tuned.pop("threshold") < 0.4
    assert tuned.pop("found") > plain.pop("found") + 0.1
    assert tuned == plain


@pytest.mark.parametrize("size", [1, 3, 64])
def test_it_is_the_same_in_batches_of_any_size(size: int):
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(101, 1, generator=generator) < 0.2).float()
    prediction = torch.randn(101, 1, generator=generator) + 2 * target - 3

    def measure(batches: Batches) -> float:
        found, wanted = (torch.cat(parts) for parts in zip(*batches, strict=True))
        return f_two(found.sigmoid(), wanted)

    def tune(size: int) -> tuple[float, Tensor]:
        valid = list(zip(prediction.split(size), target.split(size), strict=True))
        threshold, moved = tune_threshold(valid, valid, "sigmoid", measure)
        return threshold, torch.cat([one for one, _ in moved])

    threshold, moved = tune(101)
    assert not torch.equal(moved, prediction)
    assert tune(size)[0] == threshold
    assert torch.equal(tune(size)[1], moved)


def test_a_metric_of_the_order_alone_does_not_change():
    def auc(prediction: Tensor, target: Tensor) -> float:
        found, wanted = prediction.reshape(-1), target.reshape(-1) > 0.5
        return (found[wanted][:, None] > found[~wanted][None]).float().mean().item()

    made = task(metric=auc)
    assert score(made, TUNED).score == pytest.approx(score(made, Training(seed=0, split="test")).score, abs=1e-3)


def test_rounded_probabilities_move_no_metric_of_the_order_alone():
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(400, 1, generator=generator) < 0.3).float()
    valid = [(4 * torch.randn(400, 1, generator=generator) + 4 * target, target)]

    def auc(batches: Batches) -> float:
        return float(roc_auc_score(batches[0][1].numpy(), batches[0][0].sigmoid().numpy()))

    threshold, moved = tune_threshold(valid, valid, "sigmoid", auc)
    assert threshold == 0.5
    assert auc(moved) == auc(valid)


def test_a_metric_of_the_probabilities_themselves_is_at_no_other_threshold():
    """Three of four are wanted where one of two was learned: moved logits have a better log loss, and that is no decision."""
    target = torch.arange(400.0)[:, None] % 4 > 0
    valid = [(torch.linspace(-1, 1, 400)[:, None], target.float())]

    def measure(batches: Batches) -> float:
        return -nn.functional.binary_cross_entropy_with_logits(*batches[0]).item()

    assert measure([(move_threshold(valid[0][0], 0.25, "sigmoid"), valid[0][1])]) > measure(valid) + 0.05
    threshold, moved = tune_threshold(valid, [*valid], "sigmoid", measure)
    assert threshold == 0.5
    assert torch.equal(moved[0][0], valid[0][0])


@pytest.mark.parametrize("factor", [1, 0.001, 1000])
@pytest.mark.parametrize("offset", [0, -0.3, 1000])
def test_the_threshold_does_not_depend_on_the_unit_and_level_of_the_metric(factor: float, offset: float):
    generator = torch.Generator().manual_seed(0)
    target = (torch.rand(400, 1, generator=generator) < 0.3).float()
    valid = [(2 * torch.randn(400, 1, generator=generator) + 3 * target - 2, target)]

    def tune(metric: Callable[[Tensor, Tensor], float]) -> float:
        return tune_threshold(valid, [*valid], "sigmoid", lambda one: factor * (metric(*one[0]) + offset))[0]

    assert tune(lambda found, wanted: f_two(found.sigmoid(), wanted)) == 0.15
    assert tune(lambda found, wanted: float(roc_auc_score(wanted.numpy(), found.sigmoid().numpy()))) == 0.5
    assert tune(lambda *one: -nn.functional.binary_cross_entropy_with_logits(*one).item()) == 0.5


def test_a_threshold_of_costly_misses_is_found():
    """A missed one costs a hundred false alarms: the best threshold is about 1/101, and at 0.05 nearly all is missed."""

    def cost(prediction: Tensor, target: Tensor) -> float:
        missed, alarms = ((prediction <= 0.5) & (target > 0.5)).sum(), ((prediction > 0.5) & (target < 0.5)).sum()
        return -(100.0 * missed + alarms).item() / len(target)

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 1, generator=generator) - 5.0
    target = torch.bernoulli(logits.sigmoid(), generator=generator)

    def measure(batches) -> float:
        return sum(cost(logits.sigmoid(), target) for logits, target in batches)

    threshold, moved = tune_threshold([(logits, target)], [(logits, target)], "sigmoid", measure)
    assert 0.005 <= threshold <= 0.03
    at_least, nothing = cost(move_threshold(logits, 0.05, "sigmoid").sigmoid(), target), cost(logits * 0, target)
    assert measure(moved) > max(at_least, nothing) + 0.1


@pytest.mark.parametrize("activation", ["sigmoid", "softmax"])
def test_moved_predictions_cross_one_half_at_the_threshold(activation: str):
    probability = torch.tensor([[0.19], [0.21]])
    raw = (
        torch.logit(probability)
        if activation == "sigmoid"
        else torch.cat([0 * probability, torch.logit(probability)], 1)
    )
    moved = move_threshold(raw, 0.2, activation)
    yes = moved.sigmoid()[:, 0] if activation == "sigmoid" else moved.softmax(1)[:, 1]
    assert (yes > 0.5).tolist() == [False, True]


def test_on_the_valid_split_no_example_is_decided_at_a_threshold_that_saw_it():
    seen: list[int] = []
    batch = (torch.zeros(6, 1), torch.arange(6.0)[:, None])

    def measure(batches) -> float:
        seen.append(sum(len(target) for _, target in batches))
        return 0.0

    threshold, moved = tune_threshold([batch], [batch], "sigmoid", measure)
    valid = [batch]
    seen.clear()
    threshold, moved = tune_threshold(valid, valid, "sigmoid", measure)
    assert threshold == 0.5
    assert set(seen) == {6, 3}
    assert sorted(float(one) for _, target in moved for one in target) == list(range(6))


def test_a_task_without_decisions_has_no_threshold():
    made = SupervisedTask(lambda: nn.Linear(3, 1), rows(0), rows(1), "none", lambda p, y: -(p - y).abs().mean().item())
    assert not made.tunes_threshold
    with pytest.raises(RequestError, match="threshold"):
        score(made, Training(seed=0, tuned_threshold=True))
