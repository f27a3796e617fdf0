"""The recipe of a training: optimizer, learning-rate schedule, batch size and regularisation (Appendix A)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from autoloss.errors import RequestError, unknown

OPTIMIZERS = ("sgd", "adam")
SCHEDULES = ("poly", "cosine", "constant", "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a network is trained; the defaults are those of the paper's segmentation proxy (Appendix A).

    Raises:
        RequestError: A value is outside its range.

    >>> recipe = Recipe(epochs=2, batch_size=16, learning_rate=0.1)
    >>> recipe.steps(100), recipe.rate(1, 12)
    (12, 0.1)
    """

    epochs: int = 3
    """Passes over the training data."""
    batch_size: int = 32
    """Examples per optimizer step. The last, incomplete batch of an epoch is dropped unless it is the only one."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """sgd or adam."""
    learning_rate: float = 0.02
    """Initial learning rate, after the warm-up."""
    momentum: float = 0.9
    """Momentum of SGD; Adam uses its defaults."""
    weight_decay: float = 5e-4
    """Factor of the L2 penalty on the weights."""
    schedule: Literal["poly", "cosine", "constant", "steps"] = "poly"
    """How the learning rate changes over the training: poly, cosine, constant or steps."""
    power: float = 0.9
    """Exponent of the schedule poly: the learning rate falls as (1 − step/steps)^power."""
    milestones: tuple[float, ...] = (8 / 12, 11 / 12)
    """Shares of the training after each of which the schedule steps divides the learning rate by 10."""
    minimum_learning_rate: float = 1e-4
    """Lower limit of the learning rate, never above `learning_rate`."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly to that of the schedule."""
    clip_norm: float = 0.0
    """Maximum norm of all gradients together; 0, the paper's, does not clip them."""
    auxiliary: float = 0.0
    """Factor on the loss of each auxiliary prediction of the network."""
    evaluation_batch: int | None = None
    """Batch size of the evaluation, 1 where examples differ in size; `batch_size` when None."""

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", str(self.optimizer), OPTIMIZERS)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule of the learning rate", str(self.schedule), SCHEDULES)
        for name, holds, expected in (
            ("epochs", self.epochs >= 1, "at least 1"),
            ("batch_size", self.batch_size >= 1, "at least 1"),
            ("learning_rate", 0 < self.learning_rate < math.inf, "above 0"),
            ("momentum", 0 <= self.momentum < 1, "in [0, 1)"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "at least 0"),
            ("power", 0 <= self.power < math.inf, "at least 0"),
            ("minimum_learning_rate", 0 <= self.minimum_learning_rate < math.inf, "at least 0"),
            ("milestones", all(0 < milestone < 1 for milestone in self.milestones), "above 0 and below 1 each"),
            ("warmup_steps", self.warmup_steps >= 0, "at least 0"),
            ("clip_norm", 0 <= self.clip_norm < math.inf, "at least 0"),
            ("auxiliary", 0 <= self.auxiliary < math.inf, "at least 0"),
            ("evaluation_batch", self.evaluation_batch is None or self.evaluation_batch >= 1, "at least 1"),
        ):
            if not holds:
                raise RequestError(f"recipe.{name} is {getattr(self, name)}; it needs to be {expected}.")

    def scale_learning_rate(self, factor: float) -> Recipe:
        """Return a copy with the learning rate multiplied by `factor`."""
        return dataclasses.replace(self, learning_rate=self.learning_rate * factor)

    def shorten(self, fidelity: float) -> Recipe:
        """Return a copy for a share of the schedule, of which the warmup takes no larger part than before."""
        return dataclasses.replace(self, warmup_steps=math.ceil(self.warmup_steps * fidelity))

    def steps(self, examples: int, fidelity: float = 1.0) -> int:
        """Return the number of optimizer steps on a number of training examples, in a share of the schedule."""
        return max(1, round(fidelity * self.epochs * max(1, examples // self.batch_size)))

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        done = (step - 1) / steps
        share = {"poly": (1 - done) ** self.power, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}
        # Rounded: a milestone is a whole number of epochs, whatever its share in floating point.
        share["steps"] = 0.1 ** sum(step - 1 >= round(milestone * steps) for milestone in self.milestones)
        least = min(self.minimum_learning_rate, self.learning_rate)
        scheduled = least + (self.learning_rate - least) * share[self.schedule]
        return scheduled * min(1.0, step / self.warmup_steps) if self.warmup_steps else scheduled
