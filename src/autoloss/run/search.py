"""A search from its first draw to its verdict, and the same run taken up again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autoloss.comparison.confirm import confirm_and_compare, count_equivalents
from autoloss.comparison.ladder import Ladder
from autoloss.errors import RequestError, join_names
from autoloss.evaluation.adapting import Say, check_threshold
from autoloss.evaluation.dispatch import Machines, gpus_of_workers
from autoloss.evaluation.evaluator import Evaluator
from autoloss.options import Natural, checked
from autoloss.proposing.evolution import Archive
from autoloss.proposing.history import History
from autoloss.proposing.memory import recall
from autoloss.proposing.proposer import Proposer
from autoloss.proposing.proposers import check_proposer, make_proposer
from autoloss.run.beginning import Drive, prepare_search, write_start
from autoloss.run.loop import Forecast, NotebookLine, ObserveSearch, Progress, count_finale, run_loop
from autoloss.run.notes import Concerns, describe_plan, note_changes
from autoloss.run.request import Request, make_request, prepare, restore_request
from autoloss.run.results import Search, open_run
from autoloss.run.user_files import importable_files
from autoloss.settings import Configuration
from autoloss.space.loss import Loss
from autoloss.space.operators import Operator
from autoloss.store.database import ignore, resume_command, warn
from autoloss.store.read import read_once
from autoloss.store.run_settings import RunSettings
from autoloss.store.samples import FILE as SAMPLES
from autoloss.store.store import FILE, LOCK, Store, exists, lock_run
from autoloss.tasks.task import Task
from autoloss.workers.gpus import describe_gpus

LATEST = 50
"""Number of latest trainings by whose duration the time left is estimated."""
NOTHING_TRAINED = "Nothing was trained yet. Start the same search again."
"""What an interrupt is told before the settings of a run are stored."""


@checked
@importable_files()
def search(
    task: str | Task,
    *,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    evaluations: int | None = None,
    seed: int | None = None,
    workers: Natural | Machines = 2,
    ray: str | None = None,
    directory: str | Path | None = None,
    settings: Mapping[str, Any] | Configuration | None = None,
    recipe: str | None = None,
    start: str | Sequence[str] = (),
    frozen: Mapping[str, str] | None = None,
    operators: Sequence[Operator | str] = (),
    also: Sequence[str] = (),
    prior: str | Path | None = None,
    proposer: Proposer | None = None,
    archive: Archive | None = None,
    final: bool = True,
    observe: ObserveSearch | None = None,
    say: Say | None = None,
) -> Search:
    """Search a loss for a task.

    Args:
        task: A task, a name of `autoloss.tasks.names()`, or `file.py:name`.
        metric: Metric of a task of the catalogue.
        options: Further keyword arguments of a task of the catalogue.
        evaluations: N, the number of proxy trainings.
        seed: Seed of all random draws; equal seeds give equal histories for any number of workers.
        workers: Processes that train and test; 0 does both in this process. As `autoloss.Machines`, also how a Ray cluster is used
            and which faults are injected.
        ray: `auto` starts a Ray cluster on this machine, an address uses an existing one; `workers` processes run on it.
        directory: Folder of the run; a new one under `runs` by default.
        settings: Name, such as `evolution.lag` → value, to override the recipe's; or a whole `autoloss.Configuration`.
        recipe: The settings to begin with: `default`, which suits tens of trainings, or `paper`, those of the paper
            for 500 trainings; docs/measurements.md compares them.
        start: Losses to start from: a file with one on each line; or, separated by commas, formulas, names of the zoo, `zoo` or
            `shelf` for all of the formulas there that fit, and folders of runs, for the ten best losses of each; or several of
            these. The first candidates are those of them that pass the rejection protocol. They come beside those of the
            settings, by default the shelf; `none` leaves those out.
        frozen: Branch → the name or formula of a loss that it keeps; empty for the task's standard one.
        operators: Operators of your own, or `file.py:name` of one or several.
        also: Further metrics of the task to show beside the score.
        prior: A ranking of losses learned from earlier tasks: `default`, a file that `autoloss learn` wrote, or
            `none`; that of the settings when None, which is `default`, and `none` with the recipe `paper`.
        proposer: Plans the candidates, in the place of the one that `search.proposer` names; see `autoloss.Proposer`.
        archive: Finds parents, in the place of the ageing population; see `autoloss.Archive`.
        final: When the budget is spent, train the best candidates on new seeds and compare them with baselines on the test split.
        observe: Called with a `Progress` about twice a second, and with a `Finale` after each training that follows the search.
        say: Called with a sentence about what the run does next.

    Raises:
        RequestError: Something asked for does not exist or does not fit, the directory holds a run already, or the samples
            cannot gain what η asks for.
        OwnedError: Another process drives the run.
        RunError: Nothing passes the rejection protocol, or every training fails.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> found = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick)
    >>> len(found.top(2)), found.best.score == found.top(1)[0].score
    (2, True)
    """
    machines = _choose_machines(workers, ray)
    request = make_request(
        task,
        settings,
        recipe=recipe,
        evaluations=evaluations,
        seed=seed,
        metric=metric,
        options=options,
        start=[start] if isinstance(start, str) else start,
        frozen=frozen,
        operators=operators,
        also=also,
        prior=prior,
        proposer=proposer,
        archive=archive,
    )
    line = NotebookLine.find() if observe is None and say is None else None
    observe, say = (line.observe, line.say) if line is not None else (observe, say)
    tell = say or ignore
    path = Path(directory) if directory is not None else _choose_directory(request, metric)
    make_directory(path)
    with _own_run(path):
        if exists(path):
            raise RequestError(
                f"{path} already contains a run. Resume it: {resume_command(path)} — or give another directory.",
                argument="directory",
            )
        evaluator = _check_task(request, tell)
        after = count_equivalents(evaluator.configuration.final, evaluator.task) if final else 0.0
        tell(describe_plan(evaluator.configuration, after))
        with Store(path, write=True, say=say or warn) as store:
            forecast = Forecast(max(1, machines.workers))
            drive = Drive(store=store, machines=machines, forecast=forecast, observe=observe or ignore, say=tell)
            kept = write_start(request, evaluator, final, drive)
            memory = recall(kept.configuration.search, kept.branches, evaluator.operators)
            for text in memory.describe_unknown() if memory else ():
                tell(text)
            make = partial(make_proposer, proposer=proposer, archive=archive, memory=memory)
            return _go_on(evaluator, kept, request.start, make, drive)


def _check_task(request: Request, tell: Say) -> Evaluator:
    """Refuse a task on which no search can begin; tell what it chose, and what looks wrong."""
    evaluator = prepare(request)
    if evaluator.task.obstacle:
        raise RequestError(f"{evaluator.task.obstacle} Give other data: a search could not tell losses apart.")
    doubts = (f"Check the task: {doubt}" for doubt in evaluator.diagnose())
    for text in (*request.notes, *evaluator.task.choices(), *doubts):
        tell(text)
    check_threshold(evaluator)
    return evaluator


@checked
@importable_files()
def resume(
    directory: str | Path,
    task: Task | None = None,
    *,
    evaluations: int | None = None,
    data: str | None = None,
    workers: Natural | Machines | None = None,
    ray: str | None = None,
    operators: Sequence[Operator] = (),
    proposer: Proposer | None = None,
    archive: Archive | None = None,
    final: bool | None = None,
    trust: bool = False,
    observe: ObserveSearch | None = None,
    say: Say | None = None,
) -> Search:
    """Continue a run where it stopped; a finished one is only read and, where needed, compared.

    Args:
        task: The task of a run that was started with an object.
        evaluations: A new, larger budget N.
        data: Where the data of a task by name are now, if they have moved.
        workers: As for `search`, likewise the arguments that are not described here. Those of the run when None, likewise `final`.
        operators: Those of a run that was started with objects; likewise `proposer` and `archive`.
        trust: Run the files that the run names although another user, or another machine, started it.

    Raises:
        RequestError: There is no run, its task or another object must be given, or the budget would shrink.
        OwnedError: Another process drives the run.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> found = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, directory="iris")
    >>> longer = autoloss.resume("iris", task, evaluations=3, workers=0, final=False)
    >>> longer.history[:2] == found.history[:2]
    True
    """
    path, tell = Path(directory), say or ignore
    # What does not fit together is refused before the run is looked at.
    machines = _choose_machines(2 if workers is None else workers, ray)
    # A directory without a run is refused before it is locked.
    Store(path).close()
    with _own_run(path), Store(path, write=True, say=say or warn) as store:
        settings = store.settings()
        moved = settings.task if data is None else settings.task.with_data(data)
        request = restore_request(replace(settings, task=moved), path, task, operators, trust)
        budget = settings.configuration.evaluations
        if evaluations is not None and evaluations < budget:
            raise RequestError(
                f"This run's budget is {budget} trainings, and {evaluations} is less. A budget can only be raised."
            )
        configuration = settings.configuration.changed({"evaluations": budget if evaluations is None else evaluations})
        # Before anything is changed: a proposer that has to be given is asked for, and a prior that is not the run's is named.
        memory = recall(configuration.search, settings.branches, request.operators)
        check_proposer(configuration, proposer, archive)
        count = None if workers is None else machines.workers
        given = {"configuration": configuration, "workers": count, "final": final, "task": moved}
        changed = {name: value for name, value in given.items() if value not in (None, getattr(settings, name))}
        for name, value in changed.items():
            store.change_setting(name, value)
        settings = replace(settings, **changed)
        evaluator = prepare(replace(request, configuration=configuration))
        drive = Drive(
            store=store,
            machines=replace(machines, workers=settings.workers),
            forecast=Forecast(max(1, settings.workers)),
            observe=observe or ignore,
            say=tell,
        )
        make = partial(make_proposer, proposer=proposer, archive=archive, memory=memory)
        return _go_on(evaluator, settings, request.start, make, drive)


def _go_on(
    evaluator: Evaluator,
    settings: RunSettings,
    start: Mapping[Loss, str],
    make: Callable[[Configuration], Proposer],
    drive: Drive,
) -> Search:
    """Prepare the search where that was not done, restore what is recorded, and drive the run to its end."""
    if not settings.prepared:
        evaluator, settings = prepare_search(evaluator, settings, start, drive)
    history = History(evaluator.task.branches, evaluator.configuration, make(evaluator.configuration))
    history.restore(drive.store.candidates(), drive.store.search_trainings())
    evaluator.learn(history.verdicts)
    if history.candidates and (history.end is None or (settings.final and not _is_compared(drive.store))):
        note_changes(evaluator, settings, drive.store, len(history.candidates), drive.say)
    return _drive(evaluator, settings, history, drive)


def _is_compared(store: Store) -> bool:
    """Return whether the comparison that ends a run is recorded whole."""
    found = open_run(store.path.parent)
    compared = found.settings.comparison
    is_whole = 0 < len(compared.entrants) == len(found.comparison)
    return is_whole and compared.seeds >= found.configuration.final.compare_seeds


def _drive(evaluator: Evaluator, settings: RunSettings, history: History, drive: Drive) -> Search:
    """Search until the budget is spent, then confirm and compare the best if the settings say so."""
    task, configuration, store, say = evaluator.task, evaluator.configuration, drive.store, drive.say
    directory = store.path.parent
    concerns, forecast = Concerns(history, directory), drive.forecast
    ladder = None if settings.ladder is None else Ladder.from_dict(settings.ladder)
    standard = None if ladder is None or ladder.best is None else ladder.best.mean
    after = count_equivalents(configuration.final, task, ladder) if settings.final else 0.0
    forecast.expect(after, store.trainings())

    def watch(progress: Progress) -> None:
        left = progress.budget - progress.trained
        latest = list(itertools.islice(reversed(history.outcomes.values()), LATEST))
        spent = (progress.trained_here, progress.seconds)
        seconds = forecast.tell(max(0.0, left), configuration.search.rungs[0], latest, *spent)
        drive.observe(replace(progress, eta_seconds=seconds, standard=standard))
        for text in concerns.describe():
            say(text)

    with drive.start_workers(evaluator) as dispatcher:
        for text in describe_gpus(gpus_of_workers(task, drive.machines)):
            say(text)
        end = run_loop(history, store, dispatcher, watch)
        if settings.final:
            found = open_run(directory)
            best = found.finalists
            if not best and configuration.final.candidates and history.best is not None:
                say("No loss improved the untrained network, so nothing is confirmed or compared.")
            count = count_finale(drive.observe, forecast)
            confirm_and_compare(best, task, configuration, dispatcher, store, say, count, ladder, found.rivals)
    for text in dispatcher.describe_losses():
        say(text)
    # The losses of the result can then be used at once; whoever opens the run later has to give the operators again.
    table = evaluator.operators
    own = [table[name] for name in configuration.space.operators if name in table]
    result = Search(read_once(directory), end, own, task.branches)
    # Nothing is read from the directory later: a caller may remove it.
    _ = result.history
    return result


@contextmanager
def _own_run(directory: Path) -> Iterator[None]:
    """Keep other processes from driving a run; an interrupt gets a note on how to go on."""
    with lock_run(directory):
        try:
            yield
        except KeyboardInterrupt as interruption:
            if exists(directory):
                interruption.add_note(f"Everything finished is saved. Go on with: {resume_command(directory)}")
            else:
                interruption.add_note(NOTHING_TRAINED)
            raise


def _choose_machines(workers: int | Machines, ray: str | None) -> Machines:
    machines = workers if isinstance(workers, Machines) else Machines(workers=workers)
    return machines if ray is None else replace(machines, ray=ray)


def _choose_directory(request: Request, metric: str | None) -> Path:
    stem = "-".join(filter(None, (request.task.name, metric, f"seed{request.configuration.seed}")))
    numbered = (Path("runs") / (stem if number == 1 else f"{stem}-{number}") for number in itertools.count(1))
    return next(path for path in numbered if not path.exists() or is_left_over(path))


LOGS = frozenset({".log", ".out", ".err", ".txt"})
"""Suffixes of files that a shell or a batch system may have put into the folder."""


def make_directory(path: Path) -> None:
    """Make the folder of a new run."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = _list_others(path)
    except OSError as error:
        found = "is a file" if path.is_file() else f"cannot be made: {error.strerror}"
        raise RequestError(f"{path} {found}. Name a folder.", argument="directory") from None
    if others and not exists(path):
        raise RequestError(
            f"{path} contains other files ({join_names(others[:3])}{', …' if len(others) > 3 else ''}). Name an empty folder.",
            argument="directory",
        )


def is_left_over(path: Path) -> bool:
    """Return whether a folder holds nothing but what a search writes before it begins; a search can start there."""
    return path.is_dir() and (path / LOCK).exists() and not _list_others(path) and not exists(path)


def _list_others(path: Path) -> list[str]:
    own = (LOCK, SAMPLES, FILE)
    found = sorted(entry.name for entry in path.iterdir())
    return [name for name in found if not name.startswith((".", *own)) and Path(name).suffix not in LOGS]
