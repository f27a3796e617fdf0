"""The training loop: schedules in closed form, the guard, the order of the data, the curve."""

from __future__ import annotations

import dataclasses
import math
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.training.loop import Pace, fit, scale_gradients, seed_generators, shuffle_batches
from autoloss.training.optimization import offer_step_rules
from autoloss.training.recipe import Recipe
from autoloss.training.training import Diverged, Training, thin_curve

PLAIN = Recipe(schedule="constant", momentum=0.0, weight_decay=0.0, learning_rate=0.5)


def weight_of_one() -> nn.Module:
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    return network


def square(network: nn.Module) -> Tensor:
    return network(torch.ones(1, 1)).square().sum() / 2


@pytest.mark.parametrize(
    ("recipe", "rates"),
    [
        (Recipe(learning_rate=1.0, minimum_learning_rate=0.0, power=1.0), [1.0, 0.75, 0.5, 0.25]),
        (Recipe(learning_rate=1.0, minimum_learning_rate=0.2, power=1.0), [1.0, 0.8, 0.6, 0.4]),
        (Recipe(learning_rate=1.0, minimum_learning_rate=0.0, schedule="cosine"), [1.0, 0.8536, 0.5, 0.1464]),
        (Recipe(learning_rate=1.0, schedule="constant", warmup_steps=4), [0.25, 0.5, 0.75, 1.0]),
        (Recipe(learning_rate=1e-5), [1e-5] * 4),
    ],
)
def test_learning_rates_follow_the_schedule(recipe: Recipe, rates: list[float]):
    assert [recipe.rate(step, 4) for step in range(1, 5)] == pytest.approx(rates, abs=1e-4)


def test_poly_is_the_papers():
    recipe = Recipe(learning_rate=0.02)
    assert recipe.rate(51, 100) == pytest.approx(1e-4 + (0.02 - 1e-4) * 0.5**0.9)


def test_sgd_takes_the_steps_done_by_hand():
    network = weight_of_one()
    curve = fit(network, range(3), lambda batch: square(network), PLAIN, 3)
    # w ← w − w/2, and the loss is w²/2 before each step.
    assert curve == ((1, 0.5), (2, 0.125), (3, 0.03125))
    assert network.weight.item() == 0.125


def test_gradients_are_scaled_down_together_to_their_largest_norm():
    network = weight_of_one()
    curve = fit(network, range(2), lambda batch: 8 * square(network), dataclasses.replace(PLAIN, clip_norm=1.0), 2)
    # The gradient is 8w; of norm 1 it takes half a unit, twice.
    assert curve == ((1, 4.0), (2, 1.0))
    assert network.weight.item() == 0.0
    slopes = [torch.tensor([3e30, 0.0]), torch.tensor([4e30])]
    scale_gradients(slopes, 10.0)
    assert [slope.tolist() for slope in slopes] == [[pytest.approx(6.0), 0.0], [pytest.approx(8.0)]]
    scale_gradients(slopes, 20.0)
    assert slopes[1].item() == pytest.approx(8.0)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e6])
def test_with_one_norm_a_step_is_as_long_as_the_rate_whatever_the_factor_of_the_loss(factor: float):
    network = weight_of_one()
    fit(network, range(1), lambda batch: factor * square(network), dataclasses.replace(PLAIN, one_norm=True), 1)
    assert network.weight.item() == pytest.approx(0.5)


def test_with_one_norm_a_gradient_of_nothing_makes_no_step():
    network = weight_of_one()
    curve = fit(network, range(1), lambda batch: 0.0 * square(network), dataclasses.replace(PLAIN, one_norm=True), 1)
    assert curve == ((1, 0.0),)
    assert network.weight.item() == 1.0


def test_a_recipe_follows_what_a_training_asks_for():
    recipe = Recipe(epochs=4, learning_rate=0.5, clip_norm=2.0)
    assert recipe.follow(Training(seed=0)) == recipe
    followed = recipe.follow(Training(seed=0, learning_rate=3.0, step_rule="one_norm", length=2.0))
    assert (followed.epochs, followed.learning_rate, followed.one_norm, followed.clip_norm) == (8, 1.5, True, 0.0)
    adam = recipe.follow(Training(seed=0, learning_rate=3.0, step_rule="adamw"))
    assert (adam.optimizer, adam.learning_rate) == ("adamw", pytest.approx(3e-3))


@pytest.mark.parametrize(
    ("recipe", "rules"),
    [
        (Recipe(), ("recipe", "clipped", "one_norm", "adamw", "warmup", "cosine")),
        (Recipe(clip_norm=1.0), ("recipe", "one_norm", "adamw", "warmup", "cosine")),
        (Recipe(optimizer=torch.optim.SGD), ("recipe", "clipped", "one_norm", "warmup", "cosine")),
        (Recipe(optimizer="adam"), ("recipe", "warmup", "cosine")),
        (Recipe(optimizer=torch.optim.AdamW, schedule="cosine"), ("recipe", "warmup")),
        (Recipe(optimizer=torch.optim.LBFGS, warmup_steps=3), ("recipe", "cosine")),
        (Recipe(one_norm=True, schedule=lambda optimizer, steps: None), ("recipe",)),
    ],
)
def test_step_rules_are_offered_where_they_change_the_steps(recipe: Recipe, rules: tuple[str, ...]):
    assert offer_step_rules(recipe) == rules


def test_a_warm_up_of_a_share_of_the_steps_raises_the_rate_linearly():
    recipe = Recipe(schedule="constant", learning_rate=1.0, warmup_share=0.1)
    assert [recipe.rate(step, 40) for step in (1, 2, 4, 5)] == [0.25, 0.5, 1.0, 1.0]


def test_recorded_norms_are_replayed_step_by_step():
    pace, network = Pace(), weight_of_one()
    fit(network, range(3), lambda batch: square(network), PLAIN, 3, pace=pace)
    assert len(pace.norms) == 3
    again, lengths = weight_of_one(), []
    replayed = Pace(pace.norms, replays=True)
    fit(
        again,
        range(3),
        lambda batch: 1e3 * square(again),
        PLAIN,
        3,
        pace=replayed,
        observe=lambda *_: lengths.append(1),
    )
    assert again.weight.item() == pytest.approx(network.weight.item(), rel=1e-6)


def test_a_gradient_that_is_no_number_is_not_clipped_but_stops():
    network = weight_of_one()
    recipe = dataclasses.replace(PLAIN, clip_norm=1.0)
    outcome = fit(network, range(2), lambda batch: (network.weight - 1).abs().sqrt().sum(), recipe, 2)
    assert outcome == Diverged(1, "the gradient is not finite")


def test_groups_have_a_factor_on_the_learning_rate():
    network = weight_of_one()
    groups = [{"params": network.parameters(), "factor": 2.0}]
    fit(network, range(1), lambda batch: square(network), PLAIN, 1, groups=groups)
    assert network.weight.item() == 0.0


def take_steps(recipe: Recipe) -> list[list[float]]:
    """Train three parameters for two steps; return the rates of the optimizer's groups in each step."""
    network, rates, made = nn.Linear(2, 1), list[list[float]](), list[torch.optim.Optimizer]()

    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        assert isinstance(recipe.optimizer, partial)
        made.append(recipe.optimizer(parameters, lr=lr))
        return made[-1]

    def compute_loss(batch: int) -> Tensor:
        return network(torch.ones(1, 2)).square().sum()

    def observe(step: int, loss: float) -> None:
        rates.append([group["lr"] for group in made[0].param_groups])

    outcome = fit(network, range(2), compute_loss, dataclasses.replace(recipe, optimizer=make), 2, observe=observe)
    assert not isinstance(outcome, Diverged)
    return rates


def split(parameters: Any, lr: float, weights: float, biases: float) -> torch.optim.Optimizer:
    """Give weights and biases rates of their own, as factors on `lr`."""
    groups = {True: weights, False: biases}
    chosen = [{"params": [p for p in parameters if (p.ndim > 1) == wide], "lr": lr * groups[wide]} for wide in groups]
    return torch.optim.SGD(chosen, lr=lr)


def fall(optimizer: torch.optim.Optimizer, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / steps)


@pytest.mark.parametrize("schedule", ["constant", fall])
@pytest.mark.parametrize(("weights", "biases"), [(1.0, 0.0), (0.1, 1.0), (1.0, 10.0), (1.0, 1.0)])
def test_groups_that_an_optimizer_function_makes_keep_their_own_rates(schedule, weights: float, biases: float):
    recipe = Recipe(learning_rate=0.01, schedule=schedule, optimizer=partial(split, weights=weights, biases=biases))
    shares = [1.0, 1.0] if schedule == "constant" else [1.0, 0.5]
    assert take_steps(recipe) == [[pytest.approx(0.01 * share * own) for own in (weights, biases)] for share in shares]


@pytest.mark.parametrize("schedule", ["constant", fall])
def test_an_optimizer_function_of_a_rate_of_its_own_follows_the_recipe(schedule):
    def fix(parameters: Any, lr: float, rate: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=rate)

    recipe = Recipe(learning_rate=0.01, schedule=schedule, optimizer=partial(fix, rate=0.5))
    assert take_steps(recipe)[0] == [pytest.approx(0.01)]


@pytest.mark.parametrize("schedule", ["poly", "cosine", "constant"])
@pytest.mark.parametrize(("batches", "said"), [(2, "3 steps got 2 batches"), (0, "got 0"), (4, "3 steps got more")])
def test_a_training_needs_one_batch_for_each_step(schedule, batches: int, said: str):
    network = weight_of_one()
    with pytest.raises(RequestError, match=said):
        fit(network, range(batches), lambda batch: square(network), dataclasses.replace(PLAIN, schedule=schedule), 3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 19, 21])
def test_a_loss_that_is_no_number_stops_at_its_step(step: int, value: float):
    network = weight_of_one()
    outcome = fit(network, range(1, 31), lambda batch: square(network) + (value if batch == step else 0), PLAIN, 30)
    assert outcome == Diverged(step, "the loss is not finite")


def test_an_optimizer_of_another_networks_weights_is_refused():
    network, other = weight_of_one(), weight_of_one()
    recipe = dataclasses.replace(PLAIN, optimizer=lambda given, lr: torch.optim.SGD(other.parameters(), lr=lr))
    with pytest.raises(RequestError, match="holds none of the network's weights"):
        fit(network, range(3), lambda batch: square(network), recipe, 3)


@pytest.mark.parametrize("change", [{}, {"one_norm": True}, {"clip_norm": 0.1}])
def test_complex_weights_are_trained_and_their_divergence_is_found(change: dict[str, Any]):
    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), 1 + 1j))

    network = Waves()
    recipe = dataclasses.replace(PLAIN, learning_rate=0.1, **change)
    curve = fit(network, range(20), lambda batch: network.weight.abs().square().sum(), recipe, 20)
    assert not isinstance(curve, Diverged)
    assert curve[-1][1] < curve[0][1] == pytest.approx(4.0)
    outcome = fit(network, range(2), lambda batch: (network.weight * math.inf).abs().sum(), recipe, 2)
    assert isinstance(outcome, Diverged)


def test_a_gradient_that_is_no_number_stops_before_it_reaches_the_weights():
    network = weight_of_one()
    outcome = fit(network, range(2), lambda batch: (network.weight - 1).abs().sqrt().sum(), PLAIN, 2)
    assert outcome == Diverged(1, "the gradient is not finite")
    assert network.weight.item() == 1.0


def test_a_weight_that_overflows_in_the_last_step_is_found():
    network = weight_of_one()
    outcome = fit(network, range(1), lambda batch: network.weight.sum() * 3e38, Recipe(learning_rate=1e10), 1)
    assert outcome == Diverged(1, "a weight is not finite")


def test_a_loss_that_cannot_train_is_refused():
    network = weight_of_one()
    with pytest.raises(RequestError, match="one element"):
        fit(network, range(1), lambda batch: network(torch.ones(2, 1)), PLAIN, 1)
    with pytest.raises(RequestError, match="does not depend"):
        fit(network, range(1), lambda batch: torch.tensor(1.0), PLAIN, 1)


def test_every_epoch_shows_each_example_once_in_a_new_order():
    order = shuffle_batches(10, Recipe(epochs=2, batch_size=5), torch.Generator().manual_seed(0))
    assert [len(indices) for indices in order] == [5] * 4
    first, second = (torch.cat(order[start : start + 2]).tolist() for start in (0, 2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_an_incomplete_batch_is_left_out_unless_it_is_all_there_is():
    generator = torch.Generator().manual_seed(0)
    assert [len(indices) for indices in shuffle_batches(10, Recipe(epochs=1, batch_size=4), generator)] == [4, 4]
    assert [len(indices) for indices in shuffle_batches(3, Recipe(epochs=2, batch_size=4), generator)] == [3, 3]


def test_a_seed_decides_every_global_generator_and_gives_their_states_back():
    def draw() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.random())

    before = torch.get_rng_state()
    with seed_generators(5):
        first = draw()
    assert bool((torch.get_rng_state() == before).all())
    draw()
    with seed_generators(5):
        assert draw() == first


def test_a_long_curve_keeps_its_ends_and_a_hundred_points():
    curve = [(step, float(step)) for step in range(1, 1235)]
    kept = thin_curve(curve)
    assert len(kept) == 100
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])
    assert list(kept) == sorted(set(kept))


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"momentum": 1.0},
        {"weight_decay": -1.0},
        {"warmup_steps": -1},
        {"optimizer": "sdg"},
        {"schedule": "ploy"},
    ],
    ids=str,
)
def test_a_recipe_outside_its_range_is_refused_by_name(wrong: dict[str, object]):
    with pytest.raises(RequestError, match=f"{next(iter(wrong))}|Did you mean"):
        Recipe(**wrong)


def test_the_rate_falls_to_a_tenth_after_each_milestone():
    recipe = Recipe(epochs=12, learning_rate=0.02, schedule="steps", minimum_learning_rate=0.0)
    # Twelve epochs of ten steps: a tenth after 8, a hundredth after 11.
    rates = [recipe.rate(step, 120) for step in (1, 80, 81, 110, 111, 120)]
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.002, 0.0002, 0.0002])
    with pytest.raises(RequestError, match="milestones"):
        Recipe(schedule="steps", milestones=(0.5, 1.0))


@pytest.mark.parametrize(
    ("examples", "size", "steps"),
    [
        *((3, 8, 200), (24, 8, 201), (40, 8, 200), (128, 16, 200), (200, 16, 204), (256, 32, 200), (2_000, 32, 248)),
        *((10_000, 32, 936), (30_000, 32, 937), (60_000, 64, 937), (1_000_000, 128, 7812)),
    ],
)
def test_a_recipe_without_numbers_takes_some_200_steps_at_least_and_few_epochs_of_much_data(examples, size, steps):
    chosen = Recipe().choose(examples)
    assert (chosen.batch_size, chosen.steps(examples), Recipe().steps(examples)) == (size, steps, steps)
    assert len(shuffle_batches(examples, Recipe(), torch.Generator())) == steps
    assert chosen == chosen.choose(7)


@pytest.mark.parametrize("given", [{"epochs": 3}, {"batch_size": 50}, {"learning_rate": 0.02}], ids=str)
def test_numbers_that_are_given_stay_as_they_are(given: dict[str, Any]):
    chosen = Recipe(**given).choose(200)
    assert {name: getattr(chosen, name) for name in given} == given
    assert chosen.steps(200) == (36 if "epochs" in given else 200 if "batch_size" in given else 204)


def named_rate(parameters, lr=0.125):
    raise AssertionError


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [("sgd", 0.05), ("adam", 1e-3), ("adamw", 1e-3), (named_rate, 0.125), (lambda parameters, lr: None, 1e-3)],
)
def test_the_rate_that_is_chosen_is_the_usual_one_of_the_optimizer(optimizer, rate):
    assert Recipe(optimizer=optimizer).choose(100).learning_rate == rate


def test_a_training_without_a_given_rate_runs_by_itself():
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    fit(network, range(1), lambda batch: square(network), Recipe(schedule="constant", weight_decay=0.0), 1)
    assert network.weight.item() == pytest.approx(0.95)
