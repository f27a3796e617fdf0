"""Each wrong way to deal with workers that fail is caught, by the same check that holds the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autoloss.errors import RunError
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.proposing.records import Job, Outcome, State, Train
from autoloss.workers import queue
from autoloss.workers.injection import FaultyWorkers
from autoloss.workers.leases import LeasedWorkers
from autoloss.workers.messages import JobOutcome, Lost, decode
from autoloss.workers.queue import JobQueue
from autoloss.workers.slot import Slot
from tests.workers.test_injection import (
    check_faults_do_not_change_the_history,
    check_three_failures_of_the_machine_are_no_score,
    check_what_the_machine_loses_is_tried_again,
)
from tests.workers.test_leases import check_the_job_of_a_silent_supervisor_is_lost
from tests.workers.test_worker_faults import check_an_error_of_a_gpu_replaces_the_worker

pytestmark = pytest.mark.experiment

Mutate = Callable[[pytest.MonkeyPatch], None]


def ignore_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeasedWorkers, "_end_leases", lambda self: None)


def accept_answers_of_lost_supervisors(patch: pytest.MonkeyPatch) -> None:
    lose, poll = LeasedWorkers._lose, LeasedWorkers._poll
    calls: list[Any] = []

    def lose_and_listen(self: Any, slot: Any, lost: Any) -> None:
        calls.append(slot.call)
        lose(self, slot, lost)

    def poll_and_listen(self: Any, timeout_seconds: float) -> None:
        for _, heartbeat in self._cluster.wait(calls, 0.0):
            outcome = decode(heartbeat.outcome)
            self._outcomes[outcome.job] = outcome
        poll(self, timeout_seconds)

    patch.setattr(LeasedWorkers, "_lose", lose_and_listen)
    patch.setattr(LeasedWorkers, "_poll", poll_and_listen)


def repeat_with_another_seed(patch: pytest.MonkeyPatch) -> None:
    judge = JobQueue._judge

    def judge_and_reseed(self: Any, lost: Lost) -> Lost | None:
        job = self._jobs[lost.job]
        job.payload = reseed(job.payload)
        return judge(self, lost)

    patch.setattr(JobQueue, "_judge", judge_and_reseed)


def repeat_faulty_jobs_with_another_seed(patch: pytest.MonkeyPatch) -> None:
    submit = FaultyWorkers.submit

    def submit_reseeded(self: Any, job: int, payload: Any, *, deadline_seconds: float) -> None:
        submit(self, job, reseed(payload) if self._attempts[job] else payload, deadline_seconds=deadline_seconds)

    patch.setattr(FaultyWorkers, "submit", submit_reseeded)


def reseed(payload: Job) -> Job:
    if isinstance(payload, Train):
        return replace(payload, training=replace(payload.training, seed=payload.training.seed + 1))
    return payload


def score_what_failed(patch: pytest.MonkeyPatch) -> None:
    result = Dispatcher._result

    def scored(self: Any, job: Job, outcome: JobOutcome) -> Any:
        found = result(self, job, outcome)
        failed = isinstance(found, Outcome) and found.state is State.FAILED
        return replace(found, state=State.SCORED, score=0.0) if failed else found

    patch.setattr(Dispatcher, "_result", scored)


def give_up_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue, "TRIES", 1)


def count_injected_faults_as_failures(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FaultyWorkers, "_mark", lambda self, outcome: outcome)


def keep_the_worker(patch: pytest.MonkeyPatch) -> None:
    discard = Slot._discard
    # At the end, without a job, the worker does go.
    patch.setattr(Slot, "_discard", lambda self: None if self.job else discard(self))


MUTANTS: list[tuple[Mutate, Callable[[], None]]] = [
    (ignore_leases, check_the_job_of_a_silent_supervisor_is_lost),
    (accept_answers_of_lost_supervisors, check_the_job_of_a_silent_supervisor_is_lost),
    (repeat_faulty_jobs_with_another_seed, check_faults_do_not_change_the_history),
    (repeat_with_another_seed, check_what_the_machine_loses_is_tried_again),
    (give_up_at_once, check_what_the_machine_loses_is_tried_again),
    (count_injected_faults_as_failures, check_faults_do_not_change_the_history),
    (score_what_failed, check_three_failures_of_the_machine_are_no_score),
    (keep_the_worker, check_an_error_of_a_gpu_replaces_the_worker),
]


@pytest.mark.parametrize(("mutate", "check"), MUTANTS, ids=lambda part: part.__name__)
def test_a_wrong_way_is_caught_by_the_check_of_the_right_one(mutate: Mutate, check: Callable[[], None]):
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        with pytest.raises((AssertionError, RunError)):
            check()
