"""The request of a run, resolved and checked before anything is written, and the evaluator that every command starts from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoloss import recipes
from autoloss.errors import RequestError, keep_text, quote, unknown
from autoloss.evaluation.evaluator import Evaluator, Samples, draw_samples
from autoloss.proposing.evolution import Archive
from autoloss.proposing.memory import SHIPPED_PRIOR, UNINFORMED, read_prior
from autoloss.proposing.proposer import Proposer
from autoloss.proposing.proposers import check_proposer, name_proposer
from autoloss.proposing.records import NAME_CHARACTERS
from autoloss.run.resolving import load_task, operator_table, refer_to_task
from autoloss.run.starting_losses import name_losses, parse_starting_losses, read_losses
from autoloss.run.user_files import Trust, absolute_name, check_trust
from autoloss.settings import Configuration
from autoloss.space.branch import Branch, Sample
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss
from autoloss.space.operators import Operator
from autoloss.space.own_operators import select_operators
from autoloss.store import samples as sample_files
from autoloss.store.run_settings import RunSettings, TaskReference
from autoloss.tasks.task import Task

NOTHING = "none"
"""Word for a search that starts from no loss of its settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A task, and how losses are searched or trained for it.

    Args:
        reference: How the run refers to the task.
        operators: All that a formula may hold, by name.
        start: Losses to start from, each with its label.
        also: Further metrics to show beside the score.
        samples: Those of the run that is continued; None for a new one.
        notes: Sentences for the user on how the request was understood.
    """

    task: Task
    reference: TaskReference
    configuration: Configuration
    operators: Mapping[str, Operator]
    start: Mapping[Loss, str] = field(default_factory=dict[Loss, str])
    also: Sequence[str] = ()
    samples: Samples | None = None
    notes: Sequence[str] = ()


def prepare(request: Request, *, samples: bool = True) -> Evaluator:
    """Return the evaluator of a request, with the samples of its run, or new ones where it starts one.

    Args:
        samples: Whether losses are tested; for trainings alone, none are drawn.
    """
    task, configuration = request.task, request.configuration
    rate = configuration.search.learning_rate
    if rate != 1 and not task.tunes_learning_rate:
        raise RequestError(
            f"search.learning_rate is {rate:g}, and the task {task.name} does not support that. Leave it at 1, or follow "
            "Training.learning_rate in train() and declare `tunes_learning_rate = True`.",
            argument="settings",
        )
    if configuration.search.length != 1 and task.chooses_length:
        task = task.lengthen(configuration.search.length)
    found = request.samples
    if found is None:
        found = draw_samples(task, configuration.rejection.samples, configuration.seed) if samples else {}
    return Evaluator(task, found, configuration, request.operators)


def choose_settings(
    task: object, recipe: str | None, settings: Mapping[str, Any] | Configuration | None, **changes: Any
) -> Configuration:
    """Return the settings of a search.

    Args:
        recipe: The settings to begin with, as for `autoloss.search`.
        settings: Those that differ, or all of them.
        changes: Settings that are given as arguments; None where they are not.

    Raises:
        RequestError: There is no such recipe or setting, or a value does not fit.

    >>> choose_settings("tabular", None, {"rejection.steps": "2e2"}, seed=3, evaluations=None).rejection.steps
    200
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if not isinstance(settings, Configuration):
        begin = recipes.get_search_settings(task, recipe)
        return Configuration().changed({**begin, **(settings or {}), **given})
    if recipe is not None:
        raise RequestError(f"Give either a Configuration, which has all settings, or recipe={recipe!r}.")
    return settings.changed(given)


def make_request(
    task: str | Task,
    settings: Mapping[str, Any] | Configuration | None = None,
    *,
    recipe: str | None = None,
    evaluations: int | None = None,
    seed: int | None = None,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    start: Sequence[str] = (),
    frozen: Mapping[str, str] | None = None,
    operators: Sequence[Operator | str] = (),
    also: Sequence[str] = (),
    prior: str | Path | None = None,
    proposer: Proposer | None = None,
    archive: Archive | None = None,
) -> Request:
    """Resolve what a user asks for; the arguments are those of `autoloss.search`.

    Raises:
        RequestError: Something does not exist or does not fit.

    >>> make_request("tabular", seed=3, options={"data": "iris"}).task.name
    'tabular'
    """
    configuration = choose_settings(task, recipe, settings, evaluations=evaluations, seed=seed)
    configuration = _name_proposer(configuration, prior, proposer, archive)
    reference = refer_to_task(task, metric, options, frozen)
    own = [*configuration.space.operators, *operators]
    table, loaded = operator_table(own), load_task(reference, task)
    _check_task(loaded, configuration, also)
    off = tuple(dict.fromkeys(configuration.space.without))
    select_operators(table, off, {name: branch.leaves_and_roles for name, branch in loaded.branches.items()})
    known = name_losses(configuration.evolution.start)
    # Those that are given come first: a small budget does not reach all.
    wanted = [*read_losses(one for one in start if one != NOTHING), *([] if NOTHING in start else known)]
    losses, notes = parse_starting_losses(wanted, loaded, table, configuration.evolution.initial)
    configuration = configuration.changed(
        {
            "space.without": off,
            "space.operators": tuple(one.name if isinstance(one, Operator) else absolute_name(one) for one in own),
            "evolution.start": tuple(map(str, losses)),
        }
    )
    return Request(
        task=loaded.measuring(also) if also else loaded,
        reference=reference,
        configuration=configuration,
        operators=table,
        start=losses,
        also=tuple(also),
        notes=notes,
    )


def _name_proposer(
    configuration: Configuration, prior: str | Path | None, proposer: Proposer | None, archive: Archive | None
) -> Configuration:
    """Return the settings with the names of the run's proposer and prior; a proposer that does not ask for a prior has none."""
    used = proposer is None and configuration.search.proposer == "guided"
    if prior is not None and str(prior) != UNINFORMED and not used:
        raise RequestError(
            "A prior is used by search.proposer=guided only, and this search has another proposer. Omit one of the two.",
            argument="prior",
        )
    name = str(prior or configuration.search.prior) if used else UNINFORMED
    name = name if name in (SHIPPED_PRIOR, UNINFORMED) else str(Path(name).resolve())
    named = name_proposer(configuration.search.proposer, proposer, archive)
    changes = {"search.proposer": named, "search.prior": name, "search.prior_digest": read_prior(name)[1]}
    configuration = configuration.changed(changes)
    check_proposer(configuration, proposer, archive)
    return configuration


def restore_request(
    settings: RunSettings,
    directory: Path,
    task: Task | None = None,
    operators: Sequence[Operator] = (),
    trust: Trust = False,
) -> Request:
    """Resolve what a run was started with.

    Args:
        task: The task of a run that was started with an object; likewise `operators`.
        trust: Whether code that the run names is run, although somebody else started it.

    Raises:
        RequestError: The task or an operator has to be given, the task is not the run's, or nobody vouches for the run's code.
        RunError: The file of samples is missing or damaged.
    """
    check_trust(settings, directory, trust, task=task is None)
    place = Path(str(settings.task.options.get("data", "")))
    if task is None and place.is_absolute() and not place.exists():
        raise RequestError(
            f"The data of the run in {directory} are not at {place} any more. If they have moved: "
            f"autoloss resume {shlex.quote(str(directory))} --data PATH"
        )
    loaded = load_task(settings.task, task)
    forms = (
        {name: form.leave_out_samples() for name, form in branches.items()}
        for branches in (settings.branches, branch_forms(loaded))
    )
    for name, stored, found in (("title", settings.title, loaded.name), ("branches", *forms)):
        if stored != found:
            raise RequestError(
                f"The run in {directory} was started with another task: its {name} is {stored}; the {name} given is {found}. "
                "Resume it with its own task, or start a new run."
            )
    table = operator_table(settings.configuration.space.operators, operators)
    evolution = settings.configuration.evolution
    start = parse_starting_losses(name_losses(evolution.start), loaded, table, evolution.initial)[0]
    labels = {one.loss: one.label for one in settings.start}
    return Request(
        task=loaded.measuring(settings.also) if settings.also else loaded,
        reference=settings.task,
        configuration=settings.configuration,
        operators=table,
        start={loss: labels.get(str(loss), label) for loss, label in start.items()},
        also=settings.also,
        samples=sample_files.load(directory, settings.samples_digest),
    )


def _check_task(task: Task, configuration: Configuration, also: Sequence[str]) -> None:
    """Refuse names that no table could show or no branch has, a length that is not followed, metrics that are not measured."""
    if not task.branches:
        raise RequestError(
            f"The task {task.name} has no branches; expected at least one, such as {{'main': ActivatedBranch(…)}}."
        )
    given: Any = task.branches
    if not isinstance(given, Mapping) or not all(isinstance(one, Branch) for one in given.values()):
        raise RequestError(
            f"The branches of the task {task.name} are {quote(given)}; expected a dictionary such as "
            "{'main': ActivatedBranch(…)}."
        )
    if not isinstance(task.standard, Mapping):
        raise RequestError(
            f"The attribute standard of the task {task.name} is {quote(task.standard)}; expected a dictionary of the branches' "
            "losses, such as {'main': 'baseline/ce'}."
        )
    for what, name in [("name of the task", task.name), *(("name of a branch", name) for name in task.branches)]:
        if not isinstance(name, str) or name != keep_text(name, NAME_CHARACTERS):
            raise RequestError(
                f"The {what} is {keep_text(repr(name), 60)}, a {type(name).__name__} of {len(str(name))} characters; expected a "
                f"text of at most {NAME_CHARACTERS}. Give it a shorter one."
            )
    if configuration.search.length != 1 and not task.chooses_length:
        raise RequestError(
            f"search.length is {configuration.search.length:g}, and the task {task.name} did not choose its epochs by itself. "
            "Leave it at 1, and change the number of epochs where they are given.",
            argument="settings",
        )
    for name in also:
        if task.also is not None and name not in task.also:
            raise unknown(f"further metric of the task {task.name}", name, task.also)


def branch_forms(task: Task, samples: Mapping[str, Sequence[Sample]] | None = None) -> dict[str, BranchForm]:
    """Return what a run stores of a task's branches.

    Args:
        samples: Those of the run, which tell what kind of target each branch has.
    """
    return {name: branch.form((samples or {}).get(name, ())) for name, branch in task.branches.items()}
