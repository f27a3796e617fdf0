"""While nothing can be recorded, results are kept; jobs that the machine ended are repeated."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import cloudpickle
import pytest

from autoloss.errors import RequestError, RunError
from autoloss.evaluation.dispatch import Dispatcher, run_jobs
from autoloss.proposing.records import CompletedJob, Outcome, RejectionBatch, State, Train
from autoloss.settings import LimitSettings
from autoloss.training.training import Training
from autoloss.workers.pool import InlineWorkers, ProcessWorkers
from autoloss.workers.queue import STARTS, TRIES

from .conformance import list_groups

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_what_ends_during_a_rest_is_told_afterwards():
    performed: list[int] = []

    def perform(job: Train) -> Outcome:
        performed.append(job.training.seed)
        return Outcome(state=State.SCORED, score=float(job.training.seed))

    with InlineWorkers(perform) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        for seed in range(2):
            dispatcher.submit(Train("y", Training(seed=seed)))
        dispatcher.queue.rest(0.02)
        assert performed == [0]
        done = dispatcher.wait(0.0)
        assert [(job.training.seed, result.score) for job, result, _ in done] == [(0, 0.0), (1, 1.0)]
        assert performed == [0, 1]


def test_a_rest_takes_its_time_whatever_is_under_way():
    with InlineWorkers(lambda job: Outcome(state=State.SCORED, score=1.0)) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        dispatcher.submit(Train("y", Training(seed=0)))
        began = time.monotonic()
        dispatcher.queue.rest(0.05)
        assert time.monotonic() - began >= 0.05


def test_a_large_result_is_taken_in_before_its_deadline_passes():
    with ProcessWorkers(lambda job: Outcome(state=State.SCORED, score=1.0, curve=((1, 0.5),) * 100_000), 1) as workers:
        dispatcher = Dispatcher(workers, LimitSettings(training_seconds=30))
        dispatcher.submit(Train("y", Training(seed=0)))
        while not dispatcher.queue._ended:
            dispatcher.queue.rest(0.05)
        ((_, result, _),) = dispatcher.wait(0.0)
        assert result.state is State.SCORED


class LoadsSlowly:
    """A function of jobs that a worker has not loaded when it is killed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> tuple[object, ...]:
        return load_after, (self.seconds,)

    def __call__(self, job: object) -> Outcome:
        return score(job)


def load_after(seconds: float) -> Callable[[object], Outcome]:
    time.sleep(seconds)
    return score


def score(job: object) -> Outcome:
    return Outcome(state=State.SCORED, score=1.0)


def test_workers_killed_while_they_start_cost_a_job_none_of_its_tries():
    with ProcessWorkers(LoadsSlowly(1.0), 1) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        dispatcher.submit(Train("y", Training(seed=0)))
        for _ in range(TRIES + 1):
            os.kill(list_groups(workers)[0], signal.SIGKILL)
            assert dispatcher.wait(None) == []
        ((_, result, _),) = dispatcher.wait(None)
    assert result.state is State.SCORED
    assert dispatcher.queue.losses == {"killed": TRIES + 1}
    assert not dispatcher.failed


def test_workers_that_never_start_are_given_up():
    with ProcessWorkers(LoadsSlowly(600.0), 1) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        dispatcher.submit(Train("y", Training(seed=0)))
        found: list[CompletedJob] = []
        while not found:
            os.kill(list_groups(workers)[0], signal.SIGKILL)
            found = dispatcher.wait(None)
    assert found[0][1].state is State.FAILED
    assert dispatcher.queue.losses == {"killed": STARTS + TRIES - 1}


def test_samples_that_no_longer_serve_are_told_without_a_traceback():
    def refuse(job):
        raise RequestError("No sample can improve.")

    with InlineWorkers(refuse) as workers:
        dispatcher = Dispatcher(workers, LimitSettings())
        with pytest.raises(RunError) as failed:
            list(run_jobs([RejectionBatch(0, "main", "fresh", None, 0, 1)], dispatcher))
    assert str(failed.value) == (
        "Losses cannot be tested. No sample can improve. If the task has changed, restore it, or start a new run."
    )
