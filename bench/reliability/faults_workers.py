"""Cost of killed, hanging, frozen and greedy workers: the attempts that are repeated; the history stays the same.

python bench/reliability/faults_workers.py --out results/faults_workers.json        about a quarter of an hour on two cores
python bench/reliability/faults_workers.py --quick
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import os
import signal
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import psutil

from autoloss.settings import Configuration
from autoloss.workers.injection import FAULTS, HANGING, Fault, FaultyFunction
from autoloss.workers.messages import Finished, Lost
from autoloss.workers.pool import ProcessWorkers, Workers
from autoloss.workers.process_table import measure_memory
from beside import Measure, beside_clean, row, run_measures
from output import Figure

GRACE_SECONDS = 2.0
LIMIT_SECONDS = 1.0
LIMIT_BYTES = 1 << 29
BETWEEN_KILLS = 20
WORKERS = (1, 2, 4)
DELAYS = (0.0, 0.05, 0.2)
MIXED = "worker-crash=0.03,hang=0.01,hang-c=0.01,freeze=0.01,oom=0.01,error=0.02,seed=7"


def gone_in_time(sizes: Namespace) -> list[dict[str, Any]]:
    """A worker is gone within its limit and two seconds, whatever it does, and its slot goes on."""
    return [_gone_in_time(kind, sizes.trials) for kind in FAULTS]


def _gone_in_time(kind: str, trials: int) -> dict[str, Any]:
    late, slowest = 0, 0.0
    with ProcessWorkers(FaultyFunction(abs), 1, memory_limit_bytes=LIMIT_BYTES) as workers:
        for trial in range(trials):
            workers.submit(2 * trial, (-trial, None), deadline_seconds=60)
            reused = isinstance(workers.wait(None)[0], Finished)
            (group,) = _list_workers()
            with _moment_of_fault(kind, group) as moment:
                fault = Fault(kind, late=False, memory_bytes=2 * LIMIT_BYTES)
                limit = LIMIT_SECONDS if kind in HANGING else 60.0
                workers.submit(2 * trial + 1, (0, fault), deadline_seconds=limit)
                (lost,) = workers.wait(None)
                while _lives(group):
                    time.sleep(0.01)
                seconds = time.monotonic() - moment()
            slowest = max(slowest, seconds)
            late += seconds > GRACE_SECONDS or not reused or not isinstance(lost, Lost)
    promise = f"{kind}: worker gone within its limit + {GRACE_SECONDS:g} s, slot reused"
    return row(promise, trials, late, trials, None, slowest_seconds_past_limit=round(slowest, 2))


@contextmanager
def _moment_of_fault(kind: str, group: int) -> Iterator[Callable[[], float]]:
    """Give a function that says when the worker passed its limit: of time, of memory, or none, when its job began."""
    start = time.monotonic()
    if kind != "oom":
        yield lambda: start + (LIMIT_SECONDS if kind in HANGING else 0.0)
        return
    passed: list[float] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.01):
            if not passed and measure_memory([group], LIMIT_BYTES)[group] > LIMIT_BYTES:
                passed.append(time.monotonic())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: passed[0] if passed else time.monotonic()
    finally:
        ended.set()
        thread.join()


def _lives(group: int) -> bool:
    """Say whether a group has a process that is no zombie; those wait for their parent to reap them."""
    # Not glob: it raises where a process ends while it looks.
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state, _, found = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:3]
            if int(found) == group and state not in "ZX":
                return True
    return False


def _list_workers() -> list[int]:
    """Return the process ids of this process's workers, each of which is a child of its reaper."""
    return [worker.pid for reaper in psutil.Process().children() for worker in reaper.children()]


def killed_every_twenty(sizes: Namespace) -> list[dict[str, Any]]:
    """1,000 short evaluations with a worker killed every 20 on average."""
    evaluations = sizes.killed_evaluations
    rng, kills = Random(7), 0
    due = rng.expovariate(1 / BETWEEN_KILLS)

    def kill(workers: Workers, done: int) -> None:
        nonlocal due, kills
        assert isinstance(workers, ProcessWorkers)
        if done >= due and (running := _list_workers()):
            os.kill(rng.choice(running), signal.SIGKILL)
            kills += 1
            due += rng.expovariate(1 / BETWEEN_KILLS)

    promise = f"{evaluations} evaluations, a worker killed every {BETWEEN_KILLS} on average"
    found = _beside_clean(promise, evaluations, 2, meddle=kill)
    return [{**found, "kills": kills}]


def all_faults(sizes: Namespace) -> list[dict[str, Any]]:
    """All kinds of faults in one run."""
    evaluations = sizes.evaluations
    settings = {"limits.memory_gigabytes": 1.0}
    promise = f"{evaluations} evaluations, kills, hangs, freezes, greed and GPU errors mixed"
    return [_beside_clean(promise, evaluations, 2, inject=MIXED, settings=settings)]


def workers_and_delays(sizes: Namespace) -> list[dict[str, Any]]:
    """Workers 1, 2, 4, with trainings that take a time of their own."""
    counts, delays, evaluations = WORKERS[: sizes.counts], DELAYS[: sizes.delays], sizes.evaluations
    return [
        _beside_clean(f"{count} local workers, delays to {delay:g} s", evaluations, count, delay_seconds=delay)
        for count in counts
        for delay in delays
    ]


def _beside_clean(promise: str, evaluations: int, workers: int, **how: Any) -> dict[str, Any]:
    limits = Configuration().changed(how.get("settings", {})).limits
    return beside_clean(
        promise,
        evaluations,
        lambda perform: ProcessWorkers(perform, workers, memory_limit_bytes=limits.memory_bytes),
        **how,
    )


FIGURES = {
    "killed workers: evaluations": Figure(("rows", {"name": "killed_every_twenty"}, "trials")),
    "killed workers": Figure(("rows", {"name": "killed_every_twenty"}, "kills")),
    "killed workers: lost": Figure(("rows", {"name": "killed_every_twenty"}, "lost")),
    "killed workers: attempts repeated": Figure(("rows", {"name": "killed_every_twenty"}, "repeated")),
    "killed workers: history equal": Figure(("rows", {"name": "killed_every_twenty"}, "history_equal")),
    "all faults mixed: attempts repeated": Figure(("rows", {"name": "all_faults"}, "repeated")),
    "workers and delays: lost": Figure(("rows", {"name": "workers_and_delays"}, "lost")),
}
MEASURES: tuple[Measure, ...] = (
    gone_in_time,
    workers_and_delays,
    all_faults,
    killed_every_twenty,
)


USUAL = {"trials": 10, "evaluations": 60, "killed_evaluations": 1000, "counts": 3, "delays": 3}
QUICK = {"trials": 2, "evaluations": 10, "killed_evaluations": 40, "counts": 2, "delays": 2}


def main(argv: Sequence[str] | None = None) -> None:
    run_measures(__doc__ or "", MEASURES, argv, USUAL, QUICK)


if __name__ == "__main__":
    main()
