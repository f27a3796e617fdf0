"""`autoloss retrain`: a run's loss and the baselines, trained with the full schedule on several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoloss import recipes
from autoloss.comparison import entrant
from autoloss.comparison.entrant import Entrant
from autoloss.comparison.retrain import (
    CHECKPOINT_SECONDS,
    FULL,
    SCORE,
    Pace,
    Retrainer,
    Retraining,
    Say,
    choose_baselines,
    choose_execution,
)
from autoloss.errors import RequestError, RunError, unknown
from autoloss.options import Count, Positive, checked
from autoloss.run.notes import describe_changes
from autoloss.run.request import Request, prepare
from autoloss.run.resolving import load_task, operator_table, refer_to_task
from autoloss.run.results import Search, find_learning_rate, open_run
from autoloss.run.scoring import describe_misfits
from autoloss.run.user_files import check_trust, importable_files
from autoloss.space.operators import Operator
from autoloss.store import samples as sample_files
from autoloss.store.database import ignore
from autoloss.store.run_settings import TaskReference
from autoloss.tasks.catalogue import CATALOGUE
from autoloss.tasks.task import Task
from autoloss.training.loop import Execution

RETRAINING = "retraining"
"""Purpose of the training seeds, and the name of the folder in a run's."""
SEEDS = 3


@checked
@importable_files()
def retrain(
    directory: str | Path,
    individual: int | None = None,
    *,
    task: Task | None = None,
    recipe: str | None = None,
    options: Mapping[str, Any] | None = None,
    against: Sequence[str] | None = None,
    learning_rate: Positive | None = None,
    training_seeds: Count | None = None,
    split: str = "test",
    out: str | Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    channels_last: bool | None = None,
    checkpoint_seconds: float | None = None,
    operators: Sequence[Operator] = (),
    trust: bool = False,
    observe: Callable[[Pace], None] | None = None,
    say: Say | None = None,
) -> Retraining:
    """Train a loss of a run and the baselines with the full schedule.

    Started by torchrun, all processes share each training, and the first one writes.

    Args:
        individual: Number of the loss; the run's best when left out.
        task: The task of a run that was started with an object.
        recipe: Name of one of the paper's experiments in `autoloss.recipes`: its task, its options and its published results.
        options: Options of the task to change.
        against: Names of the zoo to train too, or `["all"]` for every baseline that fits; those of a comparison when left out.
        learning_rate: Factor on the learning rate of the full schedule, for all losses. When left out, each has the one that it was
            compared at in the run, and that of the search where it was not compared. On another task than the run's, all have 1.
        training_seeds: Trainings per loss, 3 when left out.
        split: What is measured.
        out: Where trainings are kept; a folder of the run by default.
        device: As in `Execution`, likewise `precision` and `channels_last`; the task's own when left out.
        checkpoint_seconds: How often the state of a training is kept; 120 when left out.
        operators: Those of a run that was started with objects.
        trust: Run the files that the run names, even if another user started it.
        observe: Called with the pace of the running training at each step.
        say: Called with a sentence before and after each training.

    Raises:
        RequestError: Something asked for does not exist or does not fit, or the folder holds another retraining.
        OwnedError: Another process trains in that folder.
        RunError: A training failed.
    """
    found = open_run(directory)
    loss = found.choose(individual)
    name, published = asked(found.settings.task, recipe, options or {})
    if task is not None and (given := [*(options or {}), *filter(None, [recipe])]):
        raise RequestError(f"A task object takes no options and no recipe; found {', '.join(given)}.")
    check_trust(found.settings, found.directory, trust, task=task is None)
    loaded = load_task(name, task)
    execution = choose_execution(loaded, device, precision, channels_last)
    if split not in loaded.splits:
        raise unknown("split", split, loaded.splits)
    if learning_rate is None and name.name != found.settings.task.name:
        learning_rate = 1.0
    rate = 1.0 if learning_rate is None else learning_rate
    configuration = found.configuration.changed({"search.learning_rate": rate})
    table = operator_table(found.operators, operators)
    request = Request(task=loaded, reference=name, configuration=configuration, operators=table)
    evaluator, tell = prepare(request, samples=False), say or ignore
    is_own = name == found.settings.task and loaded.branches.keys() == found.settings.branches.keys()
    changed = _describe_changes(request, found) if is_own else ""
    if changed:
        tell(changed)
    retrainer = Retrainer(
        directory=Path(out) if out is not None else Path(directory) / RETRAINING,
        evaluator=evaluator,
        settings=_settings(evaluator.task, name, split, execution or Execution(), changed),
        split=split,
        execution=execution,
        checkpoint_seconds=CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds,
        observe=observe,
        say=tell,
    )
    entrants, compared = [Entrant(f"#{loss.id}", loss.formula)], list[Entrant]()
    if against is None and learning_rate is None:
        others = [Entrant(**values) for values in found.settings.comparison.entrants]
        compared = [one for one in others if (one.baseline or one.known) and one.number != loss.id]
    if not compared:
        entrants += choose_baselines(against, loaded)
        for text in describe_misfits([one.loss for one in entrants], loaded):
            tell(text)
    entrants = [*_choose_learning_rates(entrants, found, learning_rate, tell), *compared]
    seeds = entrant.training_seeds(
        found.configuration.seed, RETRAINING, SEEDS if training_seeds is None else training_seeds
    )
    rows = retrainer.train(entrants, seeds)
    return Retraining(retrainer.directory, retrainer.settings, _metric(name), seeds, rows, published)


def asked(
    run: TaskReference, recipe: str | None, options: Mapping[str, Any]
) -> tuple[TaskReference, Sequence[recipes.Published]]:
    """Return the task to train, and the paper's rows.

    A recipe on the run's own task changes the run's options; on another one, the metric is all that it takes over.
    """
    known = {name: row for name, row in recipes.RECIPES.items() if row.schedule == FULL}
    if recipe is not None and recipe not in known:
        raise unknown("recipe of a retraining", recipe, known)
    chosen = None if recipe is None else known[recipe]
    name = run.name if chosen is None else chosen.task
    kept = run.options if name == run.name else {key: run.options[key] for key in ("metric",) if key in run.options}
    frozen = run.frozen if name == run.name else {}
    wanted = {**kept, **({} if chosen is None else chosen.options), **options}
    reference = TaskReference(None, wanted, frozen) if name is None else refer_to_task(name, None, wanted, frozen)
    return reference, () if chosen is None else chosen.published


def _choose_learning_rates(
    entrants: Sequence[Entrant], found: Search, asked_for: float | None, say: Callable[[str], None]
) -> list[Entrant]:
    """Return the losses at the learning rate that is asked for, or those that they were compared at in the run."""
    if asked_for is None:
        chosen = [find_learning_rate(found, entrant) for entrant in entrants]
        compared = found.settings.comparison.entrants
        others = [one.label for one in chosen if one.label not in {values["label"] for values in compared}]
        if compared and others:
            say(
                f"The best learning rate of {', '.join(others)} is not known, since the run did not compare it; training at that "
                "of the search. `autoloss compare --top N` finds it for the N best losses; --learning-rate trains all at one."
            )
        return chosen
    return [replace(entrant, learning_rate=asked_for).spell_out() for entrant in entrants]


def _describe_changes(request: Request, found: Search) -> str:
    """Say how the task differs from the beginning of its run, as far as samples and data in memory tell."""
    try:
        samples = sample_files.load(found.directory, found.settings.samples_digest)
        return describe_changes(prepare(replace(request, samples=samples)), found.settings, untrained=False)
    except RequestError as error:
        return str(error)
    except RunError:
        # A run may come without its samples.
        return ""


def _settings(task: Task, name: TaskReference, split: str, execution: Execution, changed: str) -> dict[str, Any]:
    """Return what all trainings of one folder share."""
    return {
        "task": name.name or task.name,
        "options": dict(name.options),
        "split": split,
        "recipe": dict(task.recipe(FULL)),
        "precision": execution.precision,
        "channels_last": execution.channels_last,
        **({"changes": changed} if changed else {}),
    }


def _metric(name: TaskReference) -> str:
    """Return what the score is called: the metric's name where the catalogue knows it."""
    row = CATALOGUE.get(name.name or "")
    return str(name.options.get("metric", SCORE if row is None else row.metrics[0]))
