"""A search from its first draw to its verdict, and the same run taken up again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from autoloss import recipes
from autoloss.comparison.confirm import confirm_and_compare
from autoloss.errors import RequestError
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.machines import Machines, gpus_of_workers, start_workers
from autoloss.proposing.history import History
from autoloss.run.adapting import FEW_LOSSES, describe_failures, describe_prospects
from autoloss.run.changes import describe_changes
from autoloss.run.loop import run_loop
from autoloss.run.progress import Finale, Progress
from autoloss.run.request import Request, make_request, restore_request
from autoloss.run.results import Search, best_entrants, read_run
from autoloss.run.start import start_run
from autoloss.run.user_files import importable_files
from autoloss.settings import Configuration
from autoloss.space.operators import Operator
from autoloss.store import samples as sample_files
from autoloss.store import store as stores
from autoloss.store.crash_points import crash_point
from autoloss.store.database import warn
from autoloss.store.lock import Ownership
from autoloss.store.store import Store
from autoloss.tasks.task import Task
from autoloss.workers.gpus import describe_gpus
from autoloss.workers.injection import FaultyWorkers

Value = TypeVar("Value")


@importable_files()
def search(
    task: str | Task,
    *,
    metric: str | None = None,
    evaluations: int | None = None,
    seed: int | None = None,
    workers: int = 2,
    ray: str | None = None,
    ray_insecure: bool = False,
    inject: str | None = None,
    directory: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
    start: str | Sequence[str] = (),
    frozen: Mapping[str, str] | None = None,
    without: Sequence[str] = (),
    operators: Sequence[Operator | str] = (),
    also: Sequence[str] = (),
    recipe: str | None = None,
    final: bool = True,
    observe: Callable[[Progress], None] | None = None,
    observe_finale: Callable[[Finale], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Search:
    """Search a loss for a task.

    Args:
        task: A task, a name of `autoloss.tasks.names()`, or `file.py:name`.
        metric: What a task of the catalogue is judged by.
        evaluations: N, the number of proxy trainings.
        seed: Decides everything that is drawn; equal seeds give equal histories for any number of workers.
        workers: Processes that train and test; 0 does both in this process.
        ray: `auto` starts a Ray cluster on this machine, an address uses an existing one; `workers` processes run on it.
        ray_insecure: Also use a cluster that runs code for everybody who reaches it.
        inject: Faults to inject, such as `worker-crash=0.05,hang=0.01,seed=7`, to see a run survive them.
        directory: Where the run is kept; a new folder under `runs` by default.
        settings: `evolution.lag` and the like → value; over those of the recipe.
        options: Further keyword arguments of a task of the catalogue.
        start: Losses to start from: a file with one on each line; or, with commas between, formulas, names of the zoo, `zoo` for
            all of its formulas that fit, and folders of runs, for the ten best losses of each; or several of these. The first
            candidates are those of them that pass the rejection protocol.
        frozen: Branch → the name or formula of a loss that it keeps; empty for the task's standard one.
        without: Operators of Table 1 that are switched off.
        operators: Operators of your own, or `file.py:name` of one or several.
        also: Further metrics of the task to show beside the score.
        recipe: The settings to begin with: `default`, which finds most in some tens of trainings, or `paper`, those of the paper
            for 500 trainings; docs/results.md compares them.
        final: When the budget is spent, train the best candidates on new seeds and compare them with baselines on the test split.
        observe: Called with a `Progress` about twice a second.
        observe_finale: Called with a `Finale` after each of the trainings that follow the search.
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
    machines = Machines(workers=workers, ray=ray, ray_insecure=ray_insecure, inject=inject)
    given = {"evaluations": evaluations, "seed": seed}
    request = make_request(
        task,
        metric=metric,
        options=options,
        settings={
            **recipes.get_search_settings(task, recipe),
            **(settings or {}),
            **{name: value for name, value in given.items() if value is not None},
        },
        start=[start] if isinstance(start, str) else start,
        frozen=frozen,
        without=without,
        operators=operators,
        also=also,
    )
    path = Path(directory) if directory is not None else _choose_directory(request, metric)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{path} cannot be made: {error.strerror}. Give another directory.", argument="directory"
        ) from None
    with own_run(path):
        crash_point("owned")
        if stores.exists(path):
            raise RequestError(
                f"{path} already holds a run. Go on with it: autoloss resume {path} — or give another directory.",
                argument="directory",
            )
        for note in request.notes:
            (say or _ignore)(note)
        settings_of_run, samples = start_run(request, path, machines, say or _ignore)
        settings_of_run = replace(settings_of_run, final=final, workers=workers)
        with Store(path, write=True, say=say or warn) as store:
            store.write_settings(settings_of_run)
            request = replace(request, configuration=settings_of_run.configuration)
            return _Driver(request, path, store, samples, machines, observe, observe_finale, say or _ignore).run(final)


@importable_files()
def resume(
    directory: str | Path,
    task: Task | None = None,
    *,
    evaluations: int | None = None,
    workers: int | None = None,
    ray: str | None = None,
    ray_insecure: bool = False,
    inject: str | None = None,
    operators: Sequence[Operator] = (),
    final: bool | None = None,
    observe: Callable[[Progress], None] | None = None,
    observe_finale: Callable[[Finale], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Search:
    """Go on with a run where it stopped; a finished one is only read and, where needed, compared.

    Args:
        task: The task of a run that was started with an object.
        evaluations: A new, larger budget N.
        workers: As for `search`, likewise the arguments that are not described here. Those of the run when None, likewise `final`.
        operators: Those of a run that was started with objects.

    Raises:
        RequestError: There is no run, its task must be given, or the budget would shrink.
        OwnedError: Another process drives the run.

    >>> import autoloss
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01}
    >>> found = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, directory="iris")
    >>> longer = autoloss.resume("iris", task, evaluations=3, workers=0, final=False)
    >>> longer.history[:2] == found.history[:2]
    True
    """
    path = Path(directory)
    # What does not fit together is refused before the run is looked at.
    machines = Machines(workers=2 if workers is None else workers, ray=ray, ray_insecure=ray_insecure, inject=inject)
    # A directory without a run is refused before it is locked.
    Store(path).close()
    with own_run(path), Store(path, write=True, say=say or warn) as store:
        settings = store.settings()
        final = _keep_setting(store, "final", settings.final, final)
        workers = _keep_setting(store, "workers", settings.workers, workers)
        machines = replace(machines, workers=workers)
        request = restore_request(settings, path, task, operators)
        if evaluations is not None and evaluations != request.configuration.evaluations:
            request = replace(request, configuration=_extend_budget(request.configuration, evaluations))
            store.change_setting("configuration", request.configuration)
        samples = sample_files.load(path, settings.samples_digest)
        return _Driver(request, path, store, samples, machines, observe, observe_finale, say or _ignore).run(final)


@dataclass(frozen=True, slots=True)
class _Driver:
    """What a run is driven with."""

    request: Request
    directory: Path
    store: Store
    samples: sample_files.Samples
    machines: Machines
    observe: Callable[[Progress], None] | None
    observe_finale: Callable[[Finale], None] | None
    say: Callable[[str], None]

    def run(self, final: bool) -> Search:
        """Search until the budget is spent, then confirm and compare the best if `final`."""
        task, configuration, operators = self.request.task, self.request.configuration, self.request.operators
        history = History(task.branches, configuration)
        history.restore(self.store.candidates(), self.store.outcomes())
        crash_point("restored")
        runner = Evaluator(task, self.samples, configuration, history.known_keys, operators)
        if history.candidates and (final or history.end is None):
            for text in describe_changes(task, self.samples, self.store.settings()):
                self.say(text)
        for text in describe_gpus(gpus_of_workers(task, self.machines)):
            self.say(text)
        with start_workers(runner, self.machines, f"autoloss resume {self.directory}") as workers:
            dispatcher = Dispatcher(workers, configuration.limits)
            self.store.rest_with(dispatcher.queue.rest)
            end = run_loop(history, self.store, dispatcher, self._watch(history))
            crash_point("search-ended")
            if final:
                best = best_entrants(history.finished, configuration, self.store.settings().untrained)
                if not best and history.best is not None:
                    self.say("No loss improved the untrained network, so nothing is confirmed or compared.")
                confirm_and_compare(best, task, configuration, dispatcher, self.store, self.say, self._count())
        if dispatcher.queue.losses:
            self.say(dispatcher.queue.describe_losses())
        if isinstance(workers, FaultyWorkers):
            self.say(workers.describe_faults(dispatcher.failed))
        # The losses of the result can then be used at once; whoever opens the run later has to give the operators again.
        own = [operators[name] for name in configuration.space.operators if name in operators]
        return read_run(self.directory, end, own, task.branches)

    def _count(self) -> Callable[[int, int], None]:
        """Return what is told how many trainings of the finale are done."""
        began, before = time.monotonic(), None

        def count(done: int, expected: int) -> None:
            nonlocal before
            before = done if before is None else before
            if self.observe_finale is not None:
                self.observe_finale(Finale(done, expected, done - before, time.monotonic() - began))

        return count

    def _watch(self, history: History) -> Callable[[Progress], None]:
        """Return what is told the progress; it also says that trainings fail, and once and early that nothing may be found."""
        standard, first = self.store.settings().standard, history.configuration.search.rungs[0]
        waits = standard is not None
        due = 0

        def watch(progress: Progress) -> None:
            nonlocal waits, due
            if self.observe is not None:
                self.observe(progress)
            ended = len(history.outcomes)
            if ended > due:
                due = ended
                if text := describe_failures([*history.outcomes.values()], self.directory):
                    # Said again when as many more have ended.
                    due = 2 * ended
                    self.say(text)
            if not waits or ended < FEW_LOSSES:
                return
            short = [outcome.score for outcome in history.outcomes.values() if outcome.fidelity == first]
            scores = [score for score in short if score is not None]
            if standard is not None and len(scores) >= FEW_LOSSES:
                waits = False
                if text := describe_prospects(scores, standard):
                    self.say(text)

        return watch


@contextmanager
def own_run(directory: Path) -> Iterator[None]:
    """Keep other processes from driving a run; an interrupt gets a note on how to resume it."""
    owner = Ownership(directory)
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(f"Everything finished is saved. Go on with: autoloss resume {directory}")
        raise
    finally:
        owner.close()


def _keep_setting(store: Store, name: str, stored: Value, given: Value | None) -> Value:
    """Return what is given, which the run keeps from then on, or what it has."""
    if given is None or given == stored:
        return stored
    store.change_setting(name, given)
    return given


def _ignore(text: str) -> None:
    """Print nothing; the default when no callback is given."""


def _extend_budget(configuration: Configuration, evaluations: int) -> Configuration:
    if evaluations < configuration.evaluations:
        raise RequestError(
            f"This run's budget is {configuration.evaluations} trainings; {evaluations} is less. "
            "A budget can grow: its shorter history stays the beginning of the longer one."
        )
    return configuration.changed({"evaluations": evaluations})


def _choose_directory(request: Request, metric: str | None) -> Path:
    stem = "-".join(filter(None, (request.task.name, metric, f"seed{request.configuration.seed}")))
    numbered = (Path("runs") / (stem if number == 1 else f"{stem}-{number}") for number in itertools.count(1))
    return next(path for path in numbered if not path.exists())
