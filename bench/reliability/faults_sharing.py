"""Several processes at one run: of two drivers one runs, and readers disturb nobody."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import toy
from autoloss.cli import main
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.run.results import open_run
from autoloss.settings import Configuration, FinalSettings
from autoloss.store.run_settings import RunSettings, TaskReference
from autoloss.store.store import Store, StoreError
from autoloss.training.training import Training
from faults_driver import SEED, forked, waited, warm
from histories import as_text
from promise import Shown

OWNED = 3
"""The exit code of a driver that another one keeps out."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Refusal:
    """Time until a driver left; its processor time tells that from waiting for a busy machine."""

    seconds: float
    processor_seconds: float


def races(folder: Path, trials: int, *, patience_seconds: float = 60.0) -> Shown:
    """Start two drivers at once; the trainings of the one that runs wait until the other has left.

    Args:
        patience_seconds: How long one of them may take to leave.
    """
    warm(folder)
    violations: list[str] = []
    refusals: list[Refusal] = []
    histories = set()
    for trial in range(trials):
        # Half of the races begin a run, the other half take one up.
        directory = folder / f"race{trial}"
        if trial % 2:
            waited(forked(partial(main, _search(directory)), output=directory.with_suffix(".first")))
        words = ["resume", str(directory), "--evaluations", "2", "--workers", "0", "--no-final"]
        found, refusal = _race(
            words if trial % 2 else [*_search(directory), "--evaluations", "2"], directory, patience_seconds
        )
        violations += [f"race {trial}: {text}" for text in found]
        refusals += [] if refusal is None else [refusal]
        histories.add(tuple(as_text(open_run(directory).history)))
    return Shown(
        promise="of two drivers on one run exactly one runs",
        trials=trials,
        history_equal=len(histories) == 1,
        violations=tuple(violations),
        more={
            "slowest_refusal_seconds": round(max((one.seconds for one in refusals), default=0.0), 3),
            "median_refusal_seconds": round(median([one.seconds for one in refusals] or [0.0]), 3),
            "slowest_refusal_processor_seconds": round(
                max((one.processor_seconds for one in refusals), default=0.0), 3
            ),
        },
    )


def _search(directory: Path) -> list[str]:
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, tuple) else value for name, value in toy.SETTINGS.items()
    }
    settings = [f"--set={name}={value}" for name, value in texts.items()]
    task = f"{Path(toy.__file__).resolve()}:TASK"
    return [
        "search",
        task,
        "--evaluations",
        "1",
        f"--seed={SEED}",
        "--workers=0",
        f"--out={directory}",
        "--no-final",
        *settings,
    ]


def _race(words: Sequence[str], directory: Path, patience_seconds: float) -> tuple[list[str], Refusal | None]:
    """Return the violations, and the time in which the driver that was kept out said so."""
    go, start = directory.with_suffix(".go"), os.pipe()
    outputs = [directory.with_suffix(f".{number}") for number in range(2)]
    drivers = [forked(lambda: _begin(start, words), {toy.HOLD: str(go)}, output) for output in outputs]
    os.close(start[0])
    began = time.monotonic()
    # Both wait for the end of this pipe.
    os.close(start[1])
    first, status, computed = _first_to_leave(drivers, patience_seconds)
    refusal = None if first is None else Refusal(time.monotonic() - began, computed)
    go.touch()
    violations = []
    if first is None:
        violations.append("no driver was kept out")
        statuses = [waited(driver) for driver in drivers]
        return [*violations, f"they ended with {statuses}"], None
    other = drivers[1 - first]
    said = outputs[first].read_text()
    if status != OWNED:
        violations.append(f"the driver that left first ended with {status}: {said.strip()[-300:]}")
    elif not re.search(rf"driven by process {other} on {re.escape(socket.gethostname())}\.", said):
        violations.append(f"the driver that was kept out does not name process {other}: {said.strip()[-300:]}")
    if (ended := waited(other)) != 0:
        violations.append(f"the other driver ended with {ended}: {outputs[1 - first].read_text().strip()[-300:]}")
    return violations, refusal


def _begin(start: tuple[int, int], words: Sequence[str]) -> None:
    os.close(start[1])
    os.read(start[0], 1)
    main(words)


def _first_to_leave(drivers: Sequence[int], patience_seconds: float) -> tuple[int | None, int, float]:
    end = time.monotonic() + patience_seconds
    while time.monotonic() < end:
        for number, driver in enumerate(drivers):
            found, status, used = os.wait4(driver, os.WNOHANG)
            if found:
                return number, os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        time.sleep(0.002)
    return None, 0, 0.0


def readers(folder: Path, count: int, commits: int, *, seconds: float = 0.0) -> Shown:
    """Commit candidates and outcomes while so many processes read the whole run ten times a second.

    Args:
        seconds: At least so long.
    """
    directory = folder / "read"
    directory.mkdir(parents=True)
    failed, slowest, number = 0, 0.0, 0
    with Store(directory, write=True) as store:
        configuration = Configuration(final=FinalSettings(confirm=0, confirm_seeds=0))
        store.write_settings(
            RunSettings(configuration=configuration, task=TaskReference(None), title="toy", branches={}, release="")
        )
        outputs = [folder / f"reader{reader}" for reader in range(count)]
        processes = [forked(lambda: _poll(directory), output=output) for output in outputs]
        end = time.monotonic() + seconds
        while number < commits // 2 or time.monotonic() < end:
            began = time.monotonic()
            try:
                store.add_candidate(_candidate(number), {})
                store.add_training(LOSS, Training(seed=0), Outcome(state=State.SCORED, score=0.5), number)
            except Exception:
                failed += 1
            slowest = max(slowest, time.monotonic() - began)
            number += 1
            time.sleep(0.005)
        for process in processes:
            os.kill(process, signal.SIGTERM)
        statuses = [waited(process) for process in processes]
        kept = len(store.outcomes())
    try:
        whole = len(open_run(directory).history) == number
    except StoreError:
        whole = False
    violations = [
        outputs[reader].read_text()[-300:] for reader, status in enumerate(statuses) if status != -signal.SIGTERM
    ]
    return Shown(
        promise="readers never hurt",
        trials=2 * number,
        lost=number - failed - kept,
        history_equal=whole,
        violations=(*violations, *([f"{failed} commits failed"] if failed else [])),
        more={"readers": count, "failed_commits": failed, "slowest_two_commits_seconds": round(slowest, 3)},
    )


LOSS = "neg(mul(y, log(p)))"


def _candidate(number: int) -> Candidate:
    return Candidate(
        id=number,
        parent=None,
        kinds={"main": "fresh"},
        attempts={"main": number},
        loss=LOSS,
        origin=Origin.TRAINED,
        source=None,
        signature={"main": (str(number),)},
    )


def _poll(directory: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    least = 0
    while True:
        found = len(open_run(directory).history)
        if found < least:
            raise AssertionError(f"{found} candidates, and {least} before")
        least = found
        time.sleep(POLL_SECONDS)
