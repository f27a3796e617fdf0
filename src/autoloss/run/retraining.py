"""`autoloss retrain`: a run's loss and the baselines, trained with the full schedule on several seeds.

Each training has a folder of its own: its result when it is finished, its checkpoints until then. What is finished is
never trained again, so the same request goes on where it was stopped.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autoloss import recipes, zoo
from autoloss.errors import RequestError, RunError, unknown
from autoloss.run.naming import TaskReference, task_reference
from autoloss.run.own_operators import operator_table
from autoloss.run.progress import Pace
from autoloss.run.results import Found, Search, open_run
from autoloss.search.records import Outcome
from autoloss.space.loss import bind
from autoloss.space.operators import Operator
from autoloss.store.lock import Ownership
from autoloss.tasks.catalogue import CATALOGUE
from autoloss.tasks.task import Task, Training
from autoloss.tasks.training import distribution
from autoloss.tasks.training.checkpoints import Checkpoints, delete_checkpoints
from autoloss.tasks.training.execution import Execution
from autoloss.tasks.training.threads import one_thread
from autoloss.trainings.evidence import Entrant, seeds
from autoloss.trainings.retrained import (
    SCORE,
    Beside,
    Published,
    Retrained,
    Retraining,
    agree,
    ordered,
    result,
    write_result,
)
from autoloss.trainings.trials import baselines
from autoloss.workers.job_runner import to_record

RETRAINING = "retraining"
"""Purpose of the training seeds, and the name of the folder in a run's."""
FULL = "full"
"""The schedule."""
ALL = "all"
"""Stands for every baseline that fits the task."""
SEEDS = 3
CHECKPOINT_SECONDS = 120.0
"""A killed training loses at most so much."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """One training of a retraining."""

    entrant: Entrant
    number: int
    seed: int
    folder: Path

    @property
    def belongs(self) -> dict[str, Any]:
        return {"loss": self.entrant.loss, "seed": self.seed}


def retrain(
    directory: str | Path,
    individual: int | None = None,
    *,
    task: Task | None = None,
    recipe: str | None = None,
    options: Mapping[str, Any] | None = None,
    against: Sequence[str] | None = None,
    training_seeds: int | None = None,
    split: str = "test",
    out: str | Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    channels_last: bool | None = None,
    checkpoint_seconds: float | None = None,
    operators: Sequence[Operator] = (),
    observe: Callable[[Pace], None] | None = None,
    say: Say | None = None,
) -> Retraining:
    """Train a loss of a run and the baselines with the full schedule.

    Started by torchrun, all processes share each training, and the first one writes.

    Args:
        individual: Number of the loss; the run's best when left out.
        task: The task of a run that was started with an object.
        recipe: One of the paper's experiments, by its name in `autoloss.recipes`: its task and options, and its rows beside.
        options: Options of the task to change.
        against: Names of the zoo to train too, or `["all"]` for every baseline that fits; the task's standard loss and what else
            always applies when left out.
        training_seeds: Trainings per loss, 3 when left out.
        split: What is measured.
        out: Where trainings are kept; a folder of the run by default.
        device: As in `Execution`, likewise `precision` and `channels_last`; the task's own when left out.
        checkpoint_seconds: How often the state of a training is kept; 120 when left out.
        operators: Those of a run that was started with objects.
        observe: Told the pace of the training under way, each step.
        say: Told what is trained next, and what it came to.

    Raises:
        RequestError: Something asked for does not exist or does not fit, or the folder holds another retraining.
        OwnedError: Another process trains in that folder.
        RunError: A training failed.
    """
    found = open_run(directory)
    loss = _chosen(found, individual)
    name, published = asked(TaskReference.from_json(found.settings["task"]), recipe, options or {})
    loaded = _loaded(name, task, recipe, options)
    execution = _execution(loaded, device, precision, channels_last)
    count = SEEDS if training_seeds is None else training_seeds
    if count < 1:
        raise RequestError(f"{count} trainings per loss were asked for; expected at least 1.")
    if split not in loaded.splits:
        raise unknown("split", split, loaded.splits)
    place = Path(out) if out is not None else Path(directory) / RETRAINING
    table = operator_table(found.operators, operators)
    entrants = [Entrant(f"#{loss.id}", loss.formula), *_rivals(against, loaded)]
    for entrant in entrants:
        zoo.resolve(entrant.loss, loaded.branches, table)
    fresh = seeds(found.configuration.seed, RETRAINING, count)
    jobs = _planned(entrants, fresh, place)
    settings = _settings(loaded, name, split, execution or Execution())
    with distribution.process_group((execution or Execution()).device), _owned(place):
        distribution.run_on_first(lambda: agree(place, settings))
        every = CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds
        outcomes = _trained(jobs, loaded, table, split, execution, every, observe, say or (lambda text: None))
    rows = [
        Retrained(entrant, fresh, tuple(outcomes[job] for job in jobs if job.entrant == entrant))
        for entrant in entrants
    ]
    return Retraining(place, settings, _metric(name), ordered(rows), [Beside.of(row) for row in published])


def _planned(entrants: Sequence[Entrant], training_seeds: Sequence[int], place: Path) -> list[Job]:
    """Return all trainings, one seed of every loss before the next: whoever stops early can compare."""
    return [
        Job(entrant, number, seed, place / _folder(entrant) / f"seed-{number}")
        for number, seed in enumerate(training_seeds, start=1)
        for entrant in entrants
    ]


def _trained(
    jobs: Sequence[Job],
    task: Task,
    operators: Mapping[str, Operator],
    split: str,
    execution: Execution | None,
    checkpoint_seconds: float,
    observe: Callable[[Pace], None] | None,
    say: Say,
) -> dict[Job, Outcome]:
    """Return what each training came to; train those that are not finished."""
    # One process looks: to another, what the first one writes next might seem to have been there before.
    finished = distribution.run_on_first(lambda: [result(job.folder, job.belongs) for job in jobs])
    outcomes: dict[Job, Outcome] = {}
    for position, (job, outcome) in enumerate(zip(jobs, finished, strict=True), start=1):
        if outcome is None:
            label = f"{job.entrant.label}, seed {job.number}"
            say(f"Training {position} of {len(jobs)}: {label}.")
            training = Training(seed=job.seed, split=split, schedule=FULL)
            if execution is not None:
                belongs = {"loss": job.entrant.loss}
                keep = Checkpoints(directory=job.folder, is_due=Every(checkpoint_seconds), metadata=belongs)
                execution = replace(execution, checkpoints=keep)
            watched = _watched(label, task.steps(training), observe)
            outcome = _trained_one(job, task, operators, training, execution, watched)
            if distribution.rank() == 0:
                write_result(job.folder, job.belongs, outcome)
                delete_checkpoints(job.folder)
            say(f"{label}: {outcome.reason if outcome.score is None else f'{outcome.score:.4f}'}.")
        outcomes[job] = outcome
    return outcomes


def _trained_one(
    job: Job,
    task: Task,
    operators: Mapping[str, Operator],
    training: Training,
    execution: Execution | None,
    observe: Callable[[int, float], None] | None,
) -> Outcome:
    criterion = bind(zoo.resolve(job.entrant.loss, task.branches, operators)[1], task.branches)
    try:
        with one_thread():
            return to_record(task.train(criterion, training, execution, observe))
    except (RequestError, RunError):
        raise
    except Exception as error:
        raise RunError(
            f"Training {job.entrant.label}, seed {job.number}, failed: {type(error).__name__}: {error}. What is finished is kept; "
            "the same command goes on from there."
        ) from error


class Every:
    """Says when so many seconds have passed since it last said so."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def __call__(self, step: int) -> bool:
        now = time.monotonic()
        if now - self._last < self._seconds:
            return False
        self._last = now
        return True


def _watched(
    label: str, steps: int | None, observe: Callable[[Pace], None] | None
) -> Callable[[int, float], None] | None:
    if observe is None or distribution.rank():
        return None
    return lambda step, loss: observe(Pace(label, step, steps, loss))


@contextmanager
def _owned(place: Path) -> Iterator[None]:
    """Keep other processes out of a folder; those of the same training share it."""
    if distribution.rank():
        yield
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{place} cannot be made: {error.strerror}. Name another folder with --out.") from None
    owner = Ownership(place)
    try:
        yield
    finally:
        owner.close()


def asked(
    run: TaskReference, recipe: str | None, options: Mapping[str, Any]
) -> tuple[TaskReference, Sequence[Published]]:
    """Return the task to train, and the paper's rows.

    A recipe on the run's own task changes the run's options; on another one, the metric is all that it takes over.

    Raises:
        RequestError: There is no such recipe, or it is one of a search.
    """
    if recipe is None:
        changed = {**run.options, **options}
        return (
            TaskReference(None, changed, run.frozen)
            if run.name is None
            else task_reference(run.name, None, changed, run.frozen)
        ), ()
    known = {name: row for name, row in recipes.RECIPES.items() if row.schedule == FULL}
    if recipe not in known:
        raise unknown("recipe of a retraining", recipe, known)
    chosen = known[recipe]
    kept = (
        run.options if chosen.task == run.name else {key: run.options[key] for key in ("metric",) if key in run.options}
    )
    frozen = run.frozen if chosen.task == run.name else {}
    return task_reference(chosen.task, None, {**kept, **chosen.options, **options}, frozen), chosen.published


def _chosen(found: Search, individual: int | None) -> Found:
    ranked = found.top(len(found.history))
    if not ranked:
        raise RequestError(f"No loss of the run in {found.directory} has a score yet; nothing can be retrained.")
    if individual is None:
        return found.best
    for loss in ranked:
        if loss.id == individual:
            return loss
    listed = ", ".join(f"#{loss.id}" for loss in ranked[:10])
    raise RequestError(
        f"#{individual} is no loss with a score of its own in {found.directory}. The best that are: {listed}."
    )


def _loaded(name: TaskReference, task: Task | None, recipe: str | None, options: Mapping[str, Any] | None) -> Task:
    if task is not None:
        given = [*(options or {}), *([] if recipe is None else [recipe])]
        if given:
            raise RequestError(
                f"A task object takes neither options nor a recipe; found {', '.join(given)}. Make it as it is to be trained."
            )
        return name.of(task)
    if name.name is None:
        raise RequestError(
            "This run's task was handed over in Python; retrain it with autoloss.retrain(directory, task=…)."
        )
    return name.load()


def _execution(task: Task, device: str | None, precision: str | None, channels_last: bool | None) -> Execution | None:
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


def _rivals(against: Sequence[str] | None, task: Task) -> list[Entrant]:
    """Return the losses that are trained beside the found one; `ce` is short for `baseline/ce`."""
    if against is None:
        return baselines(task)
    if list(against) == [ALL]:
        return baselines(task, every=True)
    found = []
    for name in dict.fromkeys(against):
        known = [full for full in (name, f"baseline/{name}") if full in zoo.names()]
        if not known:
            raise unknown("loss in the zoo", name, zoo.names())
        found.append(Entrant(known[0], known[0], baseline=True))
    return found


def _folder(entrant: Entrant) -> str:
    return re.sub(r"[^\w.]+", "-", entrant.label.replace("#", "loss-")).strip("-")


def _settings(task: Task, name: TaskReference, split: str, execution: Execution) -> dict[str, Any]:
    """Return what all trainings of one folder share."""
    return {
        "task": name.name or task.name,
        "options": dict(name.options),
        "split": split,
        "recipe": dict(task.recipe(FULL)),
        "precision": execution.precision,
        "channels_last": execution.channels_last,
    }


def _metric(name: TaskReference) -> str:
    """Return what the score is called: the metric's name where the catalogue knows it."""
    if "metric" in name.options:
        return str(name.options["metric"])
    row = CATALOGUE.get(name.name or "")
    return SCORE if row is None else row.metric
