"""Trainings without a search: given losses, a run's best beside the baselines, one beside its controls, or the ladder alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from autoloss import zoo
from autoloss.comparison.climbing import LEAST_BUDGET, climb_ladder
from autoloss.comparison.confirm import choose_compared, compare_with_baselines
from autoloss.comparison.entrant import TEST, Entrant, Rows, sort_by_mean
from autoloss.comparison.explain import explain_loss
from autoloss.comparison.explanation import Explanation
from autoloss.comparison.ladder import Ladder
from autoloss.comparison.record import Record
from autoloss.errors import RequestError, RunError, unknown
from autoloss.evaluation.dispatch import Machines, start_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.options import Count, Natural, checked
from autoloss.proposing.chance import derive_seed
from autoloss.run.beginning import describe_tries, settle_length
from autoloss.run.identities import Identifier
from autoloss.run.loop import Finale, Forecast, count_finale
from autoloss.run.notes import note_changes
from autoloss.run.request import Request, make_request, prepare, restore_request
from autoloss.run.results import find_learning_rate, open_run
from autoloss.run.user_files import importable_files
from autoloss.settings import Configuration, FinalSettings
from autoloss.space.expression import Expression
from autoloss.space.form import PROBABILITIES
from autoloss.space.loss_text import join_branches, split_branches
from autoloss.space.operators import Operator
from autoloss.store.database import ignore
from autoloss.store.store import Store, lock_run
from autoloss.tasks.task import Task
from autoloss.zoo.entries import say_loss

FINAL = FinalSettings()
TRAININGS = 24.0
"""Training equivalents that are enough for every kind of rung of the ladder, on three seeds at last."""
Observe = Callable[[Finale], None]


@contextmanager
def _start_record(
    evaluator: Evaluator, workers: int, observe: Observe, what: str, store: Store | None = None
) -> Iterator[Record]:
    """Start workers and a record of their trainings, whose progress is observed; earlier trainings do not count."""
    before = 0 if store is None else len(store.trainings())
    count = count_finale(observe, Forecast(max(1, workers)), what)
    with start_workers(evaluator, Machines(workers=workers)) as dispatcher:
        yield Record(dispatcher, store, observe=lambda done, expected: count(done - before, expected - before))


@checked
@importable_files()
def score(
    task: str | Task,
    losses: Sequence[str],
    *,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | Configuration | None = None,
    seeds: Count = 1,
    seed: Natural = 0,
    split: str = "valid",
    frozen: Mapping[str, str] | None = None,
    operators: Sequence[Operator | str] = (),
    also: Sequence[str] = (),
    workers: Natural = 2,
    say: Callable[[str], None] | None = None,
    observe: Observe = ignore,
) -> Rows:
    """Train a task with given losses and measure each.

    The first training uses the seed and the learning rate of a search with the same `seed` and settings, so it repeats a score of
    that search exactly.

    Args:
        task: As for `autoloss.search`, likewise `metric`, `options`, `frozen` and `operators`.
        losses: Formulas, names of the zoo, or files.
        settings: As for a search of the task; only `search.learning_rate`, `step_rule`, `length` and its limits matter.
        seeds: Trainings per loss.
        seed: Seed from which the training seeds are derived.
        split: Split that is evaluated, `valid` or `test`.
        also: Further metrics that the task has to measure; each row holds all of them.
        workers: Processes that train; 0 trains in this process.
        say: Called with a sentence for each loss that is a known one on this task, up to a factor, or one of other predictions.
        observe: Called with the progress after each training.

    Returns:
        One row per loss, the best first.

    Raises:
        RequestError: A loss is none of these, or does not fit the task; or the task does not follow `search.learning_rate`.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> rows = autoloss.score(task, ["baseline/ce", "baseline/dice"], workers=0)
    >>> rows[0].mean >= rows[1].mean
    True
    """
    request = make_request(
        task, settings, seed=seed, metric=metric, options=options, frozen=frozen, operators=operators, also=also
    )
    evaluator = prepare(request, samples=False)
    entrants = [_enter_loss(loss, request) for loss in losses]
    if split not in request.task.splits:
        raise unknown("split", split, request.task.splits)
    training_seeds = [evaluator.make_training().seed]
    training_seeds += [derive_seed(seed, "score", number) for number in range(1, seeds)]
    with _start_record(evaluator, min(workers, len(entrants) * seeds), observe, "training") as record:
        rows = sort_by_mean(record.compare_losses(entrants, training_seeds, split))
    if say is not None:
        for text in (*describe_misfits(losses, request.task), *_describe_identities(request, entrants)):
            say(text)
    return rows


def _enter_loss(loss: str, request: Request) -> Entrant:
    """Return a loss as it was given, trained as the candidates of a search are."""
    label, resolved = zoo.resolve(loss, request.task.branches, request.operators)
    named = [part in zoo.names() for part in split_branches(label).values()]
    # Workers may run where a file is not; names stay, since not every loss of the zoo is a formula.
    text = label if any(named) else join_branches(resolved)
    return Entrant(say_loss(label), text, baseline=all(named)).follow(request.configuration.search).spell_out()


def describe_misfits(losses: Sequence[str], task: Task) -> Iterator[str]:
    """Say of each loss of the zoo that it is one of probabilities where the task predicts values, or the other way round."""
    first = next(iter(task.branches.values()))
    for name, part in (pair for loss in losses for pair in split_branches(loss).items() if pair[1] in zoo.names()):
        kernels = zoo.get_entry(part).activation, task.branches.get(name, first).kernel
        if kernels.count("none") == 1 and {*PROBABILITIES} & {*kernels}:
            published, own = ("values" if one == "none" else "probabilities" for one in kernels)
            yield f"{part} is a loss of {published}, but the task predicts {own}."


def _describe_identities(request: Request, entrants: Sequence[Entrant]) -> Iterator[str]:
    """Say of each formula whether a loss of the zoo has its gradient on the task; nothing where the task's samples do not serve."""
    formulas = {one.label: one.loss for one in entrants if not one.baseline}
    if not formulas:
        return
    try:
        samples = prepare(request).samples
    except RequestError:
        return
    branches, standard = request.task.branches, request.task.standard
    known = {name: Identifier(branch, samples[name], standard.get(name)) for name, branch in branches.items()}
    for label, formula in formulas.items():
        trees = zoo.resolve(formula, branches, request.operators)[1]
        found = {name: known[name].identify(tree) for name, tree in trees.items() if isinstance(tree, Expression)}
        named = [f"{name}: {one}" if len(branches) > 1 else str(one) for name, one in found.items() if one is not None]
        if named:
            yield f"On this task, {label} has the gradient of {'; '.join(named)}."


@checked
@importable_files()
def compare(
    directory: str | Path,
    task: Task | None = None,
    *,
    top: Count = FINAL.compare,
    seeds: Count = FINAL.compare_seeds,
    workers: Natural = 2,
    baselines: Literal["usual", "all"] = "usual",
    operators: Sequence[Operator] = (),
    trust: bool = False,
    say: Callable[[str], None] | None = None,
    observe: Observe = ignore,
) -> Rows:
    """Compare the best losses of a run with the baselines on the test split.

    Each is trained on new seeds, at its best learning rate. What was trained before under the same seeds is not trained again.

    Args:
        directory: Folder of the run.
        task: The task of a run that was started with an object.
        top: Number of the best losses; the judgement is about the first of them.
        seeds: Training seeds of each loss and baseline.
        workers: Processes that train; 0 trains in this process.
        baselines: `usual`, those that a search ends with, or `all` that fit the task.
        operators: Those of a run that was started with objects.
        trust: Run the files that the run names, even if another user started it.
        say: Called with a sentence where the task is not the one that the run began with.
        observe: Called with the progress after each training.

    Returns:
        One row per loss, the best first.

    Raises:
        RequestError: There is no run, or none of its losses has a score.
        OwnedError: Another process drives the run.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> _ = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, directory="iris")
    >>> rows = autoloss.compare("iris", task, seeds=2, workers=0)
    >>> rows[0].mean >= rows[-1].mean
    True
    """
    path = Path(directory)
    Store(path).close()
    with lock_run(path), Store(path, write=True) as store:
        found = open_run(path)
        found.choose(None)  # Raises where no loss has a score.
        ranked = found.best_first(max(top, found.configuration.final.confirm))
        best = choose_compared([found.enter(loss.id, loss.formula) for loss in ranked], top)
        request = restore_request(found.settings, path, task, operators, trust)
        if TEST not in request.task.splits:
            raise RequestError(f"Task {request.task.name!r} has no test split; give one to compare on.")
        evaluator, tell = prepare(request), say or ignore
        note_changes(evaluator, found.settings, store, len(found.reader.settled), tell)
        with _start_record(evaluator, workers, observe, "comparing", store) as record:
            settings, every = request.configuration, baselines == "all"
            rows = compare_with_baselines(
                best, evaluator.task, settings, seeds, store, record, every=every, ladder=found.ladder, say=tell
            )
        judged_by = store.settings().comparison.seeds
        if judged_by > seeds:
            tell(f"The verdict is still that of the comparison over {judged_by} training seeds, not of this one.")
        return rows


@checked
@importable_files()
def explain(
    directory: str | Path,
    number: int | None = None,
    task: Task | None = None,
    *,
    seeds: Annotated[int, Field(ge=2)] = 5,
    workers: Natural = 2,
    operators: Sequence[Operator] = (),
    trust: bool = False,
    say: Callable[[str], None] | None = None,
    observe: Observe = ignore,
) -> Explanation:
    """Explain why a loss of a run is ahead of the standard loss.

    The loss is trained beside controls: the standard loss with its steps, with its weights of classes or by confidence, with other
    recipes, and simpler forms of the loss. What was trained before under the same seeds is not trained again.

    Args:
        directory: Folder of the run.
        number: Number of the loss; the best if None.
        task: The task of a run that was started with an object.
        seeds: Training seeds of the loss and of each control, at least 2.
        workers: Processes that train; 0 trains in this process.
        operators: Those of a run that was started with objects.
        trust: Run the files that the run names, even if another user started it.
        say: Called with a sentence about what is trained next.
        observe: Called with the progress after each training.

    Returns:
        The share of each cause in the gain, and the simplest change with the same effect; stored in the run.

    Raises:
        RequestError: There is no run or no such loss, `seeds` is below 2, or the task has no standard loss.
        OwnedError: Another process drives the run.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=4)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> _ = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, directory="to_explain")
    >>> found = autoloss.explain("to_explain", task=task, seeds=2, workers=0)
    >>> found.causes[-1].name
    'none of these'
    """
    path = Path(directory)
    Store(path).close()
    with lock_run(path), Store(path, write=True) as store:
        found = open_run(path)
        chosen = found.choose(number)
        evaluator = prepare(restore_request(found.settings, path, task, operators, trust))
        entrant, tell = find_learning_rate(found, Entrant(f"#{chosen.id}", chosen.formula)), say or ignore
        note_changes(evaluator, found.settings, store, len(found.reader.settled), tell)
        with _start_record(evaluator, workers, observe, "explaining", store) as record:
            explanation, plan = explain_loss(entrant, evaluator, seeds, record, tell)
        store.change_setting("explanation", asdict(plan))
        return explanation


@checked
@importable_files()
def tune(
    task: str | Task,
    *,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    frozen: Mapping[str, str] | None = None,
    trainings: Annotated[float, Field(ge=LEAST_BUDGET)] = TRAININGS,
    seed: Natural = 0,
    workers: Natural = 2,
    say: Callable[[str], None] = ignore,
    observe: Observe = ignore,
) -> Ladder:
    """Tune the training with a task's standard loss, on the valid split.

    Rates and step rules (as the recipe says, clipped, one norm of the gradient, AdamW), weights of the classes and of the
    branches, a tuned threshold, a longer training: all in short trainings first, the best in whole ones on several seeds.

    Args:
        task: As for `autoloss.search`, likewise `metric`, `options` and `frozen`.
        trainings: Training equivalents that may be spent, at least 2.
        seed: Seed from which the training seeds are derived.
        workers: Processes that train; 0 trains in this process.
        say: Called with a sentence on what is tried.
        observe: Called with the progress after each training.

    Returns:
        What was tried, the best first.

    Raises:
        RequestError: The task names no standard loss for every branch, or the budget is too small.
        RunError: No training has a score.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> ladder = autoloss.tune(task, trainings=4, workers=0)
    >>> ladder.best.mean >= ladder.given.mean
    True
    """
    request = make_request(task, seed=seed, metric=metric, options=options, frozen=frozen)
    evaluator = prepare(request)
    if not evaluator.has_standard:
        raise RequestError(f"The task {request.task.name} has no standard loss for every branch; declare `standard`.")
    machines = Machines(workers=workers)
    evaluator = settle_length(evaluator, machines, say)
    say(describe_tries(evaluator.task, trainings))
    began, forecast = time.monotonic(), Forecast(max(1, workers))

    def tell(recorded: int, expected: int) -> None:
        if recorded:
            spent = sum(job.training.fidelity * job.training.length for job in record.outcomes)
            seconds = time.monotonic() - began
            left = forecast.tell_trainings(max(0.0, trainings - spent), spent, seconds)
            observe(Finale(round(spent), round(trainings), seconds, left, "tuning the standard loss"))

    with start_workers(evaluator, machines) as dispatcher:
        record = Record(dispatcher, observe=tell)
        ladder = climb_ladder(evaluator, seed, trainings, record)
    if ladder.best is None:
        raise RunError(" ".join(ladder.describe()))
    return ladder
