"""Losses trained with the full schedule, each training in a folder of its own: its checkpoints until its result is there.

What is finished is never trained again, so the same request goes on where it was stopped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoloss import zoo
from autoloss.comparison.baselines import baselines
from autoloss.comparison.entrant import Entrant
from autoloss.comparison.retraining import check_settings, read_result, write_result
from autoloss.comparison.table import Row, sort_by_mean
from autoloss.errors import RequestError, RunError, unknown
from autoloss.evaluation.evaluator import to_record
from autoloss.proposing.records import Outcome
from autoloss.space.loss import bind, scale_criterion
from autoloss.space.operators import Operator
from autoloss.store.lock import Ownership
from autoloss.tasks.task import Task
from autoloss.training import distribution
from autoloss.training.checkpoints import Checkpoints, delete_checkpoints
from autoloss.training.execution import Execution
from autoloss.training.threads import one_thread
from autoloss.training.training import Training
from autoloss.workers.process_state import restored_state

ALL = "all"
"""Stands for every baseline that fits the task."""
CHECKPOINT_SECONDS = 120.0
"""A killed training loses at most so much."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pace:
    """The progress of a training under way.

    Args:
        label: The loss, and the number of its training seed.
        steps: Of the whole training; None where the task does not tell.
        loss: The training loss at this step.
    """

    label: str
    step: int
    steps: int | None
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrainer:
    """Trains losses on a task, one after the other. Started by torchrun, all processes share each training.

    Args:
        directory: Holds a folder for each training.
        settings: What all trainings of the directory share; one with others is refused.
        operators: Those that a formula may hold, by name.
        split: What is measured.
        schedule: What is trained.
        execution: How; None where the task runs in a way of its own, and then a killed training starts anew.
        checkpoint_seconds: How often the state of a training is written.
        observe: Called with the pace of the training under way, each step.
        say: Called with a sentence about what is trained next, and what it came to.
    """

    directory: Path
    task: Task
    settings: Mapping[str, Any]
    operators: Mapping[str, Operator]
    split: str
    schedule: str
    execution: Execution | None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    observe: Callable[[Pace], None] | None = None
    say: Say = lambda text: None

    def train(self, entrants: Sequence[Entrant], seeds: Sequence[int]) -> list[Row]:
        """Train every entrant on every seed; what is finished is read.

        Returns:
            One row per entrant, the best first.

        Raises:
            RequestError: A loss does not fit the task, or the directory holds other retrainings.
            OwnedError: Another process trains in the directory.
            RunError: A training failed.
        """
        for entrant in entrants:
            zoo.resolve(entrant.loss, self.task.branches, self.operators)
        # One seed of every loss before the next: who stops early can compare.
        plan = [(entrant, number) for number in range(len(seeds)) for entrant in entrants]
        with distribution.process_group((self.execution or Execution()).device), _owned(self.directory):
            distribution.run_on_first(lambda: check_settings(self.directory, self.settings))
            # One process reads: to another, what the first one writes next might seem to have been there before.
            finished = distribution.run_on_first(
                lambda: [self._read(entrant, seeds[number], number) for entrant, number in plan]
            )
            outcomes: dict[tuple[Entrant, int], Outcome] = {}
            for position, ((entrant, number), outcome) in enumerate(zip(plan, finished, strict=True), start=1):
                label = f"{entrant.label}, seed {number + 1}"
                if outcome is None:
                    self.say(f"Training {position} of {len(plan)}: {label}.")
                    outcome = self._train(entrant, seeds[number], number, label)
                    self.say(f"{label}: {outcome.reason if outcome.score is None else f'{outcome.score:.4f}'}.")
                outcomes[entrant, number] = outcome
        return sort_by_mean(
            [Row(entrant, tuple(outcomes[entrant, number] for number in range(len(seeds)))) for entrant in entrants]
        )

    def _folder(self, entrant: Entrant, number: int) -> Path:
        # Without its plus 1e+06 does not become 1e-06.
        name = re.sub(r"[^\w.]+", "-", entrant.label.replace("#", "loss-").replace("+", "")).strip("-")
        return self.directory / name / f"seed-{number + 1}"

    def _read(self, entrant: Entrant, seed: int, number: int) -> Outcome | None:
        return read_result(self._folder(entrant, number), {"loss": entrant.loss, "seed": seed})

    def _train(self, entrant: Entrant, seed: int, number: int, label: str) -> Outcome:
        folder = self._folder(entrant, number)
        training = entrant.job(seed, self.split, self.schedule).training
        losses = zoo.resolve(entrant.loss, self.task.branches, self.operators)[1]
        criterion = scale_criterion(bind(losses, self.task.branches), training.scale)
        execution = self.execution
        if execution is not None:
            due = Interval(self.checkpoint_seconds)
            execution = replace(
                execution, checkpoints=Checkpoints(directory=folder, is_due=due, metadata={"loss": entrant.loss})
            )
        try:
            with restored_state(), one_thread():
                outcome = to_record(self.task.train(criterion, training, execution, self._observer(label, training)))
        except (RequestError, RunError):
            raise
        except Exception as error:
            raise RunError(
                f"Training {label}, failed: {type(error).__name__}: {error}. What is finished is kept; the same command goes on "
                "from there."
            ) from error
        if distribution.rank() == 0:
            write_result(folder, {"loss": entrant.loss, "seed": seed}, outcome)
            delete_checkpoints(folder)
        return outcome

    def _observer(self, label: str, training: Training) -> Callable[[int, float], None] | None:
        observe = self.observe
        if observe is None or distribution.rank():
            return None
        steps = self.task.steps(training)
        return lambda step, loss: observe(Pace(label, step, steps, loss))


class Interval:
    """Says whether so many seconds have passed since it last said so."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def __call__(self, step: int) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def choose_execution(
    task: Task, device: str | None, precision: str | None, channels_last: bool | None
) -> Execution | None:
    """Return how the trainings run, or None where the task runs in a way of its own.

    Raises:
        RequestError: Such a task was asked to run in another way.
    """
    asked: dict[str, Any] = {"device": device, "precision": precision, "channels_last": channels_last}
    given = {name: value for name, value in asked.items() if value is not None}
    if task.execution is not None:
        return replace(task.execution, **given)
    if given or distribution.started_by_torchrun():
        wanted = ", ".join(given) or "several processes"
        raise RequestError(
            f"The task {task.name!r} declares no `execution`, so its trainings cannot be given {wanted}. Set the attribute and "
            "follow the argument `execution` in train(), or leave them out."
        )
    return None


def choose_baselines(names: Sequence[str] | None, task: Task) -> list[Entrant]:
    """Return the baselines to train too.

    Args:
        names: Names of the zoo, where `ce` is short for `baseline/ce`; `["all"]` for every baseline that fits; those that end a
            search when left out.

    Raises:
        RequestError: A name is not in the zoo.
    """
    if names is None or list(names) == [ALL]:
        return baselines(task, every=names is not None)
    found: list[Entrant] = []
    for name in dict.fromkeys(names):
        full = next((full for full in (name, f"baseline/{name}") if full in zoo.names()), None)
        if full is None:
            raise unknown("loss in the zoo", name, zoo.names())
        found.append(Entrant(full, full, baseline=True))
    return found


@contextmanager
def _owned(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory; those of the same training share it."""
    if distribution.rank():
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{directory} cannot be made: {error.strerror}. Give another directory.") from None
    owner = Ownership(directory)
    try:
        yield
    finally:
        owner.close()
