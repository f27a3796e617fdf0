"""A killed driver loses nothing; of two drivers one runs. Drivers are forked, so that a kill costs no imports."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import autoloss
import toy
from autoloss.errors import RequestError, RunError
from autoloss.run.results import open_run
from autoloss.store import store as stores
from autoloss.store.store import Store
from crash_points import POINTS, VARIABLE, install
from histories import as_text
from promise import Shown

SEED = 3
KILLS_PER_RUN = 20
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Clean:
    """An undisturbed run: its history, its trainings beside the search, and how often each training ran."""

    evaluations: int
    history: tuple[str, ...]
    trials: frozenset[tuple[str, str]]
    begun: Counter[int]
    seconds: float
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Account:
    """Work that was lost or repeated, over all kills."""

    kills: int = 0
    lost: int = 0
    repeated: int = 0
    history_equal: bool = True
    violations: list[str] = field(default_factory=list)


def clean(folder: Path, evaluations: int, settings: Mapping[str, Any] = toy.SETTINGS) -> Clean:
    """Run once undisturbed; what it compiles, later drivers inherit."""
    folder.mkdir(exist_ok=True)
    warm(folder)
    trace, began = folder / "clean.trace", time.monotonic()
    ended = driven(folder / "clean", evaluations, settings, trace=trace)
    if ended != 0:
        raise RuntimeError(f"The undisturbed run ended with {ended}.")
    history, trials = _finished(folder / "clean")
    return Clean(evaluations, history, trials, begun(trace), time.monotonic() - began, settings)


def kills_at_random(folder: Path, known: Clean, kills: int, seed: int = 0, where: str = "") -> Shown:
    """SIGKILL drivers at random points, so many in each run, and take the runs up again until they are through."""
    rng, account, number = random.Random(seed), Account(), 0
    while account.kills < kills:
        number += 1
        run, goal = Rehearsal(folder / f"random{number}", known, account), account.kills + KILLS_PER_RUN
        while account.kills < min(kills, goal) and run.session(kill_after=rng.uniform(0, known.seconds / 8)) != 0:
            account.kills += 1
        run.complete()
    return _shown(f"a driver killed at random points{where} loses nothing", account)


def kills_at_points(
    folder: Path, known: Clean, points: Sequence[str] = tuple(POINTS), counts: Sequence[int] = (1,)
) -> Shown:
    """End drivers at every named point; where a run has nothing left that passes it, the next one begins."""
    account, number = Account(), 0
    for count in counts:
        run = Rehearsal(folder / f"points{number}", known, account)
        for point in points:
            ended = run.session(crash=f"{point}:{count}")
            if ended == 0:
                run.check()
                number += 1
                run = Rehearsal(folder / f"points{number}", known, account)
                ended = run.session(crash=f"{point}:{count}")
            if ended == -signal.SIGKILL:
                account.kills += 1
            elif count == 1:
                account.violations.append(f"no driver ended at {point}: {ended}")
        run.complete()
        number += 1
    return _shown("a driver killed at every commit point loses nothing", account)


class Rehearsal:
    """One run whose drivers are killed; every session is held to what was finished before it."""

    def __init__(self, directory: Path, known: Clean, account: Account) -> None:
        self.directory = directory
        self.known = known
        self.account = account
        self.trace = directory.with_suffix(".trace")
        self.sessions = 0

    def session(self, *, crash: str = "", kill_after: float | None = None) -> int:
        """Start or resume the run in a process of its own; returns its exit code, negative for a signal."""
        finished, before = self._committed(), begun(self.trace)
        known = self.known
        ended = driven(
            self.directory, known.evaluations, known.settings, trace=self.trace, crash=crash, kill_after=kill_after
        )
        self.sessions += 1
        if ended not in (0, -signal.SIGKILL):
            self.account.violations.append(f"a driver ended with {ended}")
        self.account.lost += (finished - self._committed()).total()
        for mark, count in (begun(self.trace) - before).items():
            self.account.repeated += max(0, count - (self.known.begun[mark] - finished[mark]))
        return ended

    def _committed(self) -> Counter[int]:
        try:
            return committed(self.directory)
        except RunError as error:
            self.account.violations.append(str(error))
            return Counter()

    def complete(self) -> None:
        """Let the run come to its end."""
        self.session()
        self.check()

    def check(self) -> None:
        """Compare the finished run with the undisturbed one."""
        try:
            equal = compared_with(self.known, self.directory)
        except (RunError, RequestError) as error:
            equal = False
            self.account.violations.append(str(error))
        self.account.history_equal &= equal
        # One worker: a kill interrupts one training at most, and only an interrupted one is begun again.
        extra = begun(self.trace).total() - self.known.begun.total()
        if extra > self.sessions:
            self.account.repeated += extra - self.sessions


def driven(
    directory: Path,
    evaluations: int,
    settings: Mapping[str, Any] = toy.SETTINGS,
    *,
    trace: Path,
    crash: str = "",
    kill_after: float | None = None,
) -> int:
    """Start or resume a run in a forked driver, and wait for its end."""
    variables = {VARIABLE: crash, toy.TRACE: str(trace)}

    def drive() -> None:
        install()
        driven_here(directory, evaluations, settings)

    return waited(forked(drive, variables), kill_after)


def warm(folder: Path) -> None:
    """Compile here what forked drivers would each compile for themselves."""
    if not stores.exists(folder / "warm"):
        driven_here(folder / "warm", 2)


def driven_here(directory: Path, evaluations: int, settings: Mapping[str, Any] = toy.SETTINGS) -> None:
    if stores.exists(directory):
        autoloss.resume(directory, toy.TASK, workers=0)
    else:
        autoloss.search(toy.TASK, evaluations=evaluations, seed=SEED, workers=0, directory=directory, settings=settings)


def forked(work: Callable[[], None], variables: Mapping[str, str] = {}, output: Path | None = None) -> int:
    """Run something in a forked process that leaves without cleaning up; returns its process id."""
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        # The threads of this process, if it had any, are not in the forked one, where OpenMP would wait for them for ever.
        torch.set_num_threads(1)
        os.environ.update(variables)
        if output is not None:
            sys.stdout = sys.stderr = output.open("a", encoding="utf-8", buffering=1)
            os.dup2(sys.stdout.fileno(), 1)
            os.dup2(sys.stdout.fileno(), 2)
        work()
        status = 0
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def waited(process: int, kill_after: float | None = None, patience: float = PATIENCE_SECONDS) -> int:
    """Wait for a process, and kill it when its time is up; returns its exit code, negative for a signal."""
    left, looked = patience if kill_after is None else kill_after, time.monotonic()
    while left > 0:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
        # A machine that stood still for minutes gave the process no time either.
        now = time.monotonic()
        left, looked = left - min(now - looked, 1.0), now
    os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def begun(trace: Path) -> Counter[int]:
    """Return how often each training began."""
    lines = trace.read_text().splitlines() if trace.exists() else []
    return Counter(int(line.split()[1]) for line in lines if line.startswith("begin "))


def committed(directory: Path) -> Counter[int]:
    """Return the trainings whose outcome is in the store."""
    if not stores.exists(directory):
        return Counter()
    with Store(directory) as store:
        outcomes = [*store.outcomes().values(), *store.trainings().values()]
    return Counter(
        int(outcome.also["mark"] if "mark" in outcome.also else outcome.reason.removeprefix("mark "))
        for outcome in outcomes
    )


def compared_with(known: Clean, directory: Path) -> bool:
    """Say whether a finished run equals the undisturbed one."""
    return _finished(directory) == (known.history, known.trials)


def _finished(directory: Path) -> tuple[tuple[str, ...], frozenset[tuple[str, str]]]:
    """Return the history of a run, and its trainings beside the search without their times."""
    with Store(directory) as store:
        trials = store.trainings()
    kept = ((repr(job), repr((found.state, found.score, found.also, found.reason))) for job, found in trials.items())
    return tuple(as_text(open_run(directory).history)), frozenset(kept)


def _shown(promise: str, account: Account) -> Shown:
    return Shown(
        promise=promise,
        trials=account.kills,
        lost=account.lost,
        repeated=account.repeated,
        history_equal=account.history_equal,
        violations=tuple(account.violations),
    )
