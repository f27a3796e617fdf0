"""Process workers beyond the contract: the code of their user reaches them as it is, and neither it nor Ctrl-C disturbs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from autoloss.workers import process, slot
from autoloss.workers.messages import Finished, Lost, Raised
from autoloss.workers.pool import ProcessWorkers, hold_interrupts
from autoloss.workers.process import WorkerProcess

from .conformance import list_groups, outcomes_of

# What `file.py:name` does with a user's module: the workers cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Stubborn:
    """A value that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("Stubborn stays here")


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return something that calls a function when it is unpickled."""
    return types.SimpleNamespace(made=type("OnLoading", (), {"__reduce__": lambda self: (function, arguments)})())


def test_wait_returns_when_its_time_is_up_():
    with ProcessWorkers(time.sleep, 1) as workers:
        workers.submit(0, 0, deadline_seconds=20)
        workers.wait(None)
        workers.submit(1, 60, deadline_seconds=60)
        start = time.monotonic()
        assert workers.wait(0.3) == []
        assert 0.3 <= time.monotonic() - start < 2


def test_time_in_which_the_whole_machine_stood_still_does_not_count(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot, "PAUSE_SECONDS", 0.5)

    def compute(seconds: float) -> str:
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return "done"

    with ProcessWorkers(compute, 1) as workers:
        assert [outcome.value for outcome in outcomes_of(workers, [0.0])] == ["done"]
        workers.submit(1, 0.5, deadline_seconds=4)
        (group,) = list_groups(workers)
        # Nobody looks meanwhile: driver and worker are suspended.
        os.killpg(group, signal.SIGSTOP)
        time.sleep(5)
        os.killpg(group, signal.SIGCONT)
        assert [type(outcome) for outcome in workers.wait(None)] == [Finished]


def test_prints_and_reads_of_user_code_do_not_reach_the_protocol():
    def chatter(count):
        for _ in range(count):
            print("x" * 1000)
            os.write(1, b"\0" * 1000)
            os.write(2, b"\xff" * 1000)
        return sys.stdin.read()

    with ProcessWorkers(chatter, 1) as workers:
        (outcome,) = outcomes_of(workers, [1000])
    assert outcome.value == ""


def test_payloads_and_results_larger_than_any_pipe_pass():
    with ProcessWorkers(lambda data: data[::-1], 2) as workers:
        outcomes = outcomes_of(workers, [bytes([n]) * (8 << 20) for n in range(3)])
    assert [len(outcome.value) for outcome in outcomes] == [8 << 20] * 3


def test_a_result_that_cannot_travel_says_so():
    def make(kind):
        return Stubborn() if kind == "sent" else call(os.stat, "/nowhere/at/all")

    with ProcessWorkers(make, 1) as workers:
        sent, read = outcomes_of(workers, ["sent", "read"])
    assert isinstance(sent, Raised)
    assert "cannot be sent" in sent.message
    assert "Stubborn stays here" in sent.message
    assert isinstance(read, Raised)
    assert "cannot read the result" in read.message
    assert "/nowhere/at/all" in read.message


def test_what_cannot_be_loaded_is_an_error_each_time_and_no_endless_loop():
    def refuse():
        raise ModuleNotFoundError("No module named 'nowhere'")

    with ProcessWorkers(call(refuse), 1) as workers:
        outcomes = outcomes_of(workers, [1, 2])
    assert all(isinstance(outcome, Raised) for outcome in outcomes)
    assert "could not load" in outcomes[0].message
    assert "No module named 'nowhere'" in outcomes[1].message
    assert "in refuse" in outcomes[1].traceback_text


def test_a_worker_that_ends_while_it_starts_is_an_error_with_its_last_words(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    monkeypatch.setattr(process, "path_variables", lambda libraries: {})
    with ProcessWorkers(len, 1) as workers:
        (outcome,) = outcomes_of(workers, [1])
    assert isinstance(outcome, Raised)
    assert "could not start" in outcome.message
    assert "/nowhere" in outcome.message


def test_a_worker_that_never_gets_ready_is_lost(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot, "START_SECONDS", 0.5)
    with ProcessWorkers(call(time.sleep, 60), 1) as workers:
        (outcome,) = outcomes_of(workers, [1])
    assert isinstance(outcome, Lost)
    assert outcome.cause == "exited"
    assert "did not start" in outcome.detail


def test_many_workers_on_few_cores_get_longer_to_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot, "START_SECONDS", 1.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    # Twelve workers of which each needs a core for its imports.
    with ProcessWorkers(call(time.sleep, 2.5), 12) as workers:
        workers.submit(0, None, deadline_seconds=20)
        (outcome,) = workers.wait(None)
    assert isinstance(outcome, Raised)
    assert "not callable" in outcome.message


def test_a_payload_that_cannot_be_loaded_is_the_jobs_fault_alone():
    with ProcessWorkers(lambda payload: "fine", 1) as workers:
        outcomes = outcomes_of(workers, [call(os.stat, "/nowhere"), None])
    assert isinstance(outcomes[0], Raised)
    assert outcomes[1].value == "fine"


def test_one_thread_and_the_environment_reach_the_worker_and_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLOUR", "blue")

    def look(name):
        if name == "torch":
            fake = types.ModuleType("torch")
            fake.set_num_threads = lambda count: setattr(fake, "count", count)
            sys.modules["torch"] = fake
            return None
        return sys.modules["torch"].count if name == "count" else os.environ[name]

    with ProcessWorkers(look, 1) as workers:
        outcomes = outcomes_of(workers, ["torch", "count", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "COLOUR"])
    assert [outcome.value for outcome in outcomes] == [None, 1, "1", "1", "blue"]


def test_classes_of_the_users_own_script_and_modules_beside_it_work(tmp_path: Path):
    (tmp_path / "beside.py").write_text("FACTOR = 7\n")
    script = tmp_path / "script.py"
    script.write_text(
        "from dataclasses import dataclass\n"
        "from autoloss.workers.pool import ProcessWorkers\n"
        "import beside\n"
        "@dataclass\n"
        "class Answer:\n"
        "    value: int\n"
        "with ProcessWorkers(lambda n: Answer(n * beside.FACTOR), 1) as workers:\n"
        "    workers.submit(0, 6, deadline_seconds=20)\n"
        "    print(workers.wait(None)[0].value == Answer(42))\n"
    )
    done = subprocess.run([sys.executable, script], cwd="/", capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("entry", ["", ".", "{}"])
def test_a_users_file_does_not_replace_the_standard_library(entry, tmp_path: Path, monkeypatch):
    (tmp_path / "struct.py").write_text("raise ImportError('the wrong struct')\n")
    monkeypatch.chdir(tmp_path)
    # Where a task of the user's own, `file.py:name`, puts its folder.
    monkeypatch.syspath_prepend(entry.format(tmp_path))
    with ProcessWorkers(abs, 1) as workers:
        assert outcomes_of(workers, [-1])[0].value == 1


def test_a_worker_leads_a_session_of_its_own_where_no_terminal_reaches_it():
    with ProcessWorkers(os.getsid, 1) as workers:
        assert outcomes_of(workers, [0])[0].value == list_groups(workers)[0] != os.getsid(0)


def test_waiting_costs_nothing_even_when_user_code_closes_its_output():
    def close(seconds):
        os.closerange(1, 3)
        time.sleep(seconds)

    with ProcessWorkers(close, 1) as workers:
        start = time.process_time()
        assert isinstance(outcomes_of(workers, [1.0])[0], Finished)
        assert time.process_time() - start < 0.1


def test_a_process_that_user_code_forks_and_lets_return_does_not_answer():
    def fork(_):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return "parent" if child else "child"

    with ProcessWorkers(fork, 1) as workers:
        assert [outcome.value for outcome in outcomes_of(workers, [0, 1, 2])] == ["parent"] * 3


# Ctrl-C


def test_an_interrupted_wait_loses_nothing_and_does_not_reach_the_workers(tmp_path: Path):
    def linger(path):
        while not os.path.exists(path):
            time.sleep(0.01)

    with ProcessWorkers(linger, 2) as workers:
        for job in range(2):
            workers.submit(job, str(tmp_path / "signal"), deadline_seconds=20)
        timer = threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            workers.wait(None)
        timer.join()
        assert set(workers.busy) == {0, 1}
        (tmp_path / "signal").touch()
        outcomes = []
        while workers.busy:
            outcomes += workers.wait(None)
    assert sorted((outcome.job, type(outcome)) for outcome in outcomes) == [(0, Finished), (1, Finished)]


def test_an_interruption_in_the_middle_of_an_answer_does_not_lose_it(monkeypatch: pytest.MonkeyPatch):
    read = WorkerProcess._read

    def read_and_interrupt(child, stream):
        chunk = read(child, stream)
        if chunk:
            signal.raise_signal(signal.SIGINT)
        return chunk

    with ProcessWorkers(abs, 1) as workers:
        assert outcomes_of(workers, [-1])[0].value == 1
        workers.submit(1, -2, deadline_seconds=20)
        with monkeypatch.context() as patch:
            patch.setattr(WorkerProcess, "_read", read_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                workers.wait(None)
        assert [outcome.value for outcome in workers.wait(None)] == [2]


def test_an_interruption_is_held_to_the_end_of_the_body():
    steps = []

    def body():
        with hold_interrupts() as is_interrupted:
            steps.append(is_interrupted())
            signal.raise_signal(signal.SIGINT)
            steps.append(is_interrupted())

    with pytest.raises(KeyboardInterrupt):
        body()
    assert steps == [False, True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
