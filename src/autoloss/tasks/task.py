"""The interface between a search and a task (Section 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, final

from autoloss.errors import RequestError, quote, unknown
from autoloss.training.training import Diverged, Observe, Scored, Stopped, Training

# This module does not import torch at runtime: readers of a run import it.
if TYPE_CHECKING:
    from torch import Tensor

    from autoloss.settings import StepRule
    from autoloss.space.branch import Branch, Criterion, Sample
    from autoloss.training.loop import Execution


NETWORK = "network"
"""Key of the numbers that change with a task's network."""


@dataclass(frozen=True, slots=True)
class Picture:
    """An image with its target and the prediction of a trained network.

    Args:
        image: (C, H, W), with one channel (grey) or three (colour).
        target: Class of each pixel, (H, W).
        prediction: Predicted class of each pixel, (H, W).
    """

    image: Tensor
    target: Tensor
    prediction: Tensor


class Task(ABC):
    """A network, its data and its metric, for which losses are searched.

    A subclass implements `branches`, `samples` and `train`. All other members are optional and have defaults; callers use no other
    members. A search calls `branches` and `samples` in the driver, and `train` in the workers, to which the task is sent by
    cloudpickle. `tests/tasks/conformance.py` checks the whole contract.

    Attributes:
        name: Shown in tables and stored with a run.
        standard: Branch → formula or name in the zoo of the loss in common use: the baseline of `check` and of comparisons.
        baselines: Further losses in common use, each given by the branches in which it differs from `standard`.
        splits: Splits that `train` can evaluate, `valid` first; without `test` there are no comparisons on held-out data.
        folds: Number of partitions of the data into training and `valid` split that `train` offers, as `Training.fold`.
        schedules: Schedules of `train`: `proxy` first, for a search, and `full` for retraining.
        also: Names of the further metrics in `Scored.also`; None if they are not known in advance.
        tunes_learning_rate: Whether `train` follows `Training.learning_rate`. Comparisons then tune the learning rate of
            baselines; otherwise they tune the scale of the loss.
        shortens: Whether `train` follows a `Training.fidelity` below 1.
        step_rules: Values of `Training.step_rule` that `train` follows and that change anything, `recipe` first.
        lengthens: Whether `train` follows a `Training.length` other than 1.
        chooses_length: Whether the task chose the number of epochs by itself, and `lengthen` offers more.
        replays_norms: Whether `train` takes `pacing`.
        tunes_threshold: Whether `train` follows `Training.tuned_threshold`: predictions are decisions between yes and no.
        execution: Default of the argument `execution` of `train`; None if `train` ignores that argument.
        describe_reference: (split) → a sentence with the score of the usual alternative to a network; None if there is none.
        obstacle: Why nothing can be learned from the data, in a sentence, with which a search then ends; empty otherwise.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", metric="auc")
    >>> list(task.branches), task.splits
    (['main'], ('valid', 'test'))
    >>> criterion = autoloss.bind(autoloss.Loss("-y * log(p)"), task.branches)
    >>> task.train(criterion, Training(seed=0)).score > 0.9
    True
    """

    name: str = "task"
    standard: Mapping[str, str] = {}
    baselines: Sequence[Mapping[str, str]] = ()
    splits: Sequence[str] = ("valid", "test")
    folds: int = 1
    schedules: Sequence[str] = ("proxy", "full")
    also: Sequence[str] | None = None
    tunes_learning_rate: bool = False
    shortens: bool = False
    step_rules: Sequence[StepRule] = ("recipe",)
    lengthens: bool = False
    chooses_length: bool = False
    replays_norms: bool = False
    tunes_threshold: bool = False
    execution: Execution | None = None
    describe_reference: Callable[[str], str] | None = None
    obstacle: str = ""

    @property
    @abstractmethod
    def branches(self) -> Mapping[str, Branch]:
        """Branches by name, in a fixed order."""

    @abstractmethod
    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        """Draw training samples with the predictions of a randomly initialised network.

        A sample whose metric is undefined or already at its maximum is redrawn.

        Args:
            count: B, the number of samples of each branch.
            seed: Seed of the samples and of the network's weights; equal seeds give equal samples.
        """

    @abstractmethod
    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
        pacing: Criterion | None = None,
    ) -> Scored | Diverged | Stopped:
        """Train a new network with a criterion and evaluate it.

        Equal arguments give equal outcomes, regardless of earlier calls in the process.

        Args:
            criterion: One loss per branch; `autoloss.bind` makes it from trees or hand-written losses.
            training: Seed, split, schedule and everything else that decides the outcome. Where it is `resampled`, a task
                that can also measures `Scored.replicates` (`autoloss.tasks.metric` helps); without them, verdicts count
                training seeds only.
            execution: Device, precision and checkpoints; the task's `execution` if None.
            observe: Called with (step, training loss) after each step.
            pacing: Given only where the task `replays_norms`. A network is trained with it first, by the same training; then the
                gradient of each step is scaled to the norm that it had there, so that two losses differ by direction alone.

        Raises:
            RequestError: The task does not offer this training, or the criterion lacks a branch; see `check_training`.
        """

    def steps(self, training: Training) -> int | None:
        """Return the number of optimizer steps of a training, or None if it is unknown."""
        return None

    def untrained(self, seed: int, split: str = "valid") -> float | None:
        """Return the score of the untrained network of a proxy training with this seed, or None if it is unknown."""
        return None

    def fingerprints(self) -> Mapping[str, Sequence[float]]:
        """Return split → numbers that change with its data, and `NETWORK` → such of the network; none for what is not in memory."""
        return {}

    def constant_score(self) -> float | None:
        """Return the best score on `valid` of a prediction that is the same for all examples, or None if it is unknown."""
        return None

    def measuring(self, names: Sequence[str]) -> Task:
        """Return a task that also measures these further metrics in short trainings, since a run shows them.

        By default, the task itself: `train` decides when it measures them.
        """
        return self

    def lengthen(self, factor: float) -> Task:
        """Return a task whose trainings have so many times the epochs; only where the task `chooses_length`."""
        return self

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        """Return the settings of a schedule as plain values; they are stored with a retraining."""
        return {}

    def choices(self) -> Sequence[str]:
        """Return sentences on the data that were read and on what the task chose, for `check` and the start of a search."""
        return ()

    def diagnose(self) -> Sequence[str]:
        """Return one sentence for each apparent mistake in data or network, for `check` and the start of a search."""
        return ()

    def pictures(self, criterion: Criterion, training: Training, count: int) -> Sequence[Picture] | Diverged | Stopped:
        """Train as `train` does, and return the first `count` images of the split with the network's predictions.

        Raises:
            RequestError: The task does not predict images, or does not offer this training.
        """
        raise RequestError(f"The task {self.name} has no pictures. Use a segmentation task, or implement pictures().")


_DECLARED = {name for name in (*vars(Task), *Task.__annotations__) if not name.startswith("_")}
"""Public attributes and methods of a task."""


@final
class FrozenTask(Task):
    """A task without the branches in `losses`, which keep their loss; all other members are those of the wrapped task.

    This is the variant with two branches of Section 4.2: some keep a fixed loss while the others are searched.
    """

    def __init__(self, task: Task, losses: Criterion) -> None:
        self._task = task
        self._losses = losses
        forwarded = sorted(_DECLARED - vars(FrozenTask).keys())
        vars(self).update(zip(forwarded, attrgetter(*forwarded)(task), strict=True))
        self.standard = {branch: loss for branch, loss in task.standard.items() if branch not in losses}
        self.baselines = [other for other in task.baselines if not other.keys() & losses.keys()]

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {name: branch for name, branch in self._task.branches.items() if name not in self._losses}

    def measuring(self, names: Sequence[str]) -> Task:
        return FrozenTask(self._task.measuring(names), self._losses)

    def lengthen(self, factor: float) -> Task:
        return FrozenTask(self._task.lengthen(factor), self._losses)

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        samples = self._task.samples(count, seed)
        return {name: samples[name] for name in self.branches}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
        pacing: Criterion | None = None,
    ) -> Scored | Diverged | Stopped:
        paced = {} if pacing is None else {"pacing": {**self._losses, **pacing}}
        return self._task.train({**self._losses, **criterion}, training, execution, observe, **paced)

    def pictures(self, criterion: Criterion, training: Training, count: int) -> Sequence[Picture] | Diverged | Stopped:
        return self._task.pictures({**self._losses, **criterion}, training, count)


def check_training(task: Task, criterion: Criterion, training: Training, splits: Sequence[str] | None = None) -> None:
    """Check that a task offers a training, and that a criterion has all branches.

    Args:
        splits: Splits that the schedule can evaluate; `task.splits` if None.

    Raises:
        RequestError: The split, fold, schedule or step rule is unknown, a branch has no loss, or the task does not follow the
            fidelity, the learning rate, the length or a tuned threshold.
    """
    if training.schedule not in task.schedules:
        raise unknown("schedule", training.schedule, task.schedules)
    available = task.splits if splits is None else splits
    if training.split not in available:
        raise unknown(f"split of the schedule {training.schedule}", training.split, available)
    if training.fold >= task.folds:
        raise RequestError(
            f"The task {task.name} has {task.folds} fold{'s' * (task.folds != 1)}; found fold {training.fold}. Count folds from 0, "
            "or partition the data in train() and declare the number as `folds`."
        )
    if training.tuned_threshold and not task.tunes_threshold:
        raise RequestError(f"The task {task.name} cannot tune a threshold: declare `tunes_threshold = True`.")
    if training.step_rule not in task.step_rules:
        raise unknown(f"step rule of the task {task.name}", training.step_rule, task.step_rules)
    if not isinstance(criterion, Mapping):
        raise RequestError(
            f"criterion is {quote(criterion)}; expected a dictionary, branch → loss, as autoloss.bind returns."
        )
    for branch in task.branches:
        if branch not in criterion:
            raise unknown("loss for the branch", branch, criterion)
    for name, value, followed, declaration in (
        ("fidelity", training.fidelity, task.shortens, "shortens"),
        ("learning rate", training.learning_rate, task.tunes_learning_rate, "tunes_learning_rate"),
        ("length", training.length, task.lengthens, "lengthens"),
    ):
        if value != 1 and not followed:
            raise RequestError(
                f"The task {task.name} does not support a {name} other than 1; found {value:g}. Leave it at 1, or follow it in "
                f"train() and declare `{declaration} = True`."
            )
