"""The losses that take part in a comparison, and their training seeds."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from autoloss.proposing.chance import derive_seed
from autoloss.proposing.jobs import Train
from autoloss.space.loss_text import split_branches
from autoloss.training.training import Training

CONFIRMATION = "confirmation"
COMPARISON = "comparison"
"""Purposes of training seeds: the best again on the valid split, and beside the baselines on the test split."""
TEST = "test"
"""The split of final figures; no search looks at it."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """A loss with the learning rate and scale that it is trained at.

    Args:
        label: As tables show it.
        loss: A formula, a loss of several branches, or a name in the zoo.
        learning_rate: Factor on the learning rate of the task's schedule.
        scale: Factor on the loss of every branch.
        baseline: Whether it is a baseline rather than a loss that was found.
    """

    label: str
    loss: str
    learning_rate: float = 1.0
    scale: float = 1.0
    baseline: bool = False

    @property
    def number(self) -> int | None:
        """The number of the candidate that its label begins with, as in `#39 (lr × 3)`; None for another loss.

        >>> Entrant("#39 (lr × 3)", "mul(y, p)", learning_rate=3.0).number
        39
        """
        found = None if self.baseline else re.match(r"#(\d+)\b", self.label)
        return int(found[1]) if found else None

    def name_factor(self, short: str = "lr") -> Entrant:
        """Return it with a label that says at which factor it is trained, where that is not 1.

        >>> Entrant("#39", "mul(y, p)", learning_rate=3.0).name_factor().label
        '#39 (lr × 3)'
        """
        factor = self.learning_rate * self.scale
        return self if factor == 1 else replace(self, label=f"{self.label} ({short} × {factor:g})")

    def job(self, seed: int, split: str, schedule: str = "proxy") -> Train:
        """Return its training with a seed."""
        scale = dict.fromkeys(split_branches(self.loss), self.scale)
        training = Training(seed=seed, split=split, schedule=schedule, learning_rate=self.learning_rate, scale=scale)
        return Train(self.loss, training)


def training_seeds(seed: int, purpose: str, count: int) -> tuple[int, ...]:
    """Derive training seeds from a run's seed; those of different purposes differ.

    >>> training_seeds(0, COMPARISON, 3)[:2] == training_seeds(0, COMPARISON, 2)
    True
    """
    return tuple(derive_seed(seed, purpose, number) for number in range(count))
