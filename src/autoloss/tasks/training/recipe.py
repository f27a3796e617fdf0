"""What decides how a network is trained: optimizer, schedule, batch size and regularisation (Appendix A)."""

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
    """

    epochs: int = 3
    batch_size: int = 32
    """The last, incomplete batch of an epoch is left out unless it is the only one."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.02
    momentum: float = 0.9
    """Of SGD; Adam keeps its own."""
    weight_decay: float = 5e-4
    schedule: Literal["poly", "cosine", "constant", "steps"] = "poly"
    power: float = 0.9
    """Of the schedule poly: the rate falls as (1 − step/steps)^power."""
    milestones: tuple[float, ...] = (8 / 12, 11 / 12)
    """Of the schedule steps: shares of the training, after each of which the rate is a tenth."""
    minimum_learning_rate: float = 1e-4
    """What the rate falls to, never above `learning_rate`."""
    warmup_steps: int = 0
    """Steps over which the rate rises linearly to what the schedule says."""
    clip_norm: float = 0.0
    """What the norm of all gradients together is scaled down to where it is larger; 0 leaves them as they are, the paper's."""
    auxiliary: float = 0.0
    """Factor of the loss on each auxiliary prediction that the network gives in training."""
    evaluation_batch: int | None = None
    """Examples that are measured at once, 1 where they differ in size; as many as are trained on when None."""

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

    def at_learning_rate(self, factor: float) -> Recipe:
        """Return the same recipe at `factor` times its learning rate."""
        return dataclasses.replace(self, learning_rate=self.learning_rate * factor)

    def steps(self, examples: int) -> int:
        """Return the number of optimizer steps on so many training examples."""
        return self.epochs * max(1, examples // self.batch_size)

    def rate(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 1."""
        done = (step - 1) / steps
        share = {"poly": (1 - done) ** self.power, "cosine": (1 + math.cos(math.pi * done)) / 2, "constant": 1.0}
        # After a whole number of epochs, whatever rounding says of its share.
        share["steps"] = 0.1 ** sum(step - 1 >= round(milestone * steps) for milestone in self.milestones)
        least = min(self.minimum_learning_rate, self.learning_rate)
        scheduled = least + (self.learning_rate - least) * share[self.schedule]
        return scheduled * min(1.0, step / self.warmup_steps) if self.warmup_steps else scheduled
