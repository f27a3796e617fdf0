"""Base class of tasks whose networks are trained by `Trainer`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from autoloss.errors import RequestError
from autoloss.space.branch import Criterion
from autoloss.tasks.task import Task, check_training
from autoloss.training.execution import Execution
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import Trainer
from autoloss.training.training import Diverged, Observe, Scored, Training

Network = Callable[[], Any] | nn.Module
FULL_LENGTH = 10.0
"""Epochs of a recipe of the schedule `full` that leaves them to be chosen, in epochs of a proxy; as in the paper."""
Groups = Callable[[Any], Iterable[Mapping[str, Any]]]
"""Network → its parameter groups, each with a `factor` on the learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSchedule:
    """Differences of the schedule `full` from the proxy.

    Args:
        network: Function without arguments that builds the network; the proxy's if None.
        recipe: Recipe; the proxy's if None.
        groups: Makes parameter groups of the network; the proxy's if None.
        data: Split → data, for the splits that differ; None for a split that the schedule trains on and so cannot evaluate.
    """

    network: Network | None = None
    recipe: Recipe | None = None
    groups: Groups | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


class TrainerTask(Task):
    """A task that sets up each training and runs it with a `Trainer`.

    Attributes:
        recipes: Schedule → recipe.
    """

    tunes_learning_rate = True
    shortens = True
    lengthens = True
    replays_norms = True
    recipes: Mapping[str, Recipe]
    _full: FullSchedule
    _choices: Sequence[str] = ()
    _is_named = True

    @abstractmethod
    def _trainer(
        self, criterion: Criterion, training: Training, execution: Execution | None = None
    ) -> Trainer[Any, Any]:
        """Return the trainer of a training that was checked by `check_training`."""

    @staticmethod
    def _make_execution(device: str) -> Execution:
        """Return the execution of a task that is made with a device.

        Raises:
            RequestError: This machine has no such device.
        """
        try:
            return Execution(device=device)
        except RequestError as error:
            # Without `argument`: here the device is not an option of a command.
            raise RequestError(f"{error} It is the argument device of the task.") from None

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        check_training(self, criterion, training, self._list_splits(training.schedule))
        return self._trainer(criterion, training, execution).train(training, observe)

    def train_paced(
        self,
        criterion: Criterion,
        pacing: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        check_training(self, criterion, training, self._list_splits(training.schedule))
        pace = self._trainer(pacing, training, execution).record_norms(training)
        if isinstance(pace, Diverged):
            return Diverged(pace.step, f"in the training whose norms are replayed, {pace.reason}")
        return self._trainer(criterion, training, execution).train(training, observe, pace)

    def _list_splits(self, schedule: str) -> Sequence[str]:
        """Return the splits that a schedule can evaluate."""
        others = self._full.data if schedule == "full" else {}
        labels = dict.fromkeys((*self.splits, *others))
        return [label for label in labels if label != "train" and others.get(label, label) is not None]

    def untrained(self, seed: int) -> float | None:
        return self._trainer({}, Training(seed=seed)).untrained(seed)

    def suggest_name(self, name: str) -> None:
        """Take a name where none was given."""
        if not self._is_named:
            self.name = name

    def describe_data(self, text: str) -> None:
        """Add a sentence on what was read, for `choices`."""
        self._choices = [text, *self._choices]

    def choices(self) -> Sequence[str]:
        return self._choices

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        return self.recipes[schedule].as_values()


def describe_numbers(given: Recipe, chosen: Recipe, examples: int, steps: int) -> list[str]:
    """Say in a sentence which numbers of a recipe were chosen, in the form in which they can be given; nothing where all were.

    >>> recipe = Recipe(learning_rate=0.1)
    >>> describe_numbers(recipe, recipe.choose(200), 200, 204)
    ['Chosen for 200 training examples: epochs=17, batch_size=16 (204 steps).']
    """
    before, now = given.as_values(), chosen.as_values()
    numbers = [f"{name}={now[name]:g}" for name in ("epochs", "batch_size", "learning_rate") if before[name] is None]
    return [f"Chosen for {examples} training examples: {', '.join(numbers)} ({steps} steps)."] if numbers else []
