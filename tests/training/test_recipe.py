"""A recipe in words."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from autoloss.training.recipe import Recipe, describe_recipe


def halve(optimizer: torch.optim.Optimizer, steps: int):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def test_a_recipe_in_words_follows_the_rate_the_length_and_the_step_rule():
    recipe = Recipe(epochs=4, batch_size=16, learning_rate=0.1, minimum_learning_rate=0.05).as_values()
    text = describe_recipe(recipe, "one_norm", 0.3, 2.0)[0]
    assert "learning rate 0.03, schedule poly (" in text
    assert "down to 0.03)" in text
    assert "8 epochs" in text
    assert text.endswith("gradients scaled to norm 1")
    assert describe_recipe(recipe, "recipe", 1.0, 0.1)[0].count("1 epoch,") == 1


def choose_no_rate(parameters, lr):
    return torch.optim.SGD(parameters, lr)


@pytest.mark.parametrize(
    ("optimizer", "rate"),
    [
        (partial(torch.optim.SGD, lr=1), 1.0),
        (partial(torch.optim.SGD, lr=np.float32(0.5)), 0.5),
        (partial(torch.optim.SGD, lr=torch.tensor(0.25)), 0.25),
        (partial(torch.optim.SGD, lr=2.0), 2.0),
        (choose_no_rate, 0.001),
    ],
)
def test_the_rate_of_a_function_is_its_default_whatever_kind_of_number_it_is(optimizer, rate: float):
    found = Recipe(optimizer=optimizer).base_rate
    assert found == rate
    assert type(found) is float


class Halve:
    def __call__(self, optimizer: torch.optim.Optimizer, steps: int):
        return halve(optimizer, steps)


def test_an_object_that_can_be_called_has_the_name_of_its_class():
    values = Recipe(schedule=Halve(), optimizer=partial(torch.optim.SGD, momentum=0.5)).as_values()
    assert values["schedule"] == f"{__name__}.Halve"
    assert values["optimizer"] == "partial(torch.optim.sgd.SGD, momentum=0.5)"


def test_no_recipe_has_no_words():
    assert describe_recipe({}, "recipe", 1.0, 1.0) == ("", "")


def test_the_rates_of_a_function_are_named_by_it_and_what_is_no_recipe_is_listed():
    recipe = Recipe(epochs=4, batch_size=16, learning_rate=0.1, schedule=halve).as_values()
    text = describe_recipe(recipe, "recipe", 3.0, 1.0)[0]
    assert "halve × 3, batches of 16" in text
    assert "learning rate" not in text
    assert describe_recipe({"learning_rate": 0.1, "tricks": 2}, "recipe", 3.0, 1.0) == (
        "the task's own recipe (learning_rate 0.1, tricks 2)",
        "",
    )
