"""A dead, hanging or greedy worker costs one attempt: it is gone within its limit + 2 s, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from autoloss.workers.messages import Finished, Lost
from autoloss.workers.pool import ProcessWorkers
from misdeeds import backtrack, crash, ignore_signals, loop_in_c, loop_in_python, stop

from .conformance import list_groups

cloudpickle.register_pickle_by_value(sys.modules[__name__])

GRACE_SECONDS = 2.0
ORPHAN_SECONDS = 5.0

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")


def processes(wanted: Callable[[int, int, str], bool]) -> set[int]:
    """Return the processes for which wanted(parent, group, state)."""
    found = set()
    # Not glob: it raises where a process ends while it looks.
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            state, parent, group = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if wanted(int(parent), int(group), state):
            found.add(int(name))
    return found


def living(groups: tuple[int, ...]) -> set[int]:
    return processes(lambda parent, group, state: group in groups and state not in "ZX")


def zombies(groups: tuple[int, ...]) -> set[int]:
    return processes(lambda parent, group, state: group in groups and parent == os.getpid())


def is_gone(groups: tuple[int, ...], seconds: float) -> bool:
    """Say whether all processes of the groups are gone, waiting for it at most so long."""
    end = time.monotonic() + seconds
    while living(groups) and time.monotonic() < end:
        time.sleep(0.02)
    return not living(groups)


def stop_group() -> None:
    os.killpg(0, signal.SIGSTOP)


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    print("these are my last words")
    os._exit(7)


def close_everything() -> None:
    os.closerange(3, 256)
    time.sleep(600)


def hoard() -> None:
    hoarded = []
    while True:
        hoarded.append(b"x" * (16 << 20))
        time.sleep(0.02)


def hoard_in_a_grandchild() -> None:
    subprocess.run([sys.executable, "-c", "import time; x = b'x' * (400 << 20); time.sleep(600)"])


def leave_a_grandchild() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    kill_itself()


def fail_like_a_gpu() -> None:
    raise RuntimeError("CUDA error: device-side assert triggered")


def wrap_a_gpus_error() -> None:
    try:
        raise type("AcceleratorError", (RuntimeError,), {})("an illegal memory access was encountered")
    except RuntimeError as error:
        raise ValueError("the epoch failed") from error


def run_out_of_gpu_memory() -> None:
    raise type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 20.00 MiB")


FAULTS: dict[str, tuple[Callable[[], None], str, str]] = {
    "a loop in Python": (loop_in_python, "deadline", "still running after 0.4 s"),
    "a loop in C that holds the GIL": (loop_in_c, "deadline", "still running"),
    "catastrophic backtracking": (backtrack, "deadline", "still running"),
    "SIGSTOP": (stop, "deadline", "still running"),
    "SIGSTOP of the group": (stop_group, "deadline", "still running"),
    "signals ignored": (ignore_signals, "deadline", "still running"),
    "SIGKILL": (kill_itself, "killed", "SIGKILL"),
    "SIGKILL with a grandchild": (leave_a_grandchild, "killed", "SIGKILL"),
    "a segmentation fault": (crash, "killed", "in crash"),
    "os._exit": (leave, "exited", "exit status 7.\nIts last output:\nthese are my last words"),
    "its descriptors closed": (close_everything, "deadline", "still running"),
    "an error of its GPU": (fail_like_a_gpu, "device", "RuntimeError: CUDA error: device-side assert triggered"),
    "an error of its GPU, wrapped": (wrap_a_gpus_error, "device", "ValueError: the epoch failed"),
    "memory of its GPU": (run_out_of_gpu_memory, "memory", "OutOfMemoryError: CUDA out of memory"),
    "memory": (hoard, "memory", "the limit is 268435456"),
    "memory of a grandchild": (hoard_in_a_grandchild, "memory", "the limit is"),
}


def run(payload: Callable[[], None] | None) -> Any:
    return payload() if payload else "fine"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_one_attempt_and_the_slot_goes_on(fault: str):
    payload, cause, text = FAULTS[fault]
    limit = 20.0 if cause == "memory" else 0.4
    with ProcessWorkers(run, 1, memory_limit_bytes=256 << 20) as workers:
        workers.submit(1, None, deadline_seconds=20)
        assert isinstance(workers.wait(None)[0], Finished)
        groups = list_groups(workers)
        start = time.monotonic()
        workers.submit(2, payload, deadline_seconds=limit)
        (lost,) = workers.wait(None)
        assert time.monotonic() - start < limit + GRACE_SECONDS
        assert isinstance(lost, Lost)
        assert (lost.job, lost.cause) == (2, cause)
        assert text in lost.detail
        assert is_gone(groups, 1.0)
        workers.submit(3, None, deadline_seconds=20)
        assert workers.wait(None)[0].value == "fine"
        groups += list_groups(workers)
    assert is_gone(groups, 1.0)
    assert not zombies(groups)


def check_an_error_of_a_gpu_replaces_the_worker() -> None:
    """The check that the mutants have to fail as well."""
    with ProcessWorkers(run, 1) as workers:
        workers.submit(1, fail_like_a_gpu, deadline_seconds=20)
        groups = list_groups(workers)
        assert [outcome.cause for outcome in workers.wait(None) if isinstance(outcome, Lost)] == ["device"]
        assert is_gone(groups, 1.0)
        workers.submit(2, None, deadline_seconds=20)
        assert list_groups(workers) != groups
        assert workers.wait(None)[0].value == "fine"


def test_an_error_of_a_gpu_replaces_the_worker():
    check_an_error_of_a_gpu_replaces_the_worker()


def test_a_worker_goes_before_its_driver_when_the_kernel_is_out_of_memory():
    def badness(_):
        return int(Path("/proc/self/oom_score_adj").read_text())

    own = badness(None)
    with ProcessWorkers(badness, 1) as workers:
        workers.submit(1, None, deadline_seconds=20)
        assert workers.wait(None)[0].value == max(own, 500)
    assert badness(None) == own


def test_a_worker_that_dies_idle_is_replaced_without_a_word():
    with ProcessWorkers(run, 1) as workers:
        workers.submit(1, None, deadline_seconds=20)
        workers.wait(None)
        groups = list_groups(workers)
        os.kill(groups[0], signal.SIGKILL)
        while not processes(lambda parent, group, state: group in groups and state == "Z"):
            time.sleep(0.01)
        workers.submit(2, None, deadline_seconds=20)
        assert list_groups(workers) != groups
        assert workers.wait(None)[0].value == "fine"


def test_a_fault_in_one_slot_leaves_the_other_alone():
    with ProcessWorkers(run, 2) as workers:
        workers.submit(1, lambda: time.sleep(1.0) or "slept", deadline_seconds=20)
        workers.submit(2, kill_itself, deadline_seconds=20)
        first, second = workers.wait(None), workers.wait(None)
    assert isinstance(first[0], Lost)
    assert second[0].value == "slept"


def test_workers_killed_at_any_time_lose_no_job_and_answer_none_twice():
    def work(number):
        if number % 10 == 0:
            kill_itself()
        return number

    answered, lost, next_job = [], [], 0
    with ProcessWorkers(work, 2) as workers:
        while next_job < 40 or workers.busy:
            while next_job < 40 and workers.free:
                workers.submit(next_job, next_job, deadline_seconds=20)
                next_job += 1
            for outcome in workers.wait(None):
                (lost if isinstance(outcome, Lost) else answered).append(outcome.job)
    assert sorted(lost) == [0, 10, 20, 30]
    assert sorted(answered) == [number for number in range(40) if number % 10]


@pytest.mark.parametrize("payload", [None, loop_in_c, stop_group, hoard_in_a_grandchild])
def test_close_leaves_nothing_behind(payload: Callable[[], None] | None):
    with ProcessWorkers(run, 2) as workers:
        for job in range(2):
            workers.submit(job, payload, deadline_seconds=60)
        workers.wait(0.5)
        groups = list_groups(workers)
        assert living(groups)
        start = time.monotonic()
    assert time.monotonic() - start < GRACE_SECONDS
    assert is_gone(groups, 1.0)
    assert not zombies(groups)


def test_cancel_ends_the_whole_group_at_once():
    with ProcessWorkers(run, 1) as workers:
        workers.submit(1, hoard_in_a_grandchild, deadline_seconds=60)
        groups = list_groups(workers)
        while len(living(groups)) < 2:
            workers.wait(0.05)
        workers.cancel(1)
        assert is_gone(groups, 1.0)
        assert not zombies(groups)


DRIVER = """
import ctypes, os, subprocess, sys, time
from autoloss.workers.pool import ProcessWorkers

def hang(job):
    kind, place = job
    if kind == "grandchild":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(place, "w") as file:
        file.write(str(os.getpid()))
    if kind == "stopped":
        os.killpg(0, 19)
    if kind != "idle":
        (ctypes.PyDLL if kind == "gil" else ctypes.CDLL)(None).sleep(600)

workers = ProcessWorkers(hang, 1)
workers.submit(0, sys.argv[1:], deadline_seconds=600)
workers.wait(None)
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["idle", "python", "gil", "stopped", "grandchild"])
def test_workers_end_within_five_seconds_of_their_driver(kind: str, tmp_path: Path):
    script, place = tmp_path / "driver.py", tmp_path / "pid"
    script.write_text(DRIVER)
    with subprocess.Popen([sys.executable, script, kind, place]) as driver:
        while not (place.exists() and place.read_text()):
            assert driver.poll() is None
            time.sleep(0.02)
        groups = (int(place.read_text()),)
        assert living(groups)
        driver.kill()
    assert is_gone(groups, ORPHAN_SECONDS)


# As process 1 of a container, a driver inherits what its workers leave; a subreaper does so anywhere.
SUBREAPER = """
import ctypes, os, signal, subprocess, sys
from pathlib import Path
from autoloss.workers.pool import ProcessWorkers

def leave(_):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    os.kill(os.getpid(), signal.SIGKILL)

ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
with ProcessWorkers(leave, 1) as workers:
    for job in range(3):
        workers.submit(job, None, deadline_seconds=20)
        workers.wait(None)
children = 0
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        stat = Path("/proc", name, "stat").read_text()
    except OSError:
        continue
    children += int(stat.rpartition(")")[2].split()[1]) == os.getpid()
print(children)
"""


def test_a_driver_that_inherits_orphans_reaps_them(tmp_path: Path):
    script = tmp_path / "driver.py"
    script.write_text(SUBREAPER)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")
