"""Losses trained with the full schedule: their trainings are rows of a store of their own, and a killed one goes on.

A finished training is never repeated. The store of a run has one writer, its search, and a retraining may run on another machine
meanwhile; so a retraining has its own, of the same tables. A folder for each training holds its checkpoints and its network.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from autoloss import zoo
from autoloss.comparison.baselines import baselines, enter_loss
from autoloss.comparison.entrant import Entrant, Measurements, Row, collect_rows, sort_by_mean
from autoloss.errors import RequestError, unknown
from autoloss.evaluation.evaluator import Evaluator, explain_failures
from autoloss.files import parse_json
from autoloss.numbers import figure
from autoloss.proposing.records import Outcome, Train
from autoloss.recipes import Published
from autoloss.store.store import Say, Store, lock_run
from autoloss.tasks.task import Task
from autoloss.training import distribution
from autoloss.training.checkpoints import Checkpoints, delete_checkpoints, describe_differences
from autoloss.training.loop import Execution
from autoloss.training.training import Training

FILE = "retraining.sqlite"
"""The store in the folder of a retraining."""
SETTINGS = "retraining"
"""The setting that all its trainings share."""
FULL = "full"
"""The schedule of all trainings."""
SCORE = "score"
"""The column of the task's own metric where its name is not known."""
ALL = "all"
"""Stands for every baseline that fits the task."""
CHECKPOINT_SECONDS = 120.0
"""A killed training loses at most so much."""


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
        directory: Holds the store, and a folder for each training.
        settings: What all trainings of the directory share; one with others is refused.
        split: Split that is evaluated.
        execution: None where the task runs in a way of its own, and then a killed training starts anew.
        checkpoint_seconds: How often the state of a training is written.
        observe: Called with the pace of the training under way, each step.
        say: Called with a sentence before and after each training.
    """

    directory: Path
    evaluator: Evaluator
    settings: Mapping[str, Any]
    split: str
    execution: Execution | None
    checkpoint_seconds: float
    observe: Callable[[Pace], None] | None
    say: Say

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
            zoo.resolve(entrant.loss, self.evaluator.task.branches, self.evaluator.operators)
        # One seed of every loss before the next: who stops early can compare.
        plan = [(entrant, number) for number in range(len(seeds)) for entrant in entrants]
        with distribution.process_group((self.execution or Execution()).device), _open(self.directory) as store:
            # The first process reads and writes, and tells the others.
            finished = distribution.run_on_first(lambda: self._read(store))
            for position, (entrant, number) in enumerate(plan, start=1):
                label, job = f"{entrant.label}, seed {number + 1}", entrant.job(seeds[number], self.split, FULL)
                if job in finished:
                    continue
                self.say(f"Training {position} of {len(plan)}: {label}.")
                outcome = self._train(job, self._folder(entrant, number), label)
                if store is not None:
                    store.add_training(job.loss, job.training, outcome)
                    delete_checkpoints(self._folder(entrant, number))
                self.say(f"{label}: {outcome.reason if outcome.score is None else figure(outcome.score)}.")
            recorded = distribution.run_on_first(lambda: self._read(store))
        return sort_by_mean(collect_rows(entrants, seeds, self.split, recorded, FULL))

    def _read(self, store: Store | None) -> dict[Train, Outcome]:
        """Read the finished trainings, and refuse those of another retraining."""
        if store is None:
            return {}
        settings, known = json.dumps(self.settings, sort_keys=True), store.texts().get(SETTINGS)
        if known is None:
            store.change_setting(SETTINGS, settings)
        elif found := describe_differences(_flat(parse_json(known)), _flat(parse_json(settings))):
            raise RequestError(
                f"{self.directory} contains another retraining: {found}. Repeat it, or use another directory."
            )
        return store.trainings()

    def _folder(self, entrant: Entrant, number: int) -> Path:
        # Without its plus 1e+06 does not become 1e-06.
        name = re.sub(r"[^\w.]+", "-", entrant.label.replace("#", "loss-").replace("+", "")).strip("-")
        return self.directory / name / f"seed-{number + 1}"

    def _train(self, job: Train, folder: Path, label: str) -> Outcome:
        execution = self.execution
        if execution is not None:
            due = _make_interval(self.checkpoint_seconds)
            checkpoints = Checkpoints(directory=folder, is_due=due, metadata={"loss": job.loss})
            execution = replace(execution, checkpoints=checkpoints)
        with explain_failures(f"Training {label}", "Finished trainings are kept; the same command resumes."):
            return self.evaluator.train(job.loss, job.training, execution, self._observer(label, job.training))

    def _observer(self, label: str, training: Training) -> Callable[[int, float], None] | None:
        observe = self.observe
        if observe is None or distribution.rank():
            return None
        steps = self.evaluator.task.steps(training)
        return lambda step, loss: observe(Pace(label, step, steps, loss))


def _make_interval(seconds: float) -> Callable[[int], bool]:
    """Return a function of a step that is True at most once in so many seconds."""
    last = time.monotonic()

    def is_due(step: int) -> bool:
        nonlocal last
        due = time.monotonic() - last >= seconds
        last = time.monotonic() if due else last
        return due

    return is_due


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
        found.append(enter_loss(full))
    return found


@contextmanager
def _open(directory: Path) -> Iterator[Store | None]:
    """Open the store of a directory, and keep other processes out; None in all but the first process of a training."""
    if distribution.rank():
        yield None
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        found = "is a file" if directory.is_file() else f"cannot be made: {error.strerror}"
        raise RequestError(f"{directory} {found}. Give another directory.") from None
    with lock_run(directory), Store(directory, write=True, file=FILE) as store:
        yield store


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


@dataclass(frozen=True, slots=True)
class Retraining:
    """Losses that were trained with the full schedule, the best first.

    Args:
        settings: What all trainings share: task, options, schedule, split, recipe, precision.
        metric: The name of the score's column.
        seeds: The training seeds, in the order of the outcomes of each row.
        published: The paper's rows, in percent, if a recipe of it was asked for.
    """

    directory: Path
    settings: Mapping[str, Any]
    metric: str
    seeds: tuple[int, ...]
    rows: Sequence[Row]
    published: Sequence[Published] = ()

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns: the score, then whatever else was measured or published."""
        also = (name for row in self.rows for outcome in row.outcomes for name in outcome.also)
        published = (name for row in self.published for name in row.figures)
        return tuple(dict.fromkeys((self.metric, *also, *published)))

    def column(self, row: Row, figure: str) -> Measurements:
        """Return one column of a row; its mean and standard deviation are over the seeds."""
        return row.score if figure == self.metric else row.figure(figure)

    def shares(self, row: Published) -> dict[str, float]:
        """Return the published figures of a row in the unit of the columns."""
        return {metric: percent / 100 for metric, percent in row.figures.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "directory": str(self.directory),
            "settings": dict(self.settings),
            "metric": self.metric,
            "rows": [self._row_to_dict(row) for row in self.rows],
            "published": [{"label": row.label, "figures": self.shares(row)} for row in self.published],
        }

    def _row_to_dict(self, row: Row) -> dict[str, Any]:
        columns = {figure: self.column(row, figure) for figure in self.figures}
        return {
            **asdict(row.entrant),
            "seeds": list(self.seeds),
            "reasons": list(row.reasons),
            "figures": {
                figure: {"mean": column.mean, "sd": column.deviation, "values": list(column.values)}
                for figure, column in columns.items()
                if column.finite
            },
        }
