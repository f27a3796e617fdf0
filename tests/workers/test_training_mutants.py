"""What a training does to its worker is contained; each way to contain it, taken away, is noticed by the same check."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from autoloss.store import database
from autoloss.store.store import FILE, Store, StoreError
from autoloss.workers import worker
from autoloss.workers.messages import Finished, Raised
from autoloss.workers.pool import ProcessWorkers
from autoloss.workers.process import WorkerProcess
from autoloss.workers.worker import run_job
from tests.store.test_store import SETTINGS
from tests.workers.test_channel import call, hide, is_gone, open_descriptors, write_to_all

pytestmark = pytest.mark.experiment

cloudpickle.register_pickle_by_value(sys.modules[__name__])

Prepare = Callable[[], Any]
"""What the worker's first job does: a mutant of the worker's code."""


def jobs(prepare: Prepare, *payloads: Prepare) -> list[Any]:
    """Run jobs one after another in one worker, after its first, and return their outcomes."""
    with ProcessWorkers(call, 1) as workers:
        outcomes = []
        for number, payload in enumerate([prepare, *payloads]):
            workers.submit(number, payload, deadline_seconds=10)
            outcomes += workers.wait(30)
    return outcomes[1:]


def check_settings(prepare: Prepare, folder: Path) -> None:
    before, _, after = jobs(prepare, os.getcwd, lambda: os.chdir("/"), os.getcwd)
    assert before.value == after.value


def check_stray_bytes(prepare: Prepare, folder: Path) -> None:
    (outcome,) = jobs(prepare, lambda: write_to_all(open_descriptors()))
    assert isinstance(outcome, Finished)


def check_interrupts(prepare: Prepare, folder: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    (outcome,) = jobs(prepare, interrupt)
    assert isinstance(outcome, Raised)


def check_hidden_processes(prepare: Prepare, folder: Path) -> None:
    (outcome,) = jobs(prepare, hide)
    gone = is_gone(outcome.value, 1.0)
    if not gone:
        os.kill(outcome.value, signal.SIGKILL)
    assert gone


def check_lengths(prepare: Prepare, folder: Path) -> None:
    def fail(_: object) -> None:
        raise ValueError("x" * 1_000_000)

    outcome = run_job(fail, 1, None)
    assert isinstance(outcome, Raised)
    assert len(outcome.message) < 10_000


def check_locks(prepare: Prepare, folder: Path) -> None:
    with Store(folder, write=True, say=lambda text: None) as store:
        other = sqlite3.connect(folder / FILE, isolation_level=None)
        store.database.rest = lambda seconds: other.execute("ROLLBACK") and None
        other.execute("BEGIN IMMEDIATE")
        store.write_settings(SETTINGS)
        assert store.trainings() == {}
        other.close()


def leave_settings() -> None:
    sys.modules["autoloss.workers.worker"].__dict__["restore_state"] = lambda state: []


def keep_the_pipe_open() -> None:
    os.open(f"/proc/{os.getppid()}/fd/1", os.O_WRONLY)


def let_interrupts_pass() -> None:
    module = sys.modules["autoloss.workers.worker"]
    module.__dict__["run_job"] = lambda function, job, payload, passing, run=module.run_job: run(function, job, payload)


Patch = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Callable[[Prepare, Path], None], Prepare, Patch]] = {
    "settings that stay": (check_settings, leave_settings, lambda patch: None),
    "a pipe that a training reaches": (check_stray_bytes, keep_the_pipe_open, lambda patch: None),
    "interrupts that end the worker": (check_interrupts, let_interrupts_pass, lambda patch: None),
    "a reaper that is killed first": (
        check_hidden_processes,
        int,
        lambda patch: patch.setattr(WorkerProcess, "kill", lambda self: os.kill(self.reaper, signal.SIGKILL)),
    ),
    "texts of any length": (
        check_lengths,
        int,
        lambda patch: patch.setattr(worker, "keep_text", lambda text, characters: text),
    ),
    "locks that are no pause": (check_locks, int, lambda patch: patch.setattr(database, "LOCKED", ())),
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere less is contained")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught_by_the_check_of_the_honest_code(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.02)
    check, prepare, mutate = MUTANTS[name]
    for place in ("honest", "mutant"):
        (tmp_path / place).mkdir()
    check(int, tmp_path / "honest")
    mutate(monkeypatch)
    with pytest.raises((AssertionError, StoreError)):
        check(prepare, tmp_path / "mutant")
