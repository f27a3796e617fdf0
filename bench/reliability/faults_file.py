"""Damage to a run's files is named, and a full disk is waited for."""

from __future__ import annotations

import ctypes
import os
import random
import resource
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import autoloss
import toy
from autoloss.errors import RequestError, RunError
from autoloss.run.loop import Finale, Progress
from autoloss.run.results import open_run
from autoloss.store import database
from autoloss.store import samples as sample_files
from autoloss.store.read import read_once
from autoloss.store.store import FILE, Store
from faults_driver import SEED, Clean, compared_with, driven, forked, waited, warm
from promise import Shown

LOG = f"{FILE}-wal"
Damage = Callable[[bytearray, random.Random], None]


def flipped(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def truncated(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def damaged(folder: Path, flips: int, truncations: int, seed: int = 0) -> Shown:
    """Flip bits in the files of a killed run, and cut their ends off; read it then as `top` and as `resume` do."""
    warm(folder)
    killed, settled = _killed_run(folder)
    whole = {source: _content(source) for source in (killed, settled)}
    # A log hides the pages of the database that it has newer ones of, so both are damaged where they are read.
    places = [(settled, FILE), (killed, LOG)] * 4 + [(killed, FILE), (settled, sample_files.FILE)]
    rng, found, violations = random.Random(seed), Counter(), []
    plan: list[tuple[str, Damage]] = [("flip", flipped)] * flips + [("truncation", truncated)] * truncations
    for number, (name, damage) in enumerate(plan):
        source, file = places[number % len(places)]
        copy = _copy(source, folder / "copy")
        data = bytearray((copy / file).read_bytes())
        damage(data, rng)
        (copy / file).write_bytes(data)
        for write in (False, True):
            said = _verdict(copy, whole[source], write)
            found[f"{name}: {said.split(':')[0]}"] += 1
            # What a damaged log loses is trained again, and comes to the same.
            if said not in ("unharmed", "refused", *(["earlier"] if file == LOG else [])):
                violations.append(f"{name} {number} of {file}, {'written' if write else 'read'}: {said}")
    return Shown(
        promise="a damaged file is named, and nothing is silently wrong",
        trials=len(plan),
        violations=tuple(violations),
        more={"found": dict(found)},
    )


def _killed_run(folder: Path) -> tuple[Path, Path]:
    """Make a run that was killed, with rows in the database and in its log; and the same run with no log."""
    killed, trace = folder / "killed", folder / "killed.trace"
    driven(killed, 12, trace=trace, crash="outcome-committed:4")
    # The log goes into the database when the last connection closes; the next driver begins a new one.
    Store(killed, write=True).close()
    driven(killed, 12, trace=trace, crash="outcome-committed:4")
    settled = _copy(killed, folder / "settled")
    Store(settled, write=True).close()
    # Read from a copy: a reader leaves an empty log behind.
    return _copy(killed, folder / "source"), settled


def _copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-shm")))


def _content(directory: Path, write: bool = False) -> tuple[Any, ...]:
    """Return everything that a run holds."""
    with Store(directory, write=write) as store:
        kept = store.settings()
        rows = (kept, list(store.candidates()), store.outcomes(), store.trainings(), store.rejected())
    samples = sample_files.load(directory, kept.samples_digest)
    plain = [
        (name, one.prediction.tolist(), {key: tensor.tolist() for key, tensor in one.context.items()})
        for name, found in samples.items()
        for one in found
    ]
    return (*rows, plain, _looked(directory))


def _looked(directory: Path) -> tuple[Any, ...]:
    """Return everything that `top`, the report and the live page show."""
    reader = read_once(directory, thorough=True)
    shown = (reader.history(), reader.losses(reader.settled), reader.ranking, reader.best_by_size, reader.running)
    counts = (reader.totals, reader.times_found(reader.ranking), reader.trained(), reader.operators)
    lines = [reader.lineage(number) for number in reader.best_by_size]
    return (*shown, *counts, lines, reader.unscored, reader.examples, reader.trainings)


def _verdict(directory: Path, whole: tuple[Any, ...], write: bool) -> str:
    try:
        open_run(directory)
        found = _content(directory, write)
        return "unharmed" if found == whole else "earlier" if _is_earlier(found, whole) else "silently wrong"
    except (RunError, RequestError):
        return "refused"
    except Exception as error:
        return f"traceback: {type(error).__name__}: {error}"


def _is_earlier(found: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    """Say whether all that a run holds is what the whole one held, and it only lacks what came last."""
    lists = [(found[1], whole[1]), (found[-1][0], whole[-1][0])]
    tables = [(found[at], whole[at]) for at in (2, 3, 4)]
    return (
        (found[0], found[5]) == (whole[0], whole[5])
        and all(one == other[: len(one)] for one, other in lists)
        and all(one.items() <= other.items() for one, other in tables)
    )


def synced(directory: Path) -> list[str]:
    """Return the data that would not be on the disk after a power cut.

    No process can take the power away: looked at are SQLite's own promise and the order of calls on the file of samples.
    """
    full, found, calls, replace = 2, [], [], os.replace
    with Store(directory, write=True) as store:
        connection = store.database.connection
        if (level := connection.execute("PRAGMA synchronous").fetchone()[0]) < full:
            found.append(f"commits are synced at level {level}")
        if (mode := connection.execute("PRAGMA journal_mode").fetchone()[0]) != "wal":
            found.append(f"the journal's mode is {mode}")
    with (
        mock.patch("os.fsync", side_effect=lambda file: calls.append("sync")),
        mock.patch("os.replace", side_effect=lambda *names: (calls.append("name"), replace(*names))),
    ):
        sample_files.save(directory, {})
    if calls != ["sync", "name", "sync"]:
        found.append(f"samples are written by {calls}, not synced, named and synced")
    return found


class Room(Protocol):
    """A place in which there is room for so much, or not."""

    def tighten(self) -> None: ...

    def relax(self) -> None: ...


class Quota:
    """A limit on the size of this process's files, a little above what they have: what is written beyond it fails."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def tighten(self) -> None:
        size = max(file.stat().st_size for file in self._directory.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4_096, resource.RLIM_INFINITY))

    def relax(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class SmallDisk:
    """A file system of its own, all of it taken up.

    Raises:
        OSError: This machine lets nobody make one.
    """

    SIZE = "size=2m"
    NEWUSER, NEWNS, RECURSIVELY_PRIVATE = 0x10000000, 0x00020000, 0x4000 | 0x40000

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
        _checked(libc.unshare(self.NEWUSER | self.NEWNS))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
        _checked(libc.mount(None, b"/", None, self.RECURSIVELY_PRIVATE, None))
        _checked(libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", 0, self.SIZE.encode()))
        self._ballast = directory / "ballast"

    def tighten(self) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4_096))
            except OSError:
                return

    def relax(self) -> None:
        self._ballast.unlink(missing_ok=True)


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


UNAVAILABLE = 77
"""The exit code of a process that could not make its file system."""


def full_disk(folder: Path, known: Clean, *, periods: int = 3, kinds: Sequence[str] = ("disk", "quota")) -> Shown:
    """Let the disk run full several times in a run, and make room each time after a while."""
    violations, equal, tried, skipped = [], True, 0, []
    for kind in kinds:
        result, ended = folder / f"full-{kind}.result", -signal.SIGKILL
        for attempt in range(2):
            # A process that was forked beside threads may wait for one of them; a run that hangs does so again.
            if ended == -signal.SIGKILL:
                directory = folder / f"full-{kind}-{attempt}"
                ended = waited(forked(partial(_run_full, kind, directory, known, periods, result)))
        if ended == UNAVAILABLE:
            skipped.append(kind)
            continue
        tried += periods
        said = result.read_text().splitlines() if result.exists() else []
        if ended != 0:
            violations.append(f"{kind}: the driver ended with {ended}")
        else:
            equal = equal and said[0] == "True"
            violations += [f"{kind}: {text}" for text in said[1:]]
    return Shown(
        promise="a full disk pauses the run",
        trials=tried,
        history_equal=equal if tried else None,
        violations=tuple(violations),
        more={"not_available": skipped},
    )


def _run_full(kind: str, directory: Path, known: Clean, periods: int, result: Path) -> None:
    try:
        room: Room = SmallDisk(directory) if kind == "disk" else Quota(directory)
    except OSError:
        os._exit(UNAVAILABLE)
    database.RETRY_SECONDS = 0.05
    said: list[str] = []

    def say(text: str) -> None:
        said.append("full" if "Make room" in text else "room" if "room again" in text else "")
        if said[-1] == "full":
            threading.Timer(0.3, room.relax).start()

    def observe(progress: Progress | Finale) -> None:
        # As soon as the run goes on, until it was stopped often enough.
        if isinstance(progress, Progress) and progress.trained > said.count("full") == said.count("room") < periods:
            room.tighten()

    autoloss.search(
        toy.TASK,
        evaluations=known.evaluations,
        seed=SEED,
        workers=0,
        directory=directory / "run" if kind == "disk" else directory,
        settings=toy.SETTINGS,
        observe=observe,
        say=say,
    )
    pauses = [text for text in said if text]
    found = [] if pauses == ["full", "room"] * periods else [f"{periods} full disks were told as {pauses}"]
    equal = compared_with(known, directory / "run" if kind == "disk" else directory)
    result.write_text("\n".join([str(equal), *found]))
