"""Folders that are copied, moved, locked or robbed of their log while a search writes to them, and clocks that jump."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import toy
from autoloss.errors import RequestError, RunError
from autoloss.report.page.contents import gather_contents
from autoloss.store.read import Reader
from faults_driver import Clean, begun, committed, compared_with, driven_here, forked, waited
from faults_file import LOG
from promise import Shown

REFUSED = 4
"""The exit code of a driver that ends in words."""
PATIENCE_SECONDS = 60.0
AT_ONCE = 2
"""Trainings that a driver begins before it next writes."""
FILES, FOLDERS = 0o444, 0o555
OVERRIDES = 0b1110
"""Capabilities with which root reads and writes whatever the permissions say, as the kernel counts them."""


@dataclass
class Trial:
    """One run that something happens to."""

    directory: Path
    known: Clean
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    drivers: int = 0
    lost: int = 0
    in_log: int = 0
    """Trainings that at most a log held which was taken away; they are trained again."""

    @property
    def trace(self) -> Path:
        return self.directory.with_suffix(".trace")

    def begin(self, prepare: Callable[[], object] = lambda: None) -> int:
        """Start a driver and wait until it has finished a few trainings; returns its process."""
        process = self.start(self.directory, prepare)
        end, wanted = time.monotonic() + PATIENCE_SECONDS, self.rng.randint(2, self.known.evaluations)
        while begun(self.trace).total() < wanted and time.monotonic() < end:
            time.sleep(0.002)
        return process

    def start(self, directory: Path, prepare: Callable[[], object] = lambda: None, trace: Path | None = None) -> int:
        self.drivers += trace is None
        work = partial(_drive, directory, self.known, prepare)
        return forked(work, {toy.TRACE: str(trace or self.trace)})

    def expect(self, process: int, *statuses: int) -> None:
        """Wait for a driver."""
        if (status := waited(process)) not in statuses:
            self.wrong.append(f"a driver ended with {status}, not {' or '.join(map(str, statuses))}")

    def complete(self, directory: Path, prepare: Callable[[], object] = lambda: None) -> None:
        """Let the run come to its end, and compare it with the undisturbed one."""
        self.expect(self.start(directory, prepare), 0)
        self.lost += (self.known.begun - committed(directory)).total()
        if not compared_with(self.known, directory):
            self.wrong.append("another history")

    @property
    def repeated(self) -> int:
        """Finished trainings that ran again: a driver that ended interrupted one at most."""
        return max(0, begun(self.trace).total() - self.known.begun.total() - (self.drivers - 1) - self.in_log)


def _drive(directory: Path, known: Clean, prepare: Callable[[], object]) -> None:
    prepare()
    try:
        driven_here(directory, known.evaluations, known.settings)
    except (RunError, RequestError):
        raise SystemExit(REFUSED) from None


def _copy(trial: Trial, *, log: bool) -> None:
    driver, copy = trial.begin(), trial.directory.with_suffix(".copy")
    before = committed(trial.directory)
    shutil.copytree(trial.directory, copy, ignore=shutil.ignore_patterns(*([] if log else [LOG]), "*-shm"))
    trial.expect(driver, 0)
    try:
        found = committed(copy)
    except (RunError, RequestError):
        # A copy of a file that changes meanwhile is no copy; what counts is that it says so.
        found = None
    if found is not None:
        if log:
            trial.lost += (before - found).total()
        status = waited(trial.start(copy, trace=trial.trace.with_suffix(".copied")))
        if status not in (0, REFUSED) or (status == 0 and not compared_with(trial.known, copy)):
            trial.wrong.append(f"the copy came to something else ({status})")
    trial.complete(trial.directory)


def _move(trial: Trial) -> None:
    driver, place = trial.begin(), trial.directory.with_suffix(".moved")
    os.kill(driver, signal.SIGSTOP)
    # A driver that has begun its last training may have written everything.
    before = begun(trial.trace).total()
    trial.directory.rename(place)
    os.kill(driver, signal.SIGCONT)
    trial.expect(driver, REFUSED, *([0] if before >= trial.known.begun.total() else []))
    if (more := begun(trial.trace).total() - before) > AT_ONCE:
        trial.wrong.append(f"{more} trainings began when nobody could find the run")
    if trial.directory.exists():
        trial.wrong.append("a folder came back where the run was")
    trial.complete(place)


def _remove_log(trial: Trial) -> None:
    driver = trial.begin()
    (trial.directory / LOG).unlink(missing_ok=True)
    # Another reader makes a log of its own.
    with suppress(RunError, RequestError):
        committed(trial.directory)
    if trial.rng.random() < 0.5:
        os.kill(driver, signal.SIGKILL)
    trial.expect(driver, REFUSED, 0, -signal.SIGKILL)
    # The driver may have written to the log that it held open; one training may have been interrupted, as everywhere.
    trial.in_log = max(0, (begun(trial.trace) - committed(trial.directory)).total() - 1)
    trial.complete(trial.directory)


def _lock(trial: Trial) -> None:
    driver = trial.begin(obey_permissions)
    os.kill(driver, signal.SIGKILL)
    waited(driver)
    before = {path: path.stat().st_mode for path in (trial.directory, *trial.directory.iterdir())}
    for path in before:
        path.chmod(FOLDERS if path.is_dir() else FILES)
    # A run that was complete has nothing to write.
    trial.expect(trial.start(trial.directory, obey_permissions), REFUSED)
    for path, mode in before.items():
        path.chmod(mode)
    trial.complete(trial.directory)


def obey_permissions() -> None:
    """Take away the privileges with which root overrides permissions."""
    libc, header, sets = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~OVERRIDES
    libc.capset(header, sets)


def _jump(trial: Trial) -> None:
    trial.expect(trial.begin(_let_clocks_jump), 0)
    for path in trial.directory.iterdir():
        os.utime(path, (trial.rng.uniform(0, 4e9), trial.rng.uniform(0, 4e9)))
    trial.complete(trial.directory, _let_clocks_jump)
    gather_contents(Reader(trial.directory), live=True)


def _let_clocks_jump() -> None:
    now = time.time()
    times = itertools.cycle([now, 0.0, now + 1e9, -1e9, now - 3600, 4e9])
    mock.patch("time.time", side_effect=times).start()


KINDS: dict[str, Callable[[Trial], None]] = {
    "copied": partial(_copy, log=True),
    "copied without its log": partial(_copy, log=False),
    "moved": _move,
    "robbed of its log": _remove_log,
    "made read-only": _lock,
    "under a clock that jumps": _jump,
}
"""Events in the folder of a run while a search writes to it."""


def folders(folder: Path, known: Clean, times: int, kinds: Collection[str] = tuple(KINDS)) -> Shown:
    """Let each of these things happen so many times, each time at another moment."""
    trials: list[tuple[str, Trial]] = []
    for number, kind in itertools.product(range(times), kinds):
        place = folder / f"{kind.replace(' ', '-')}{number}"
        place.mkdir()
        trial = Trial(place / "run", known, random.Random(f"{kind} {number}"))
        try:
            KINDS[kind](trial)
        except (RunError, RequestError) as error:
            trial.wrong.append(str(error))
        trials.append((kind, trial))
    more: dict[str, Any] = {"kinds": dict(Counter(kind for kind, _ in trials))}
    wrong = [(kind, text) for kind, trial in trials for text in trial.wrong]
    return Shown(
        promise="a folder that is copied, moved, locked or robbed of its log, or a clock that jumps, loses nothing",
        trials=len(trials),
        lost=sum(trial.lost for _, trial in trials),
        repeated=sum(trial.repeated for _, trial in trials),
        history_equal="another history" not in {text for _, text in wrong},
        violations=tuple(f"a run {kind}: {text}" for kind, text in wrong),
        more=more,
    )
