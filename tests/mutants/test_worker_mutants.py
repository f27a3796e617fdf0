"""Each wrong way to deal with workers that fail is caught, by the same check that holds the right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autoloss.search.jobs import Train
from autoloss.search.records import Outcome, State
from autoloss.workers.dispatch import Again, Dispatcher
from autoloss.workers.leases import LeasedWorkers
from autoloss.workers.messages import Finished, Lost, Raised, decode
from autoloss.workers.slot import Slot
from tests.run.test_injection import (
    check_faults_do_not_change_the_history,
    check_three_failures_of_the_machine_are_no_score,
    check_what_the_machine_loses_is_tried_again,
)
from tests.run.test_leases import check_a_silent_seat_loses_its_job
from tests.run.test_worker_faults import check_an_error_of_a_gpu_replaces_the_worker

Mutate = Callable[[pytest.MonkeyPatch], None]


def ignore_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeasedWorkers, "_judge_silence", lambda self: None)


def hear_seats_that_were_given_up(patch: pytest.MonkeyPatch) -> None:
    lose, turn = LeasedWorkers._lose, LeasedWorkers._turn
    calls: list[Any] = []

    def lose_and_listen(self: Any, place: Any, cause: Any, detail: str) -> None:
        calls.append(place.call)
        lose(self, place, cause, detail)

    def turn_and_listen(self: Any, timeout_seconds: float) -> None:
        for _, news in self._cluster.wait(calls, 0.0):
            outcome = decode(news.frame)
            self._outcomes[outcome.job] = outcome
        turn(self, timeout_seconds)

    patch.setattr(LeasedWorkers, "_lose", lose_and_listen)
    patch.setattr(LeasedWorkers, "_turn", turn_and_listen)


def repeat_with_another_seed(patch: pytest.MonkeyPatch) -> None:
    armed = Dispatcher._armed

    def reseeded(self: Any, ticket: int, job: Any, deadline_seconds: float) -> Any:
        if isinstance(job, Train) and self._attempts[ticket]:
            job = replace(job, training=replace(job.training, seed=job.training.seed + 1))
        return armed(self, ticket, job, deadline_seconds)

    patch.setattr(Dispatcher, "_armed", reseeded)


def score_what_failed(patch: pytest.MonkeyPatch) -> None:
    result = Dispatcher._result

    def scored(self: Any, outcome: Finished | Raised | Lost) -> Any:
        found = result(self, outcome)
        failed = isinstance(found, Outcome) and found.state is State.FAILED
        return replace(found, state=State.SCORED, score=0.0) if failed else found

    patch.setattr(Dispatcher, "_result", scored)


def give_up_at_once(patch: pytest.MonkeyPatch) -> None:
    result = Dispatcher._result

    def once(self: Any, outcome: Finished | Raised | Lost) -> Any:
        found = result(self, outcome)
        if not isinstance(found, Again) or not isinstance(self._jobs[outcome.job], Train):
            return found
        self._queue.remove(outcome.job)
        return Outcome(state=State.FAILED, reason="lost once", seconds=0.0)

    patch.setattr(Dispatcher, "_result", once)


def count_injected_faults_as_failures(patch: pytest.MonkeyPatch) -> None:
    armed = Dispatcher._armed

    def forgotten(self: Any, ticket: int, job: Any, deadline_seconds: float) -> Any:
        found = armed(self, ticket, job, deadline_seconds)
        if isinstance(job, Train):
            self._faulty.discard(ticket)
        return found

    patch.setattr(Dispatcher, "_armed", forgotten)


def keep_the_worker(patch: pytest.MonkeyPatch) -> None:
    def keep(self: Any, child: Any) -> None:
        pass

    patch.setattr(Slot, "_drop", keep)


MUTANTS: list[tuple[Mutate, Callable[[], None]]] = [
    (ignore_leases, check_a_silent_seat_loses_its_job),
    (hear_seats_that_were_given_up, check_a_silent_seat_loses_its_job),
    (repeat_with_another_seed, check_faults_do_not_change_the_history),
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
        with pytest.raises(AssertionError):
            check()
