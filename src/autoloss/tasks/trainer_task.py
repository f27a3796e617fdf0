"""What tasks share whose networks are trained by `Trainer`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from autoloss.space.branch import Criterion
from autoloss.tasks.task import Task, check_training
from autoloss.training.execution import Execution
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import Trainer
from autoloss.training.training import Diverged, Observe, Scored, Training

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSchedule(Generic[Data]):
    """The schedule `full`.

    Args:
        network: Function without arguments that builds the network.
        recipe: Recipe of the training.
        train: Training data, which may include what a search holds out for validation; the proxy's when None.
    """

    network: Callable[[], Any]
    recipe: Recipe
    train: Data | None = None


class TrainerTask(Task):
    """A task that says how a training is set up, and leaves it to a `Trainer`.

    Attributes:
        recipes: The recipe of each schedule.
    """

    tunes_learning_rate = True
    shortens = True
    recipes: Mapping[str, Recipe]
    _trains_on_valid: Sequence[str] = ()
    """Schedules whose training data include what a search holds out for validation."""

    @abstractmethod
    def _trainer(
        self, criterion: Criterion, training: Training, execution: Execution | None = None
    ) -> Trainer[Any, Any]:
        """Return what trains and evaluates the network of a training that the task offers."""

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        check_training(self, criterion, training, self._list_splits(training.schedule))
        return self._trainer(criterion, training, execution).train(training, observe)

    def _list_splits(self, schedule: str) -> Sequence[str]:
        """Return the splits that a schedule can evaluate: not one that it trains on."""
        return [split for split in self.splits if split != "valid" or schedule not in self._trains_on_valid]

    def untrained(self, seed: int) -> float | None:
        return self._trainer({}, Training(seed=seed)).untrained(seed)

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        return self.recipes[schedule].as_values()
