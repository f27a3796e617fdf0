"""The optimizer of a training and its learning rate in every step, from names or functions in a recipe."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from autoloss.errors import RequestError
from autoloss.settings import StepRule
from autoloss.training.recipe import Recipe, ScaledSchedule
from autoloss.training.structures import describe


def make_optimizer(groups: Iterable[Mapping[str, Any]], recipe: Recipe) -> torch.optim.Optimizer:
    """Make the optimizer of a recipe for parameter groups, each with a `factor` on the learning rate."""
    given = list(groups)
    for group in given:
        if not isinstance(group, Mapping) or "params" not in group:
            raise RequestError(
                f"A parameter group is {describe(group)}; expected dictionaries such as {{'params': network.parameters(), "
                "'factor': 1.0}."
            )
    # Optimizers add their settings to the groups in place.
    copies: list[Any] = [dict(group) for group in given]
    if len(copies) == 1 and copies[0].keys() == {"params"}:
        copies = list(copies[0]["params"])
    rate, decay = recipe.base_rate, recipe.weight_decay
    if recipe.optimizer in ("adam", "adamw"):
        make = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
        return make(copies, lr=rate, weight_decay=decay)
    if not callable(recipe.optimizer):
        return torch.optim.SGD(copies, lr=rate, momentum=recipe.momentum, weight_decay=decay)
    try:
        made = recipe.optimizer(copies, lr=rate)
    except TypeError as error:
        raise RequestError(
            f"The recipe's optimizer cannot be made: {error}. It is called with the parameters and lr=…, the learning rate of the "
            "recipe, which a search tunes: give the class, as in optimizer=torch.optim.AdamW, or a function such as "
            "lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr, weight_decay=0.05)."
        ) from error
    if not isinstance(made, torch.optim.Optimizer):
        raise RequestError(f"The recipe's optimizer made {describe(made)}; expected a torch.optim.Optimizer.")
    return made


def offer_step_rules(recipe: Recipe) -> tuple[StepRule, ...]:
    """Return the step rules that change the trainings of a recipe.

    One whose steps do not grow with the gradient has nothing to clip, and AdamW takes the place of SGD by name alone: a function's
    rate may be its own.
    """
    rules: list[StepRule] = ["recipe"]
    if not recipe.one_norm and _follows_gradient(recipe):
        if not recipe.clip_norm:
            rules.append("clipped")
        rules.append("one_norm")
        if recipe.optimizer == "sgd" and not callable(recipe.schedule):
            rules.append("adamw")
    if not callable(recipe.schedule):
        if not recipe.warmup_steps and not recipe.warmup_share:
            rules.append("warmup")
        if recipe.schedule != "cosine":
            rules.append("cosine")
    return tuple(rules)


def _follows_gradient(recipe: Recipe) -> bool:
    """Return True if a larger gradient makes a longer step, as with SGD; the first step of an optimizer of one's own shows it."""
    # The first step of a process imports torch's compiler: two seconds that a task which is only read does not need.
    if not callable(recipe.optimizer):
        return recipe.optimizer == "sgd"
    lengths = []
    for slope in (1.0, 2.0):
        weight = torch.nn.Parameter(torch.zeros(1))
        optimizer = make_optimizer([{"params": [weight]}], recipe)
        weight.grad = torch.full((1,), slope)
        try:
            optimizer.step()
        except TypeError:  # An optimizer that calls the loss itself, such as L-BFGS, decides its steps.
            return False
        lengths.append(abs(weight.item()))
    return lengths[1] > 1.5 * lengths[0]


class Rates:
    """Sets the learning rate of every step of a training.

    A scheduler of torch advances on a separate optimizer without weights, whose settings are copied. The rate of a step is
    then a function of the step alone, also in a resumed training. Groups that the recipe's function gives other rates keep their
    ratio to the recipe's rate; where no group has that one, to the largest.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int) -> None:
        self._optimizer = optimizer
        self._recipe = recipe
        self._steps = steps
        self._factor = recipe.schedule.factor if isinstance(recipe.schedule, ScaledSchedule) else 1.0
        rates = [float(group.get("lr", recipe.base_rate)) for group in optimizer.param_groups]
        usual = recipe.base_rate if recipe.base_rate in rates else max(rates)
        self._factors = [
            group.get("factor", 1.0) * (rate / usual if usual else 1.0)
            for group, rate in zip(optimizer.param_groups, rates, strict=True)
        ]
        self._advanced = 1
        self._scheduled = self._make_scheduler() if callable(recipe.schedule) else None

    def set(self, step: int) -> None:
        """Set the learning rate of a step, counted from 1; steps may be skipped, but never decrease."""
        if self._scheduled is None:
            rate = self._recipe.rate(step, self._steps)
            for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True):
                group["lr"] = rate * factor
            return
        model, scheduler = self._scheduled
        warm = self._recipe.warm(step, self._steps)
        with warnings.catch_warnings():
            # torch warns that the separate optimizer takes no steps.
            warnings.simplefilter("ignore")
            for _ in range(step - self._advanced):
                scheduler.step()
        self._advanced = step
        for group, scheduled in zip(self._optimizer.param_groups, model.param_groups, strict=True):
            group.update({name: value for name, value in scheduled.items() if name != "params"})
            group["lr"] *= self._factor * warm

    def _make_scheduler(self) -> tuple[torch.optim.Optimizer, Any]:
        model = copy.copy(self._optimizer)
        model.param_groups = [
            {**group, "params": [torch.nn.Parameter(torch.zeros(1))], "lr": self._recipe.base_rate * factor}
            for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True)
        ]
        try:
            scheduler = self._recipe.schedule(model, self._steps)  # type: ignore[operator]
        except (TypeError, ValueError) as error:
            raise RequestError(
                f"The recipe's schedule cannot be made: {error}. It is called with an optimizer and the number of steps, as in "
                "lambda optimizer, steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)."
            ) from error
        if isinstance(scheduler, ReduceLROnPlateau) or not callable(getattr(scheduler, "step", None)):
            raise RequestError(
                f"The recipe's schedule made {describe(scheduler)}; expected a scheduler of torch.optim.lr_scheduler whose rate "
                "follows from the number of the step alone."
            )
        return model, scheduler
