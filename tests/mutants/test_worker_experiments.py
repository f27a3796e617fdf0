"""The experiments on workers fail where they should: each mutant breaks one promise, and is caught."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import beside
import faults_trainings
import faults_workers
import not_finite
from autoloss.workers.leases import Cluster, Heartbeat, LeasedWorkers, Request, build
from autoloss.workers.messages import START, Lost
from autoloss.workers.pool import InlineWorkers, JobFunction
from autoloss.workers.worker import run_job

from .mutating import mutated

pytestmark = pytest.mark.experiment

Row = Mapping[str, Any]


class LosingCluster(Cluster):
    """Does every job at once; every few answers a node is lost in place of an answer."""

    EVERY = 4

    def __init__(self, function: JobFunction) -> None:
        self._function = function
        self._asked: list[Request | None] = []
        self._answered = 0

    def start(self) -> object:
        return object()

    def call(self, supervisor: object, request: Request | None) -> int:
        self._asked.append(request)
        return len(self._asked) - 1

    def wait(self, calls: Sequence[int], timeout_seconds: float) -> Sequence[tuple[int, Heartbeat | Lost]]:
        return [(call, self._answer(self._asked[call])) for call in calls]

    def _answer(self, request: Request | None) -> Heartbeat | Lost:
        self._answered += 1
        if self._answered % self.EVERY == 0:
            return Lost(START, "node", "lost", 0.0)
        if request is None:
            return Heartbeat(build())
        job, payload, _ = request
        return Heartbeat(build(), cloudpickle.dumps(run_job(self._function, job, cloudpickle.loads(payload))))

    def end(self, supervisor: object) -> None: ...

    def close(self) -> None: ...

    def describe(self) -> str:
        return "It loses nodes."


def nodes_lost(folder: Path) -> Row:
    """What the experiments on Ray compare, with a cluster in this process."""
    clock = itertools.count()

    def start(perform: JobFunction) -> LeasedWorkers:
        # Nobody waits for another node to start.
        return LeasedWorkers(LosingCluster(perform), 1, clock=lambda: float(next(clock)))

    return beside.beside_clean("nodes lost", 5, start)


def worker_gone(folder: Path) -> Row:
    return faults_workers._gone_in_time("error", 1)


def soak(folder: Path) -> Row:
    """Without processes, and without faults: what is stored is counted all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults_trainings, "ProcessWorkers", lambda function, slots, **limits: InlineWorkers(function))
        patch.setattr(faults_trainings, "SOAK_FAULTS", "error=0")
        (found,) = faults_trainings.soak(Namespace(children=5))
    return found


def misbehaving(folder: Path) -> Row:
    """The first training of a search in this process raises a long text."""
    kind = "raises an exception of 20 MB"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faults_trainings, "LONG", 2_000_000)
        found = faults_trainings.try_misdeed(kind, 1, folder, workers=0)
    return {"lost": len(faults_trainings.judge(kind, found, {**found, "bytes": 100_000})), "history_equal": None}


def score_not_finite(folder: Path) -> Row:
    met, wrong = not_finite.search_spoiled("score", math.nan, 1, 2, folder)
    return {"lost": len(wrong) if met else 1, "history_equal": None}


@dataclass(frozen=True)
class Mutant:
    """A small fault, and the experiment that has to notice; `function` and `changes` as `mutated` takes them."""

    experiment: Callable[[Path], Row]
    function: str
    changes: Mapping[str, str]


MUTANTS = {
    "lost nodes are blamed on the loss": Mutant(
        nodes_lost,
        "autoloss.workers.queue:JobQueue._judge",
        {'if lost.cause == "deadline"': 'if job.urgent or lost.cause == "deadline"'},
    ),
    "workers that end late": Mutant(
        worker_gone,
        "autoloss.workers.process:WorkerProcess.kill",
        {"if not self._killed:": "time.sleep(0 if self._killed else 2.5)\n    if not self._killed:"},
    ),
    "candidates that are not stored": Mutant(
        soak,
        "autoloss.store.store:Store.add_candidate",
        {"self.database.append(rows)": "candidate.id > 3 or self.database.append(rows)"},
    ),
    "texts of any length": Mutant(
        misbehaving, "autoloss.errors:keep_text", {"if len(text) > characters:": "if False:"}
    ),
    "scores that are no numbers": Mutant(
        score_not_finite, "autoloss.proposing.records:to_record", {"if not math.isfinite(score):": "if False:"}
    ),
}


def is_kept(row: Row) -> bool:
    return not row["lost"] and row["history_equal"] is not False


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, tmp_path):
    mutant = MUTANTS[name]
    if mutant.experiment in (nodes_lost, soak):
        # The others are run whole by tests/bench.
        found = mutant.experiment(tmp_path)
        assert is_kept(found)
        assert found["repeated"] > 0 or mutant.experiment is soak
    with mutated(mutant.function, mutant.changes):
        assert not is_kept(mutant.experiment(tmp_path))
