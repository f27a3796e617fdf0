"""A search from its first draw to its verdict, in one call; and the same run taken up again."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoloss import __version__, recipes
from autoloss.errors import RequestError, unknown
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.screen import bound_gains
from autoloss.run.naming import TaskReference, resolve_task
from autoloss.run.own_operators import operator_references, operator_table
from autoloss.run.pipeline import Observe, run
from autoloss.run.results import UNTRAINED, Search, best_entrants, read_run
from autoloss.run.starting import Start, parse_starts, test_starts
from autoloss.search.chance import derive_seed
from autoloss.search.history import History
from autoloss.search.proposers import find_proposer
from autoloss.settings import Configuration, ProtocolSettings
from autoloss.space.form import BranchForm
from autoloss.space.operators import Operator
from autoloss.space.own_operators import drawn as drawn_from
from autoloss.store import samples as sample_files
from autoloss.store import store as stores
from autoloss.store.crash_points import crash_point
from autoloss.store.database import warn
from autoloss.store.lock import Ownership
from autoloss.store.migrations import SAMPLES_DIGEST, digest_of_samples
from autoloss.store.store import Store
from autoloss.tasks.task import Task
from autoloss.tasks.training.threads import one_thread
from autoloss.trainings.confirm import confirm_and_compare
from autoloss.workers.dispatch import Dispatcher
from autoloss.workers.injection import FaultyWorkers
from autoloss.workers.job_runner import JobRunner
from autoloss.workers.machines import Machines, start_workers

Say = Callable[[str], None]
"""Told what the run does next, in a sentence."""


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
    final: bool = True,
    observe: Observe | None = None,
    say: Say | None = None,
) -> Search:
    """Search a loss for a task.

    Args:
        task: A task, a name of `autoloss.tasks.names()`, or `file.py:name`.
        metric: What a task of the catalogue is judged by.
        evaluations: N, the number of proxy trainings.
        seed: Decides everything that is drawn; equal seeds give equal histories for any number of workers.
        workers: Processes that train and test; 0 does it all in this one.
        ray: `auto` starts a Ray cluster on this machine, an address uses one that is there; `workers` processes run on it.
        ray_insecure: Also use a cluster that anybody who reaches it can run code on.
        inject: Faults on purpose, such as `worker-crash=0.05,hang=0.01,seed=7`, to see a run survive them.
        directory: Where the run is kept; a new folder under `runs` by default.
        settings: `evolution.lag` and the like → value, as in `--set`; over those of the task's recipe.
        options: Further keyword arguments of a task of the catalogue.
        start: Losses that are known: a file with one on each line, names of the zoo and formulas with commas between, or several
            of these. The first children are those of them that pass the rejection protocol.
        frozen: Branch → the name or formula of a loss that it keeps; empty for the task's standard one.
        without: Operators of Table 1 that are switched off.
        operators: Operators of your own, or `file.py:name` of one or several.
        also: Further metrics of the task to show beside the score.
        final: Re-train the best on fresh seeds and compare them with baselines on the test split.
        observe: Told a `Progress` about twice a second.
        say: Told what the run does next.

    Raises:
        RequestError: Something asked for does not exist or does not fit, the directory holds a run already, or the samples
            cannot gain what η asks for.
        OwnedError: Another process drives the run.
        RunError: Nothing passes the rejection protocol, or every training fails.
    """
    configuration = Configuration().changed(
        {
            **recipes.search_settings(task),
            **(settings or {}),
            **({} if evaluations is None else {"evaluations": evaluations}),
            **({} if seed is None else {"seed": seed}),
        }
    )
    find_proposer(configuration.search.proposer)
    machines = Machines(workers=workers, ray=ray, ray_insecure=ray_insecure, inject=inject)
    loaded, name = resolve_task(task, metric, options, frozen)
    check_also(also, loaded)
    asked = [*configuration.space.operators, *operators]
    table = operator_table(asked)
    starts = parse_starts([*configuration.evolution.start, *_several(start)], loaded.branches, table)
    configuration = _with_space(configuration, loaded, table, operator_references(asked), without, starts)
    path = Path(directory) if directory is not None else _fresh_directory(loaded, metric, configuration.seed)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{path} cannot be made: {error.strerror}. Name another folder with --out.") from None
    owner = Ownership(path)
    try:
        crash_point("owned")
        _refuse_finished(path)
        drawn = sample_files.draw_samples(loaded, configuration.rejection.samples, configuration.seed)
        _check_reach(loaded, drawn, configuration.rejection)
        sample_files.save(path, drawn)
        started_from = test_starts(starts, JobRunner(loaded, drawn, configuration, operators=table))
        for told in (*_idle(workers, configuration), *(found.line() for found in started_from)):
            (say or _silent)(told)
        with Store(path, write=True, say=say or warn) as store:
            store.write_settings(
                {
                    **_settings(configuration, name, loaded),
                    SAMPLES_DIGEST: digest_of_samples(path),
                    UNTRAINED: _untrained(loaded, configuration),
                    "start": json.dumps([found.values() for found in started_from]),
                    "also": json.dumps(list(also)),
                }
            )
            return _drive(path, store, loaded, drawn, configuration, table, machines, final, observe, say)
    except KeyboardInterrupt as interruption:
        interruption.add_note(_how_to_resume(path))
        raise
    finally:
        owner.close()


def resume(
    directory: str | Path,
    task: Task | None = None,
    *,
    evaluations: int | None = None,
    workers: int = 2,
    ray: str | None = None,
    ray_insecure: bool = False,
    inject: str | None = None,
    operators: Sequence[Operator] = (),
    final: bool = True,
    observe: Observe | None = None,
    say: Say | None = None,
) -> Search:
    """Go on with a run where it stopped; a finished one is only read and, where needed, compared.

    Args:
        task: The task of a run that was started with an object.
        evaluations: A new, larger budget N.
        operators: Those of a run that was started with objects.

    Raises:
        RequestError: There is no run, its task must be given, or the budget would shrink.
        OwnedError: Another process drives the run.
    """
    path = Path(directory)
    machines = Machines(workers=workers, ray=ray, ray_insecure=ray_insecure, inject=inject)
    Store(path).close()
    owner = Ownership(path)
    try:
        with Store(path, write=True, say=say or warn) as store:
            kept = store.started()
            configuration = Configuration.from_json(kept["configuration"])
            if evaluations is not None and evaluations != configuration.evaluations:
                configuration = _longer(configuration, evaluations)
                store.change_setting("configuration", configuration.to_json())
            name = TaskReference.from_json(kept["task"])
            loaded = name.of(task) if task is not None else name.load()
            same_task(kept, loaded, path)
            table = operator_table(configuration.space.operators, operators)
            drawn = sample_files.load(path, kept[SAMPLES_DIGEST])
            return _drive(path, store, loaded, drawn, configuration, table, machines, final, observe, say)
    except KeyboardInterrupt as interruption:
        interruption.add_note(_how_to_resume(path))
        raise
    finally:
        owner.close()


def _idle(workers: int, configuration: Configuration) -> list[str]:
    """Say so when there are workers that will never train; docs/results.md shows what a lag costs."""
    lag = configuration.evolution.lag
    if workers <= lag:
        return []
    return [
        f"At most {lag} of the {workers} workers will train at a time, since evolution.lag is {lag}; the others only test losses. "
        f"--set evolution.lag={2 * workers} keeps nearly all busy, and each loss then knows less of the latest ones."
    ]


def _settings(configuration: Configuration, name: TaskReference, task: Task) -> dict[str, str]:
    """Return what a run keeps of how it was started."""
    return {
        "configuration": configuration.to_json(),
        "task": name.to_json(),
        "title": task.name,
        "branches": json.dumps({branch: BranchForm.of(found).to_dict() for branch, found in task.branches.items()}),
        "release": __version__,
    }


def _untrained(task: Task, configuration: Configuration) -> str:
    """Return, as JSON, what the network scores that all trainings of the search begin with; null where a task cannot tell."""
    with one_thread():
        return json.dumps(task.untrained(derive_seed(configuration.seed, "training")))


def same_task(kept: Mapping[str, str], task: Task, path: Path) -> None:
    """Refuse to go on with a task that is not the run's: two histories would mix."""
    found = {"title": task.name, "branches": _settings(Configuration(), TaskReference(None), task)["branches"]}
    for name, value in found.items():
        if kept[name] != value:
            raise RequestError(
                f"The run in {path} was started with another task: its {name} is {kept[name]}, this one's {value}. "
                "Resume it with its own task, or start a new run."
            )


def _how_to_resume(path: Path) -> str:
    return f"Everything finished is saved. Go on with: autoloss resume {path}"


def _with_space(
    configuration: Configuration,
    task: Task,
    table: Mapping[str, Operator],
    own: Sequence[str],
    without: Sequence[str],
    starts: Sequence[Start],
) -> Configuration:
    """Return the configuration with the space that was asked for, and what the search starts from."""
    off = tuple(dict.fromkeys([*configuration.space.without, *without]))
    drawn_from(table, off, {name: branch.leaves_and_roles for name, branch in task.branches.items()})
    losses = tuple(found.loss for found in starts)
    return configuration.changed({"space.without": off, "space.operators": own, "evolution.start": losses})


def _several(start: str | Sequence[str]) -> Sequence[str]:
    return [start] if isinstance(start, str) else start


def check_also(also: Sequence[str], task: Task) -> None:
    """Refuse a metric that the task does not measure beside its score; a task that declares none may have any."""
    for metric in also:
        if task.also is not None and metric not in task.also:
            raise unknown(f"further metric of the task {task.name}", metric, task.also)


def _silent(text: str) -> None:
    pass


def _drive(
    path: Path,
    store: Store,
    task: Task,
    drawn: sample_files.Samples,
    configuration: Configuration,
    table: Mapping[str, Operator],
    machines: Machines,
    final: bool,
    observe: Observe | None,
    say: Say | None,
) -> Search:
    history = History(task.branches, configuration)
    history.restore(store.children(), store.outcomes())
    crash_point("restored")
    workshop = JobRunner(task, drawn, configuration, history.known_keys, table)
    say = say or _silent
    with start_workers(workshop, machines) as pool:
        dispatcher = Dispatcher(pool, configuration.limits)
        store.rest_with(dispatcher.rest)
        end = run(history, store, dispatcher, observe)
        crash_point("search-ended")
        if final:
            best = best_entrants(history.finished, configuration.final.confirm)
            confirm_and_compare(best, task, configuration, dispatcher, store, say)
    if dispatcher.losses:
        say(dispatcher.describe_losses())
    if isinstance(pool, FaultyWorkers):
        say(pool.describe_faults(dispatcher.failed))
    # Losses that were found can then be used at once; whoever opens the run later has to give the operators again.
    handed_over = [table[name] for name in configuration.space.operators if name in table]
    return dataclasses.replace(read_run(path, store, end), own=handed_over)


def _check_reach(task: Task, drawn: sample_files.Samples, settings: ProtocolSettings) -> None:
    """Refuse a threshold that no loss can reach: the search would draw a million losses before it gave up."""
    for name, branch in task.branches.items():
        with one_thread():
            reference = measure_reference(branch, drawn[name])
        most = reference.score(bound_gains(reference), settings.unit)
        if most < settings.threshold:
            start = sum(reference.initial) / len(reference.initial)
            raise RequestError(
                f"No loss can pass on the branch {name}: an untrained network's metric is {start:.2f} on its samples already, "
                f"so g can be {most:.2f} at most ({settings.unit}), and η is {settings.threshold:g}. Use "
                "--set rejection.unit=relative, or a lower rejection.threshold."
            )


def _longer(configuration: Configuration, evaluations: int) -> Configuration:
    if evaluations < configuration.evaluations:
        raise RequestError(
            f"This run's budget is {configuration.evaluations} trainings; {evaluations} is less. "
            "A budget can grow: its shorter history stays the beginning of the longer one."
        )
    return configuration.changed({"evaluations": evaluations})


def _refuse_finished(path: Path) -> None:
    if stores.exists(path):
        raise RequestError(
            f"{path} already holds a run. Go on with it: autoloss resume {path} — or start another one with a new --out."
        )


def _fresh_directory(task: Task, metric: str | None, seed: int) -> Path:
    stem = "-".join(filter(None, (task.name, metric, f"seed{seed}")))
    numbered = (Path("runs") / (stem if number == 1 else f"{stem}-{number}") for number in itertools.count(1))
    return next(path for path in numbered if not path.exists())
