"""The seam between a search and what it searches for: a task and the outcomes of training on it (Section 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from autoloss.space.branch import Branch, Criterion, Sample


@dataclass(frozen=True, slots=True)
class Scored:
    """A training that went through.

    Args:
        score: The metric on the split asked for; higher is better.
        also: Other figures by name, such as further metrics.
        curve: (step, training loss) pairs.
    """

    score: float
    also: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Diverged:
    """A training that the guard stopped, or whose metric is no number.

    Args:
        step: The optimizer step, counted from 1, at which it showed.
        reason: What was not finite.
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Picture:
    """An image beside its target and what a trained network makes of it.

    Args:
        image: (C, H, W), one channel for grey or three for colours.
        target: The class of each pixel, (H, W); likewise `prediction`.
    """

    image: Tensor
    target: Tensor
    prediction: Tensor


Observe = Callable[[int, float], None]
"""Told (step, training loss) while a training runs."""


class Task(ABC):
    """What losses are searched for. A subclass gives its branches, samples and a way to train; nothing else is needed.

    Attributes:
        name: Shown in tables and stored with a run.
        splits: What `train` can measure; without `test` there are no comparisons on held-out data.
        standard: Branch → formula or name in the zoo of the loss in common use; the baseline of `check` and of comparisons.
    """

    name: str = "task"
    standard: Mapping[str, str] = {}
    splits: Sequence[str] = ("valid", "test")

    @property
    @abstractmethod
    def branches(self) -> Mapping[str, Branch]:
        """The branches by name, in a fixed order."""

    @abstractmethod
    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        """Draw training samples with the predictions of a randomly initialised network.

        A sample whose metric is undefined or already at its best is redrawn.

        Args:
            count: B, the number of samples for each branch.
            seed: Decides the samples and the network's weights; equal seeds give equal samples.
        """

    @abstractmethod
    def train(
        self,
        criterion: Criterion,
        seed: int,
        *,
        split: str = "valid",
        schedule: str = "proxy",
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        """Train a fresh network with a criterion and measure it.

        Equal arguments give equal outcomes, whatever ran before in the process.

        Args:
            criterion: One loss per branch; `autoloss.bind` makes it of trees or of hand-written losses.
            seed: Decides initial weights, order of the data and augmentation.
            split: What is measured: `valid` during a search; `test` only for final figures.
            schedule: Which of the task's schedules to train with.
            observe: Told (step, training loss) as training goes on.
        """
