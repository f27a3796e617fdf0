"""The seam between a search and what it searches for: a task, the trainings it is asked for, and what they come to (Section 3)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autoloss.errors import RequestError, unknown

# Nothing of this module needs torch when it runs: readers of a run import it.
if TYPE_CHECKING:
    from torch import Tensor

    from autoloss.space.branch import Branch, Criterion, Sample
    from autoloss.tasks.training.execution import Execution


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What decides a training's outcome, and the key under which that is stored.

    Args:
        seed: Decides initial weights, order of the data and augmentation; at least 0.
        split: What is measured: `valid` during a search; `test` only for final figures.
        schedule: Which of the task's schedules to train with.
        fidelity: Share of the schedule that is trained, in (0, 1].
        learning_rate: Factor on the schedule's learning rate, above 0.
        scale: Branch → factor on its loss, above 0; 1 where a branch is not named. Whoever asks for the training multiplies the
            criterion before the task sees it; `train` does not.

    Raises:
        RequestError: A value is outside its range.

    >>> Training(seed=0, split="test").schedule
    'proxy'
    """

    seed: int
    split: str = "valid"
    schedule: str = "proxy"
    fidelity: float = 1.0
    learning_rate: float = 1.0
    scale: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # One key for one training: a factor of 1 is no factor, and branches have no order.
        scale = {branch: float(factor) for branch, factor in sorted(self.scale.items()) if factor != 1}
        object.__setattr__(self, "scale", scale)
        for name, value, holds, expected in (
            ("seed", self.seed, self.seed >= 0, "at least 0"),
            ("fidelity", self.fidelity, 0 < self.fidelity <= 1, "above 0 and at most 1"),
            ("learning_rate", self.learning_rate, 0 < self.learning_rate < math.inf, "above 0"),
            *((f"scale[{branch!r}]", factor, 0 < factor < math.inf, "above 0") for branch, factor in scale.items()),
        ):
            if not holds:
                raise RequestError(f"The training's {name} is {value}; it needs to be {expected}.")

    def __hash__(self) -> int:
        return hash(
            (self.seed, self.split, self.schedule, self.fidelity, self.learning_rate, tuple(self.scale.items()))
        )


@dataclass(frozen=True, slots=True)
class Scored:
    """A training that ran to its end.

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
    """A training that the guard stopped, or whose metric is not finite.

    Args:
        step: The optimizer step, counted from 1, at which it showed.
        reason: What was not finite.
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A training that was cut short by a rule that was fixed when it was planned.

    Args:
        step: The last optimizer step that ran, counted from 1.
        reason: The rule.
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Picture:
    """An image beside its target and what a trained network predicts for it.

    Args:
        image: (C, H, W), one channel for grey or three for colours.
        target: The class of each pixel, (H, W); likewise `prediction`.
    """

    image: Tensor
    target: Tensor
    prediction: Tensor


Observe = Callable[[int, float], None]
"""Called with (step, training loss) while a training runs."""


class Task(ABC):
    """What losses are searched for.

    A subclass gives `branches`, `samples` and `train`. Everything else is optional: it is declared here with a default, and what a
    caller may ask of a task is what stands here. A search calls `branches` and `samples` once, in the driver, and `train` in the
    workers, to which the task travels by cloudpickle.

    Attributes:
        name: Shown in tables and stored with a run.
        standard: Branch → formula or name in the zoo of the loss in common use: the baseline of `check` and of comparisons.
        baselines: Further losses in common use, each by the branches in which it differs from `standard`.
        splits: What `train` can measure; without `test` there are no comparisons on held-out data.
        schedules: What `train` can train with: the search's `proxy`, and `full` for retraining.
        also: Names of the further metrics in `Scored.also`; None where the task does not declare them.
        tunes_learning_rate: Whether `train` follows `Training.learning_rate`. Comparisons then tune the learning rate of
            baselines; otherwise they tune the scale of the loss.
        shortens: Whether `train` follows a `Training.fidelity` below 1.
        execution: How trainings run unless `train` is given another `Execution`; None where the task runs in a way of its own
            and `train` ignores that argument.
    """

    name: str = "task"
    standard: Mapping[str, str] = {}
    baselines: Sequence[Mapping[str, str]] = ()
    splits: Sequence[str] = ("valid", "test")
    schedules: Sequence[str] = ("proxy", "full")
    also: Sequence[str] | None = None
    tunes_learning_rate: bool = False
    shortens: bool = False
    execution: Execution | None = None

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
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged | Stopped:
        """Train a new network with a criterion and measure it.

        Equal arguments give equal outcomes, whatever ran before in the process.

        Args:
            criterion: One loss per branch; `autoloss.bind` makes it of trees or of hand-written losses.
            training: Seed, split, schedule and the rest of what decides the outcome.
            execution: Device, precision and checkpoints; the task's own when left out.
            observe: Called with (step, training loss) as training goes on.

        Raises:
            RequestError: The task has no such split or schedule, or the criterion lacks a branch.
        """

    def steps(self, training: Training) -> int | None:
        """Return the number of optimizer steps of a training, or None where the task cannot tell."""
        return None

    def untrained(self, seed: int) -> float | None:
        """Return the score of the network that a proxy training with this seed begins with, or None where the task cannot tell."""
        return None

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        """Return what a schedule trains with as plain values, for records of a training."""
        return {}

    def pictures(self, criterion: Criterion, training: Training, count: int) -> Sequence[Picture] | Diverged | Stopped:
        """Train as `train` does, and return the first `count` images of the split with the network's predictions.

        Raises:
            RequestError: The task has no pictures.
        """
        raise RequestError(f"The task {self.name} has no pictures to draw.")


def check_training(task: Task, criterion: Criterion, training: Training, splits: Sequence[str] | None = None) -> None:
    """Refuse a training that a task cannot do.

    Args:
        splits: What the schedule can measure; those of the task when left out.

    Raises:
        RequestError: There is no such split or schedule, a branch has no loss, or the task does not follow the fidelity or the
            learning rate.
    """
    if training.schedule not in task.schedules:
        raise unknown("schedule", training.schedule, task.schedules)
    measurable = task.splits if splits is None else splits
    if training.split not in measurable:
        raise unknown(f"split of the schedule {training.schedule}", training.split, measurable)
    for branch in task.branches:
        if branch not in criterion:
            raise unknown("loss for the branch", branch, criterion)
    for name, value, followed, declaration in (
        ("fidelity", training.fidelity, task.shortens, "shortens"),
        ("learning rate", training.learning_rate, task.tunes_learning_rate, "tunes_learning_rate"),
    ):
        if value != 1 and not followed:
            raise RequestError(
                f"The task {task.name} trains at the {name} 1 only; found {value:g}. Leave it at 1, or follow it in train() and "
                f"declare `{declaration} = True`."
            )
