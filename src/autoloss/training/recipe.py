"""The recipe of a training: optimizer, learning-rate schedule, batch size and regularisation (Appendix A)."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, SupportsFloat, TypeVar

from pydantic import Field

from autoloss.options import Amount, Count, Natural, Positive, ShareBelowOne, declare
from autoloss.settings import StepRule
from autoloss.training.training import Training

MakeOptimizer = Callable[..., Any]
"""Called with the parameters, or with groups of them where a task makes groups, and `lr=…`; returns a `torch.optim.Optimizer`."""
MakeSchedule = Callable[[Any, int], Any]
"""Called with an optimizer and the number of steps of the training; returns a scheduler of `torch.optim.lr_scheduler`."""
Number = TypeVar("Number", int, float)

LEAST_STEPS, USUAL_STEPS = 200, 1000
"""Optimizer steps of a training whose epochs are chosen: at least, and at most where that is more than one epoch."""
USUAL_EPOCHS = 3
"""Epochs that are chosen where they have neither fewer nor more steps than these."""
BATCHES = 8
"""Batches of an epoch, at least, where the batch size is chosen."""
SMALLEST_BATCH, USUAL_BATCH, LARGEST_BATCH = 8, 32, 128
"""Batch sizes that are chosen: for little data, usually, and where an epoch would have more than `USUAL_STEPS` steps."""
SGD_RATE = 0.05
ADAM_RATE = 1e-3
"""Adam's usual learning rate (Kingma & Ba, 2015, Algorithm 1), also in place of a rate that was chosen for SGD."""
NOT_COMPARED = re.compile(r" at 0x[0-9A-Fa-f]+|\b(?:\w+\.)+(?=[A-Za-z_<])")
"""Addresses of objects, and modules of functions: the file that was `__main__` may be imported now."""


@declare("recipe.")
class Recipe:
    """Optimizer, schedule, batch size and regularisation of a training.

    Epochs, batch size and learning rate that are not given follow from the number of training examples (`choose`), so that small
    data sets are trained on for about 200 steps, too.

    Raises:
        RequestError: A value is outside its range.

    >>> recipe = Recipe(epochs=2, batch_size=16, learning_rate=0.1)
    >>> recipe.steps(100), recipe.rate(1, 12)
    (12, 0.1)
    """

    epochs: Count | None = None
    """Passes over the training data. If None, three of them, or as many as have 200 steps; for much data fewer."""
    batch_size: Count | None = None
    """Examples per optimizer step. The last, incomplete batch of an epoch is dropped unless it is the only one. If None, 8 to 32
    for up to 32,000 examples, and up to 128 for more."""
    optimizer: Literal["sgd", "adam", "adamw"] | MakeOptimizer = "sgd"
    """sgd, adam, adamw, or a class or function that is called with the parameters and `lr=…`, such as `torch.optim.AdamW` or
    `functools.partial(torch.optim.AdamW, weight_decay=0.05)`; the recipe's momentum and weight decay are then ignored."""
    learning_rate: Positive | None = None
    """Initial learning rate, after the warm-up. If None, 0.05 for sgd and 0.001 for adam and adamw; of a function, the default of
    its argument `lr`, or 0.001."""
    momentum: ShareBelowOne = 0.9
    """Momentum of SGD; Adam and AdamW use their defaults."""
    weight_decay: Amount = 5e-4
    """Factor of the L2 penalty on the weights."""
    schedule: Literal["poly", "cosine", "constant", "steps"] | MakeSchedule = "poly"
    """Schedule of the learning rate: poly, cosine, constant or steps, or a function that is called with an optimizer and
    the number of steps and returns a scheduler, which advances after each step:
    `lambda optimizer, steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)`."""
    power: Amount = 0.9
    """Exponent of the schedule poly: the learning rate falls as (1 − step/steps)^power."""
    milestones: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = (8 / 12, 11 / 12)
    """Shares of the training after each of which the schedule steps divides the learning rate by 10."""
    minimum_learning_rate: Amount = 1e-4
    """Lower limit of the learning rate, never above `learning_rate`."""
    warmup_steps: Natural = 0
    """Steps over which the learning rate rises linearly to that of the schedule."""
    warmup_share: ShareBelowOne = 0.0
    """Share of all steps over which it rises so, where that is longer than `warmup_steps`."""
    clip_norm: Amount = 0.0
    """Maximum joint norm of all gradients; 0, as in the paper, does not clip them."""
    one_norm: bool = False
    """Scale the gradient of every step to joint norm 1, so that a step is as long as the learning rate says and the loss decides
    its direction alone (normalized gradient descent; Nesterov, 1984)."""
    auxiliary: Amount = 0.0
    """Factor on the loss of each auxiliary prediction of the network."""
    evaluation_batch: Count | None = None
    """Batch size of the evaluation, 1 if examples differ in size; `batch_size` if None."""

    def choose(self, examples: int, *, batches: int | None = None, length: float = 1.0) -> Recipe:
        """Return a copy in which epochs, batch size and learning rate have numbers; those that are given stay.

        Args:
            examples: Number of training examples.
            batches: Batches of an epoch, where the batch size does not decide it.
            length: Factor on epochs that are chosen.

        >>> chosen = Recipe(learning_rate=0.1).choose(200)
        >>> chosen.epochs, chosen.batch_size, chosen.learning_rate, chosen.steps(200)
        (17, 16, 0.1, 204)
        """
        size = _choose_batch_size(examples) if self.batch_size is None else self.batch_size
        each = batches or max(1, examples // size)
        usual = max(1, math.ceil(LEAST_STEPS / each), min(USUAL_EPOCHS, USUAL_STEPS // each))
        epochs = max(1, round(usual * length)) if self.epochs is None else self.epochs
        return replace(self, epochs=epochs, batch_size=size, learning_rate=self.base_rate)

    @property
    def base_rate(self) -> float:
        """The learning rate, or the usual one of the optimizer where none is given."""
        if self.learning_rate is not None:
            return self.learning_rate
        if not callable(self.optimizer):
            return SGD_RATE if self.optimizer == "sgd" else ADAM_RATE
        rate = inspect.signature(self.optimizer).parameters.get("lr")
        return float(rate.default) if rate is not None and isinstance(rate.default, SupportsFloat) else ADAM_RATE

    def follow(self, training: Training) -> Recipe:
        """Return the recipe of one training: with its rate, step rule and length."""
        recipe = replace(self, epochs=max(1, round(require(self.epochs) * training.length)))
        changes: Mapping[str, Any] = STEP_RULES[training.step_rule]
        return replace(recipe, **changes).scale_learning_rate(training.learning_rate)

    def scale_learning_rate(self, factor: float) -> Recipe:
        """Return a copy with the learning rate multiplied by `factor`, in every step."""
        if callable(self.schedule):
            return self if factor == 1 else replace(self, schedule=ScaledSchedule(self.schedule, factor))
        return replace(self, learning_rate=self.base_rate * factor)

    def steps(self, examples: int, fidelity: float = 1.0) -> int:
        """Return the number of optimizer steps on `examples` training examples, in a share of the schedule."""
        chosen = self.choose(examples)
        return shorten_steps(require(chosen.epochs) * max(1, examples // require(chosen.batch_size)), fidelity)

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 1; only for a schedule given by name."""
        if callable(self.schedule):
            raise TypeError("The schedule is a function; see optimization.Rates.")
        done = (step - 1) / steps
        share = {"poly": (1 - done) ** self.power, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}
        # Rounded: a milestone is a whole number of epochs, also if its share is inexact in floating point.
        share["steps"] = 0.1 ** sum(step - 1 >= round(milestone * steps) for milestone in self.milestones)
        least = min(self.minimum_learning_rate, self.base_rate)
        scheduled = least + (self.base_rate - least) * share[self.schedule]
        return scheduled * self.warm(step, steps)

    def warm(self, step: int, steps: int) -> float:
        """Return the factor of the warm-up on the learning rate of a step, counted from 1."""
        rising = max(self.warmup_steps, round(self.warmup_share * steps))
        return min(1.0, step / rising) if rising else 1.0

    def as_values(self) -> Mapping[str, Any]:
        """Return all settings as plain values; functions and classes by their names."""
        return {field.name: name_function(getattr(self, field.name)) for field in fields(self)}


CLIP_NORM = 0.5
WARM_UP = 0.1
"""Share of the steps of the step rule `warmup`."""
STEP_RULES: Mapping[StepRule, Mapping[str, Any]] = {
    "recipe": {},
    "clipped": {"clip_norm": CLIP_NORM},
    "one_norm": {"one_norm": True, "clip_norm": 0.0},
    "adamw": {"optimizer": "adamw", "learning_rate": ADAM_RATE, "clip_norm": 0.0},
    "warmup": {"warmup_share": WARM_UP},
    "cosine": {"schedule": "cosine"},
}
"""Step rule → the settings of a recipe that it changes."""


@dataclass(frozen=True, slots=True)
class ScaledSchedule:
    """A schedule whose learning rate is multiplied by a factor in every step."""

    make: MakeSchedule
    factor: float

    def __call__(self, optimizer: Any, steps: int) -> Any:
        return self.make(optimizer, steps)


def require(number: Number | None) -> Number:
    """Return a number of a recipe, which was given or chosen."""
    if number is None:
        raise TypeError("The recipe leaves this number out; Recipe.choose(number of training examples) chooses it.")
    return number


def _choose_batch_size(examples: int) -> int:
    """Return a power of two."""
    size = SMALLEST_BATCH
    while size < USUAL_BATCH and 2 * size * BATCHES <= examples:
        size *= 2
    while size < LARGEST_BATCH and examples // size > USUAL_STEPS:
        size *= 2
    return size


def shorten_steps(steps: int, fidelity: float) -> int:
    """Return the number of optimizer steps in a share of a schedule."""
    return max(1, round(fidelity * steps))


def name_function(value: Any) -> Any:
    """Return the name of a function or a class, or any other value unchanged."""
    if isinstance(value, ScaledSchedule):
        return f"{value.factor:g} × {name_function(value.make)}"
    if isinstance(value, partial):
        settings = "".join(f", {name}={name_function(setting)}" for name, setting in sorted(value.keywords.items()))
        return f"partial({name_function(value.func)}{settings})"
    if callable(value) and not hasattr(value, "__qualname__"):
        value = type(value)
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else value


def describe_recipe(
    recipe: Mapping[str, Any], step_rule: StepRule, learning_rate: float, length: float
) -> tuple[str, str]:
    """Return all that a training with a loss needs elsewhere in words, and the code between `backward()` and `optimizer.step()`.

    Args:
        recipe: The task's; `step_rule` changes it, `learning_rate` and `length` are factors. What is not the values of a `Recipe`
            is listed as it is.
    """
    if not {one.name for one in fields(Recipe)} <= recipe.keys():
        listed = ", ".join(f"{name} {value}" for name, value in recipe.items())
        return f"the task's own recipe ({listed})" if listed else "", ""
    values = {**recipe, **STEP_RULES[step_rule]}
    optimizer, momentum, rate = values["optimizer"], values["momentum"], values["learning_rate"] * learning_rate
    epochs, lowest = max(1, round(values["epochs"] * length)), f"down to {min(values['minimum_learning_rate'], rate):g}"
    falls = {
        "poly": f"poly (the rate falls as (1 - step / steps) ** {values['power']:g}, {lowest})",
        "cosine": f"cosine (the rate falls as (1 + cos(pi * step / steps)) / 2, {lowest})",
        "steps": f"steps (the rate is divided by 10 after {', '.join(f'{one:.3g}' for one in values['milestones'])} of the steps)",
        "constant": "constant",
    }
    # A function has its own rates.
    name = str(values["schedule"])
    schedule = falls.get(name, name if learning_rate == 1 else f"{name} × {learning_rate:g}")
    parts = [
        f"SGD with momentum {momentum:g}" if optimizer == "sgd" else str(optimizer),
        f"learning rate {rate:.4g}" if name in falls else "",
        f"schedule {schedule}",
        f"warm-up of {values['warmup_steps']} steps" if values["warmup_steps"] else "",
        f"warm-up over {100 * values['warmup_share']:g} % of the steps" if values["warmup_share"] else "",
        f"batches of {values['batch_size']}",
        f"{epochs} epoch{'s' * (epochs != 1)}",
        f"weight decay {values['weight_decay']:g}" if optimizer in ("sgd", "adam", "adamw") else "",
        f"gradients clipped at norm {values['clip_norm']:g}" if values["clip_norm"] else "",
        "gradients scaled to norm 1" if values["one_norm"] else "",
    ]
    step = ""
    if values["one_norm"]:
        step = (
            "grads = [w.grad for w in model.parameters() if w.grad is not None]; "
            "norm = torch.nn.utils.get_total_norm(grads); [g.div_(norm) for g in grads if norm > 1e-30]"
        )
    elif values["clip_norm"]:
        step = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {values['clip_norm']:g})"
    return ", ".join(filter(None, parts)), step
