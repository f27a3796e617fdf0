"""The job of a silent supervisor is lost and can go to another one; a late answer of the old supervisor is ignored."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import cloudpickle

from autoloss.workers.leases import (
    LEASE_SECONDS,
    LISTENING_SECONDS,
    START_SECONDS,
    Cluster,
    Heartbeat,
    LeasedWorkers,
    Request,
    build,
)
from autoloss.workers.messages import START, Finished, Lost, Raised

Answer = Heartbeat | Lost | Raised


class Clock:
    """A clock that advances when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ScriptedCluster(Cluster):
    """Supervisors are numbers, and the test says what each of them answers."""

    def __init__(self) -> None:
        self.started = 0
        self.sent: list[tuple[int, Request | None]] = []
        self.ended: list[int] = []
        self.closed = 0
        self._answers: deque[tuple[int, Answer]] = deque()

    def start(self) -> int:
        self.started += 1
        return self.started - 1

    def call(self, supervisor: int, request: Request | None) -> int:
        self.sent.append((supervisor, request))
        return len(self.sent) - 1

    def wait(self, calls: Sequence[int], timeout_seconds: float) -> Sequence[tuple[int, Answer]]:
        found = [(call, answer) for call, answer in self._answers if call in calls]
        self._answers.clear()
        return found

    def end(self, supervisor: int) -> None:
        self.ended.append(supervisor)

    def close(self) -> None:
        self.closed += 1

    def describe(self) -> str:
        return "It is scripted."

    def answer(self, supervisor: int, answer: Answer, call: int | None = None) -> None:
        """Let a supervisor answer its last call, or an older one."""
        self._answers.append((self.last_call(supervisor) if call is None else call, answer))

    def last_call(self, supervisor: int) -> int:
        return max(number for number, (known, _) in enumerate(self.sent) if known == supervisor)

    def jobs(self, supervisor: int) -> list[int]:
        return [request[0] for known, request in self.sent if known == supervisor and request is not None]


def beat() -> Heartbeat:
    return Heartbeat(build())


def finished(job: int, value: Any) -> Heartbeat:
    return Heartbeat(build(), cloudpickle.dumps(Finished(job, value, 1.0)))


class Play:
    """Workers on a scripted cluster."""

    def __init__(self, slots: int) -> None:
        self.clock, self.cluster = Clock(), ScriptedCluster()
        self.workers = LeasedWorkers(self.cluster, slots, clock=self.clock)
        self.look()
        for supervisor in range(slots):
            self.cluster.answer(supervisor, beat())
        self.look()

    def look(self, seconds: float = 0.0) -> list[Any]:
        """Let so much time go by and poll once."""
        self.clock.now += seconds
        self.workers._poll(0.0)
        return self.workers.wait(0.0)

    def listen(self, seconds: float) -> list[Any]:
        """Poll often for so long."""
        found = []
        for _ in range(round(seconds / 0.5)):
            found += self.look(0.5)
        return found


def check_the_job_of_a_silent_supervisor_is_lost() -> None:
    """The check that the mutants have to fail as well."""
    play = Play(2)
    play.workers.submit(7, "work", deadline_seconds=60)
    assert play.cluster.jobs(0) == [7]
    late = play.cluster.last_call(0)
    told = play.listen(LEASE_SECONDS + 1)
    assert [(type(lost), lost.job, lost.cause) for lost in told] == [(Lost, 7, "node")]
    assert play.cluster.ended == [0]
    play.workers.submit(7, "work", deadline_seconds=60)
    assert play.cluster.jobs(1) == [7]
    # The old supervisor was only slow: its answer comes first, and is ignored.
    play.cluster.answer(0, finished(7, "from the old one"), late)
    assert play.look() == []
    play.cluster.answer(1, finished(7, "from the new one"))
    assert [outcome.value for outcome in play.look()] == ["from the new one"]


def test_the_job_of_a_silent_supervisor_is_lost_and_a_late_answer_is_ignored():
    check_the_job_of_a_silent_supervisor_is_lost()


def test_heartbeats_renew_a_lease_however_long_the_job_takes():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=600)
    for _ in range(30):
        play.cluster.answer(0, beat())
        assert play.listen(2.0) == []
    assert set(play.workers.busy) == {1}
    play.cluster.answer(0, finished(1, "done"))
    assert [outcome.value for outcome in play.look()] == ["done"]


def test_a_driver_that_did_not_listen_ends_no_lease():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=600)
    assert play.look(3600.0) == []
    assert play.look(3600.0) == []
    assert play.cluster.ended == []
    assert LISTENING_SECONDS * 2 < LEASE_SECONDS


def test_an_answer_that_has_arrived_renews_the_lease_first():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=600)
    assert play.listen(LEASE_SECONDS - 0.5) == []
    play.cluster.answer(0, finished(1, "just in time"))
    assert [outcome.value for outcome in play.look(1.0)] == ["just in time"]


def test_a_lost_supervisor_costs_its_job_alone_and_is_replaced():
    play = Play(2)
    for job in (1, 2):
        play.workers.submit(job, "work", deadline_seconds=60)
    play.cluster.answer(0, Lost(START, "memory", "the node ran out of memory", 0.0))
    (lost,) = play.look()
    assert (lost.job, lost.cause, lost.detail) == (1, "memory", "the node ran out of memory")
    assert set(play.workers.busy) == {2}
    assert play.cluster.started == 2
    play.look(1.5)
    assert play.cluster.started == 3
    play.cluster.answer(2, beat())
    play.look()
    play.workers.submit(3, "work", deadline_seconds=60)
    assert play.cluster.jobs(2) == [3]


def test_jobs_wait_for_any_supervisor():
    play = Play(2)
    for job in (1, 2):
        play.workers.submit(job, "work", deadline_seconds=60)
    play.cluster.answer(0, Lost(START, "node", "killed", 0.0))
    play.look()
    play.workers.submit(1, "work", deadline_seconds=60)
    assert set(play.workers.busy) == {1, 2}
    play.cluster.answer(1, finished(2, "two"))
    play.look()
    # No supervisor has replaced the lost one yet; the other one takes its job.
    assert play.cluster.jobs(1) == [2, 1]


def test_a_supervisor_that_has_never_answered_has_no_job_and_no_lease():
    cluster, clock = ScriptedCluster(), Clock()
    workers = LeasedWorkers(cluster, 1, clock=clock)
    workers.submit(1, "work", deadline_seconds=60)
    for _ in range(20):
        clock.now += 1
        assert workers.wait(0.0) == []
    assert cluster.jobs(0) == []
    assert cluster.ended == []


def test_a_cluster_without_room_ends_the_run_with_what_was_asked():
    cluster, clock = ScriptedCluster(), Clock()
    workers = LeasedWorkers(cluster, 1, clock=clock)
    workers.submit(1, "work", deadline_seconds=60)
    clock.now += START_SECONDS + 1
    (raised,) = workers.wait(0.0)
    assert isinstance(raised, Raised)
    assert raised.at_start
    assert "no room for a worker for 120 s. It is scripted." in raised.message


def test_a_supervisor_that_cannot_start_ends_the_run_and_one_that_fails_later_does_not():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.cluster.answer(0, Raised(START, "it fell over", "", 0.0))
    (lost,) = play.look()
    assert (lost.cause, lost.detail) == ("exited", "it fell over")
    play.look(1.5)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.cluster.answer(1, Raised(START, "No module named 'autoloss'", "", 0.0))
    (raised,) = play.look()
    assert raised.at_start
    assert raised.message == "No module named 'autoloss'"


def test_a_node_with_another_build_is_refused_since_its_figures_would_differ():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.cluster.answer(0, Heartbeat(("Python 3.11.7", "torch 1.0")))
    (raised,) = play.look()
    assert raised.at_start
    assert "has Python 3.11.7, torch 1.0; the driver has Python" in raised.message


def test_a_cancelled_job_ends_with_its_supervisor_and_a_late_answer_is_ignored():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    asked = play.cluster.last_call(0)
    play.workers.cancel(1)
    assert play.cluster.ended == [0]
    play.cluster.answer(0, finished(1, "too late"), asked)
    assert play.look() == []
    play.workers.submit(2, "work", deadline_seconds=60)
    play.look(1.5)
    play.cluster.answer(1, beat())
    play.look()
    assert play.cluster.jobs(1) == [2]


def test_an_answer_for_another_job_is_never_taken():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.cluster.answer(0, finished(2, "of another"))
    (lost,) = play.look()
    assert (lost.job, lost.cause) == (1, "exited")
    assert play.cluster.ended == [0]


def test_an_answer_that_cannot_be_read_is_the_jobs_fault_alone():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.cluster.answer(0, Heartbeat(build(), b"no pickle"))
    (raised,) = play.look()
    assert isinstance(raised, Raised)
    assert "cannot read the result" in raised.message


def test_a_job_that_is_cancelled_before_it_was_sent_costs_no_supervisor():
    play = Play(1)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.cluster.answer(0, Lost(START, "node", "killed", 0.0))
    play.look()
    play.workers.submit(2, "work", deadline_seconds=60)
    play.workers.cancel(2)
    assert not play.workers.busy
    assert play.cluster.ended == [0]


def test_close_ends_every_supervisor_and_the_cluster_once():
    play = Play(2)
    play.workers.submit(1, "work", deadline_seconds=60)
    play.workers.close()
    play.workers.close()
    assert sorted(play.cluster.ended) == [0, 1]
    assert play.cluster.closed == 1
