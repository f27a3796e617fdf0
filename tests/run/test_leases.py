"""A job whose seat fell silent is taken back and given to another; what the old seat says after that is not heard."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from autoloss.workers.leases import LOOK_SECONDS, START_SECONDS, LeasedWorkers
from autoloss.workers.messages import Finished, Lost, Raised, pickled
from autoloss.workers.seats import Cluster, Command, Gone, News, Report, Unfit, build

LEASE_SECONDS = 3.0


class Time:
    """A clock that goes on when it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Stage(Cluster):
    """Seats are numbers, and the test says what each of them answers."""

    def __init__(self) -> None:
        self.opened = 0
        self.sent: list[tuple[int, Command]] = []
        self.ended: list[int] = []
        self.closed = 0
        self._news: deque[tuple[int, News]] = deque()

    def open(self) -> int:
        self.opened += 1
        return self.opened - 1

    def call(self, seat: int, command: Command) -> int:
        self.sent.append((seat, command))
        return len(self.sent) - 1

    def wait(self, calls: Sequence[int], timeout_seconds: float) -> Sequence[tuple[int, News]]:
        found = [(call, news) for call, news in self._news if call in calls]
        self._news.clear()
        return found

    def end(self, seat: int) -> None:
        self.ended.append(seat)

    def close(self) -> None:
        self.closed += 1

    def describe(self) -> str:
        return "It is a stage."

    def answer(self, seat: int, news: News, call: int | None = None) -> None:
        """Let a seat answer its last command, or an older one."""
        last = max(number for number, (known, _) in enumerate(self.sent) if known == seat)
        self._news.append((last if call is None else call, news))

    def jobs(self, seat: int) -> list[int]:
        return [command.job for known, command in self.sent if known == seat and command.job is not None]


def beat(seconds: float = 0.0) -> Report:
    return Report(b"", seconds, build())


def finished(job: int, value: Any) -> Report:
    return Report(pickled(Finished(job, value, 1.0)), 0.0, build())


class Play:
    """Workers on a stage."""

    def __init__(self, slots: int) -> None:
        self.clock, self.stage = Time(), Stage()
        self.workers = LeasedWorkers(self.stage, slots, lease_seconds=LEASE_SECONDS, clock=self.clock)
        self.look()
        for seat in range(slots):
            self.stage.answer(seat, beat())
        self.look()

    def look(self, seconds: float = 0.0) -> list[Any]:
        """Let so much time go by and look what there is."""
        self.clock.now += seconds
        self.workers._turn(0.0)
        return self.workers.wait(0.0)

    def listen(self, seconds: float) -> list[Any]:
        """Look often for so long."""
        found = []
        for _ in range(round(seconds / 0.5)):
            found += self.look(0.5)
        return found


def check_a_silent_seat_loses_its_job() -> None:
    """The check that the mutants have to fail as well."""
    play = Play(2)
    play.workers.submit(7, "work", deadline_seconds=60)
    assert play.stage.jobs(0) == [7]
    late = max(number for number, (seat, _) in enumerate(play.stage.sent) if seat == 0)
    told = play.listen(LEASE_SECONDS + 1)
    assert [(type(lost), lost.job, lost.cause) for lost in told] == [(Lost, 7, "node")]
    assert play.stage.ended == [0]
    play.workers.submit(7, "work", deadline_seconds=60)
    assert play.stage.jobs(1) == [7]
    # The old seat was only slow: its answer comes first, and is not the job's any more.
    play.stage.answer(0, finished(7, "from the old seat"), late)
    assert play.look() == []
    play.stage.answer(1, finished(7, "from the new seat"))
    assert [outcome.value for outcome in play.look()] == ["from the new seat"]


def test_a_silent_seat_loses_its_job_and_its_late_answer_is_not_heard():
    check_a_silent_seat_loses_its_job()


def test_news_renew_a_lease_however_long_the_job_takes():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=600)
    for second in range(30):
        play.stage.answer(0, beat(float(second)))
        assert play.listen(2.0) == []
    assert play.workers.busy == {1: 29.0}
    play.stage.answer(0, finished(1, "done"))
    assert [outcome.value for outcome in play.look()] == ["done"]


def test_a_driver_that_did_not_listen_takes_nothing_back():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=600)
    assert play.look(3600.0) == []
    assert play.look(3600.0) == []
    assert play.stage.ended == []
    assert LOOK_SECONDS * 2 < LEASE_SECONDS


def test_an_answer_that_waits_is_heard_before_silence_is_judged():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=600)
    assert play.listen(LEASE_SECONDS - 0.5) == []
    play.stage.answer(0, finished(1, "just in time"))
    assert [outcome.value for outcome in play.look(1.0)] == ["just in time"]


def test_a_lost_seat_costs_its_job_alone_and_is_opened_again():
    play = Play(2)
    for job in (1, 2):
        play.workers.submit(job, "work", deadline_seconds=60)
    play.stage.answer(0, Gone("memory", "the node ran out of memory"))
    (lost,) = play.look()
    assert (lost.job, lost.cause, lost.detail) == (1, "memory", "the node ran out of memory")
    assert set(play.workers.busy) == {2}
    assert play.stage.opened == 2
    play.look(1.5)
    assert play.stage.opened == 3
    play.stage.answer(2, beat())
    play.look()
    play.workers.submit(3, "work", deadline_seconds=60)
    assert play.stage.jobs(2) == [3]


def test_jobs_wait_for_no_seat_in_particular():
    play = Play(2)
    for job in (1, 2):
        play.workers.submit(job, "work", deadline_seconds=60)
    play.stage.answer(0, Gone("node", "killed"))
    play.look()
    play.workers.submit(1, "work", deadline_seconds=60)
    assert play.workers.busy == {2: 0.0, 1: 0.0}
    play.stage.answer(1, finished(2, "two"))
    play.look()
    # The lost seat is not back yet; the other one takes what it had.
    assert play.stage.jobs(1) == [2, 1]


def test_a_seat_that_has_never_answered_has_no_job_and_no_lease():
    stage, clock = Stage(), Time()
    workers = LeasedWorkers(stage, 1, lease_seconds=LEASE_SECONDS, clock=clock)
    workers.submit(1, "work", deadline_seconds=60)
    for _ in range(20):
        clock.now += 1
        assert workers.wait(0.0) == []
    assert stage.jobs(0) == []
    assert stage.ended == []


def test_a_cluster_without_room_ends_the_run_with_what_was_asked():
    stage, clock = Stage(), Time()
    workers = LeasedWorkers(stage, 1, lease_seconds=LEASE_SECONDS, clock=clock)
    workers.submit(1, "work", deadline_seconds=60)
    clock.now += START_SECONDS + 1
    (raised,) = workers.wait(0.0)
    assert isinstance(raised, Raised)
    assert raised.at_start
    assert "no room for a worker for 120 s. It is a stage." in raised.message


def test_a_seat_that_cannot_start_ends_the_run_and_one_that_fails_later_does_not():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.stage.answer(0, Unfit("it fell over"))
    (lost,) = play.look()
    assert (lost.cause, lost.detail) == ("exited", "it fell over")
    play.look(1.5)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.stage.answer(1, Unfit("No module named 'autoloss'"))
    (raised,) = play.look()
    assert raised.at_start
    assert raised.message == "No module named 'autoloss'"


def test_a_node_with_another_build_is_refused_since_its_figures_would_differ():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.stage.answer(0, Report(b"", 0.0, ("Python 3.11.7", "torch 1.0")))
    (raised,) = play.look()
    assert raised.at_start
    assert "computes with Python 3.11.7, torch 1.0; this driver with Python" in raised.message


def test_a_cancelled_job_is_stopped_where_it_runs_and_its_answer_is_not_heard():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    asked = len(play.stage.sent) - 1
    play.workers.cancel(1)
    assert play.stage.sent[-1] == (0, Command(stops=True))
    play.stage.answer(0, finished(1, "too late"), asked)
    assert play.look() == []
    play.workers.submit(2, "work", deadline_seconds=60)
    assert play.stage.jobs(0) == [1]
    play.stage.answer(0, beat())
    play.look()
    assert play.stage.jobs(0) == [1, 2]


def test_close_ends_every_seat_and_the_cluster_once():
    play = Play(2)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.workers.close()
    play.workers.close()
    assert sorted(play.stage.ended) == [0, 1]
    assert play.stage.closed == 1
    with pytest.raises(RuntimeError, match="closed"):
        play.workers.submit(2, "work", deadline_seconds=60)
