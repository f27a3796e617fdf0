"""What a job does with its descriptors and its processes reaches neither the driver nor the next job."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from autoloss.workers.messages import ANSWER_BYTES, Finished, Lost, Raised, StrayBytesError, pack_header, split_answers
from autoloss.workers.pool import ProcessWorkers
from tests.workers.test_worker_faults import processes

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TOKEN = bytes(range(1, 17))

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at processes through /proc")


def call(job: Callable[[], Any]) -> Any:
    return job()


def write_to_all(numbers: list[int]) -> str:
    for number in numbers:
        try:
            os.write(number, bytes(8))
        except OSError:
            continue
    # Late enough that the driver would have read it.
    time.sleep(0.3)
    return "written"


def open_descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]


STRAY: dict[str, Callable[[], Any]] = {
    "descriptors 3 to 7": lambda: write_to_all([3, 4, 5, 6, 7]),
    "every descriptor": lambda: write_to_all(open_descriptors()),
    "descriptors closed": lambda: os.closerange(3, 4096) or "closed",
}


@pytest.mark.parametrize("kind", STRAY)
def test_bytes_on_a_jobs_descriptors_reach_nobody(kind: str):
    with ProcessWorkers(call, 1) as workers:
        values: list[tuple[int, Any]] = []
        for job, payload in enumerate([STRAY[kind], lambda: "next", lambda: "last"]):
            workers.submit(job, payload, deadline_seconds=10)
            (outcome,) = workers.wait(20)
            assert isinstance(outcome, Finished)
            values.append((outcome.job, outcome.value))
        assert values[1:] == [(1, "next"), (2, "last")]


def write_to_the_driver(body: bytes) -> str:
    with open(f"/proc/{os.getppid()}/fd/1", "wb", buffering=0) as pipe:
        pipe.write(body)
    time.sleep(30)
    return "late"


# Not a single byte: one in 256 tokens would begin with it.
@pytest.mark.parametrize("body", [bytes(8), b"\xff" * 64, b"stray", pack_header(TOKEN, 0, b"")], ids=len)
def test_bytes_that_reach_the_driver_cost_the_worker_and_no_other_job(body: bytes):
    with ProcessWorkers(call, 1) as workers:
        workers.submit(0, lambda: write_to_the_driver(body), deadline_seconds=20)
        (outcome,) = workers.wait(20)
        assert isinstance(outcome, Lost)
        assert (outcome.job, outcome.cause) == (0, "exited")
        assert "answers cannot be read" in outcome.detail
        workers.submit(1, lambda: "next", deadline_seconds=20)
        (outcome,) = workers.wait(20)
        assert isinstance(outcome, Finished)
        assert (outcome.job, outcome.value) == (1, "next")


def frame(job: int, body: bytes) -> bytes:
    return pack_header(TOKEN, job, body) + body


def test_answers_are_read_whole_and_nothing_else_is():
    replies = bytearray(frame(3, b"abc") + frame(4, b"") + frame(5, b"12")[:-1])
    assert split_answers(replies, TOKEN) == [(3, b"abc"), (4, b"")]
    assert split_answers(replies, TOKEN) == []
    for stray in (b"\0", TOKEN[:-1] + b"\0", TOKEN + (0).to_bytes(8, "big") + (ANSWER_BYTES + 1).to_bytes(8, "big")):
        with pytest.raises(StrayBytesError):
            split_answers(bytearray(stray), TOKEN)


def test_a_result_that_no_driver_wants_is_refused():
    with ProcessWorkers(call, 1) as workers:
        workers.submit(0, lambda: bytes(ANSWER_BYTES), deadline_seconds=20)
        (outcome,) = workers.wait(20)
        assert isinstance(outcome, Raised)
        assert "at most" in outcome.message


# Processes


def hide(*, report: str = "", die: bool = False) -> int:
    """Leave a process of another session, whose parent has ended."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            os.write(writing, str(os.getpid()).encode())
            time.sleep(600)
        os._exit(0)
    process = int(os.read(reading, 20))
    if report:
        Path(report).write_text(str(process))
    if die:
        os.kill(os.getpid(), 9)
    return process


def lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def is_gone(process: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while lives(process) and time.monotonic() < end:
        time.sleep(0.02)
    return not lives(process)


needs_a_reaper = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can leave its group for good")


@needs_a_reaper
@pytest.mark.parametrize("end", ["close", "deadline", "cancel", "death"])
def test_a_process_that_hides_ends_with_its_worker(end: str, tmp_path: Path):
    report = tmp_path / "process"

    def job() -> Any:
        hide(report=str(report), die=end == "death")
        if end != "close":
            time.sleep(600)

    with ProcessWorkers(call, 1) as workers:
        workers.submit(0, job, deadline_seconds=1.0 if end == "deadline" else 60)
        if end == "cancel":
            while not (report.exists() and report.read_text()):
                workers.wait(0.02)
            workers.cancel(0)
        else:
            workers.wait(20)
        hidden = int(report.read_text())
        if end == "close":
            assert lives(hidden)
        else:
            assert is_gone(hidden, 1.0)
    assert is_gone(hidden, 1.0)
    assert not processes(lambda parent, group, state: parent == os.getpid() and state == "Z")


@needs_a_reaper
def test_memory_of_a_process_that_hides_counts(tmp_path: Path):
    def hoard() -> None:
        if os.fork() == 0:
            os.setsid()
            taken = b"x" * (400 << 20)
            time.sleep(600 + len(taken))
        time.sleep(600)

    with ProcessWorkers(call, 1, memory_limit_bytes=256 << 20) as workers:
        workers.submit(0, hoard, deadline_seconds=30)
        (outcome,) = workers.wait(None)
    assert isinstance(outcome, Lost)
    assert outcome.cause == "memory"


@needs_a_reaper
@pytest.mark.parametrize("own", [0, 400 << 20])
def test_memory_that_forks_share_counts_once(own: int):
    """As with loaders that fork: each sees the data of the training, and nothing is held twice."""

    def fork() -> int:
        data = b"x" * (200 << 20)
        ready, told = os.pipe()
        for _ in range(3):
            if os.fork() == 0:
                taken = b"y" * (own // 3)
                os.write(told, b".")
                time.sleep(600 + len(taken))
        for _ in range(3):
            os.read(ready, 1)
        # Measurements above the limit take longer, and get a fixed share of the driver's time.
        time.sleep(20 if own else 2)
        return len(data)

    with ProcessWorkers(call, 1, memory_limit_bytes=500 << 20) as workers:
        workers.submit(0, fork, deadline_seconds=30)
        (outcome,) = workers.wait(None)
    if own:
        assert isinstance(outcome, Lost)
        assert outcome.cause == "memory"
    else:
        assert isinstance(outcome, Finished)


DRIVER = """
import sys, time
sys.path[:0] = {path!r}
from tests.workers.test_channel import call, hide
from autoloss.workers.pool import ProcessWorkers
workers = ProcessWorkers(call, 1)
workers.submit(0, lambda: hide(report={report!r}), deadline_seconds=600)
workers.wait(None)
time.sleep(600)
"""


@needs_a_reaper
def test_a_process_that_hides_ends_with_its_driver(tmp_path: Path):
    report = tmp_path / "process"
    script = DRIVER.format(path=sys.path, report=str(report))
    with subprocess.Popen([sys.executable, "-c", script]) as driver:
        while not (report.exists() and report.read_text()):
            assert driver.poll() is None
            time.sleep(0.02)
        driver.kill()
    assert is_gone(int(report.read_text()))
