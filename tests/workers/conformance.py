"""What every kind of Workers promises, as functions of how workers are started: (function) → Workers."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import cloudpickle

from autoloss.workers.messages import Finished, JobOutcome, Lost, Raised
from autoloss.workers.pool import JobFunction, ProcessWorkers, Workers

# What `file.py:name` does with a user's module: the workers cannot import it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Start = Callable[[JobFunction], Workers]


def outcomes_of(workers: Workers, payloads: list[Any], deadline_seconds: float = 20.0) -> list[JobOutcome]:
    """Submit payloads as jobs 0, 1, … as slots come free and return all outcomes by job."""
    outcomes, next_job = [], 0
    while next_job < len(payloads) or workers.busy:
        while next_job < len(payloads) and workers.free:
            workers.submit(next_job, payloads[next_job], deadline_seconds=deadline_seconds)
            next_job += 1
        outcomes += workers.wait(None)
    return sorted(outcomes, key=lambda outcome: outcome.job)


def list_groups(workers: ProcessWorkers) -> tuple[int, ...]:
    """Return the process groups of the workers that run now; each is its worker's process id as well."""
    found = []
    for worker in filter(None, [slot.worker for slot in workers._slots]):
        # One that has just started says its number in a moment.
        end = time.monotonic() + 2
        while worker._worker is None and not worker.hung_up and time.monotonic() < end:
            time.sleep(0.001)
            worker._receive()
        found.append(worker._worker or worker.reaper)
    return tuple(found)


def each_of_200_jobs_comes_back_exactly_once(start: Start) -> None:
    with start(lambda number: number * number) as workers:
        outcomes = outcomes_of(workers, list(range(200)))
    assert all(isinstance(outcome, Finished) for outcome in outcomes)
    assert [(outcome.job, outcome.value) for outcome in outcomes] == [(n, n * n) for n in range(200)]
    assert all(outcome.seconds >= 0 for outcome in outcomes)


def what_raises_is_returned_with_its_traceback_and_the_worker_goes_on(start: Start) -> None:
    def divide(number):
        return 1 / number

    with start(divide) as workers:
        raised, finished = outcomes_of(workers, [0, 2])
    assert isinstance(raised, Raised)
    assert raised.message == "ZeroDivisionError: division by zero"
    assert "in divide" in raised.traceback_text
    assert "worker.py" not in raised.traceback_text
    assert isinstance(finished, Finished)
    assert finished.value == 0.5


def sys_exit_is_an_exception_of_the_code_like_any_other(start: Start) -> None:
    with start(sys.exit) as workers:
        (outcome,) = outcomes_of(workers, [4])
    assert isinstance(outcome, Raised)
    assert outcome.message == "SystemExit: 4"


def memory_error_is_a_failure_of_the_machine_not_of_the_code(start: Start) -> None:
    with start(lambda size: len(bytearray(size))) as workers:
        lost, finished = outcomes_of(workers, [1 << 60, 1])
        # The caller may submit the job once more, under the same number.
        workers.submit(0, 2, deadline_seconds=20)
        (again,) = workers.wait(None)
    assert isinstance(lost, Lost)
    assert lost.cause == "memory"
    assert isinstance(finished, Finished)
    assert finished.value == 1
    assert isinstance(again, Finished)
    assert (again.job, again.value) == (0, 2)


def slots_are_busy_or_free(start: Start) -> None:
    with start(lambda payload: payload) as workers:
        assert workers.free == workers.slots
        for job in range(workers.slots):
            workers.submit(job, None, deadline_seconds=20)
        assert set(workers.busy) == set(range(workers.slots))
        assert workers.free == 0


def without_a_job_there_is_no_waiting(start: Start) -> None:
    with start(lambda payload: payload) as workers:
        assert workers.wait(None) == []


def a_cancelled_job_is_never_returned(start: Start) -> None:
    with start(time.sleep) as workers:
        workers.submit(1, 60, deadline_seconds=60)
        workers.cancel(1)
        assert not workers.busy
        assert workers.wait(None) == []
        assert outcomes_of(workers, [0])[0].job == 0


def closed_workers_return_nothing_and_close_twice(start: Start) -> None:
    workers = start(lambda payload: payload)
    workers.submit(0, None, deadline_seconds=20)
    workers.close()
    workers.close()
    assert workers.wait(None) == []


PROMISES: tuple[Callable[[Start], None], ...] = (
    each_of_200_jobs_comes_back_exactly_once,
    what_raises_is_returned_with_its_traceback_and_the_worker_goes_on,
    sys_exit_is_an_exception_of_the_code_like_any_other,
    memory_error_is_a_failure_of_the_machine_not_of_the_code,
    slots_are_busy_or_free,
    without_a_job_there_is_no_waiting,
    a_cancelled_job_is_never_returned,
    closed_workers_return_nothing_and_close_twice,
)
