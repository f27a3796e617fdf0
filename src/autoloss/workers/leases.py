"""Workers on machines that may vanish: news of a job renews its lease, and a job whose lease runs out is taken back.

Every seat on the cluster answers one command at a time, at once or after a moment, and each answer is a heartbeat. A seat that
is silent for too long loses its job, which goes to another one; whatever the old seat still says is not heard.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from autoloss.workers.interruption import hold_interrupts
from autoloss.workers.messages import Cause, Lost, Outcome, Raised, decode
from autoloss.workers.pool import Workers, awaited, refuse_unfit, unknown_job
from autoloss.workers.seats import Cluster, Command, Gone, News, Report, Unfit, build

LEASE_SECONDS = 10.0
"""A seat that was silent for so long has lost its job. Ray notices a killed node after 13 s, a frozen one after a minute."""
LOOK_SECONDS = 1.0
"""Silence counts only while this process listens: a driver that was busy or stopped itself knows nothing of its seats."""
REOPEN_SECONDS = 1.0
"""Between two attempts at opening a seat that was lost."""
START_SECONDS = 120.0
"""A run ends when no seat at all could be opened for so long."""


@dataclass(slots=True)
class _Leased:
    """A job and what is known of its run."""

    command: Command
    seconds: float = 0.0


@dataclass(slots=True)
class _Place:
    """One slot: its seat, the command under way there, and the job that it has on lease.

    Args:
        seat: None while there is none.
        call: None when nothing is asked of the seat.
        ready: Whether it has ever answered.
        silent: Seconds listened to in vain.
        reopens: When a seat may be opened again.
    """

    seat: Any = None
    call: Any = None
    job: int | None = None
    ready: bool = False
    silent: float = 0.0
    reopens: float = 0.0


class LeasedWorkers(Workers):
    """Jobs on the seats of a cluster; as many run at once as seats are there, the others wait for one.

    Args:
        slots: How many seats are kept open.
        lease_seconds: How long a seat may be silent.
        clock: Seconds, which never go back.
    """

    def __init__(
        self,
        cluster: Cluster,
        slots: int,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._places = [_Place() for _ in range(slots)]
        self._jobs: dict[int, _Leased] = {}
        self._queue: deque[int] = deque()
        self._outcomes: dict[int, Outcome] = {}
        self._looked = self._served = clock()
        self._closed = False

    @property
    def slots(self) -> int:
        return len(self._places)

    @property
    def busy(self) -> Mapping[int, float]:
        return {job: leased.seconds for job, leased in self._jobs.items()}

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        body = cloudpickle.dumps(payload)
        with hold_interrupts():
            refuse_unfit(self, job, deadline_seconds, closed=self._closed, waiting=self._outcomes)
            self._jobs[job] = _Leased(Command(job, body, deadline_seconds))
            self._queue.append(job)
            self._assign()

    def wait(self, timeout_seconds: float | None = None) -> list[Outcome]:
        return awaited(self, self._outcomes, self._turn, timeout_seconds)

    def cancel(self, job: int) -> None:
        with hold_interrupts():
            if self._outcomes.pop(job, None) is not None:
                return
            if job not in self._jobs:
                raise unknown_job(job, self)
            del self._jobs[job]
            if job in self._queue:
                self._queue.remove(job)
            for place in self._places:
                if place.job == job:
                    # The answer to the command before this one is not listened to any more.
                    place.job = None
                    place.call = self._cluster.call(place.seat, Command(stops=True))

    def close(self) -> None:
        with hold_interrupts():
            if self._closed:
                return
            self._closed = True
            for place in self._places:
                self._vacate(place)
            self._jobs.clear()
            self._queue.clear()
            self._outcomes.clear()
            self._cluster.close()

    def _turn(self, timeout_seconds: float) -> None:
        """Wait for news, at most so long, and act on it."""
        if self._closed:
            return
        self._open()
        self._assign()
        calls = {place.call: place for place in self._places if place.call is not None}
        for call, news in self._cluster.wait(list(calls), max(0.0, timeout_seconds)):
            if calls[call].call is call:
                self._hear(calls[call], news)
        self._judge_silence()
        self._judge_start()
        self._assign()

    def _open(self) -> None:
        for place in self._places:
            if place.seat is None and self._clock() >= place.reopens:
                place.seat = self._cluster.open()
                place.call = self._cluster.call(place.seat, Command())
                place.ready, place.silent = False, 0.0

    def _assign(self) -> None:
        for place in self._places:
            if self._queue and place.ready and place.job is None and place.call is None:
                place.job = self._queue.popleft()
                place.silent = 0.0
                place.call = self._cluster.call(place.seat, self._jobs[place.job].command)

    def _hear(self, place: _Place, news: News) -> None:
        match news:
            case Report(build=theirs) if theirs != build():
                self._refuse(
                    f"A node of the cluster computes with {', '.join(theirs)}; this driver with {', '.join(build())}. "
                    "One history needs one build: install the same releases on all nodes."
                )
            case Report():
                self._renew(place, news)
            case Gone(cause, detail):
                self._lose(place, cause, detail)
            case Unfit(detail) if place.ready:
                self._lose(place, "exited", detail)
            case Unfit(detail):
                self._refuse(detail)

    def _renew(self, place: _Place, report: Report) -> None:
        place.ready, place.silent, place.call = True, 0.0, None
        self._served = self._clock()
        if place.job is None:
            return
        if not report.frame:
            self._jobs[place.job].seconds = report.seconds
            place.call = self._cluster.call(place.seat, Command())
            return
        outcome: Outcome = decode(report.frame)
        place.job = None
        del self._jobs[outcome.job]
        self._outcomes[outcome.job] = outcome

    def _lose(self, place: _Place, cause: Cause, detail: str) -> None:
        """Take back what a seat had, and have another one opened in its place."""
        job = place.job
        self._vacate(place)
        if job is not None:
            self._outcomes[job] = Lost(job, cause, detail, self._jobs.pop(job).seconds)

    def _vacate(self, place: _Place) -> None:
        if place.seat is not None:
            self._cluster.end(place.seat)
        place.seat = place.call = place.job = None
        place.ready, place.silent = False, 0.0
        place.reopens = self._clock() + REOPEN_SECONDS

    def _judge_silence(self) -> None:
        now = self._clock()
        listened = min(now - self._looked, LOOK_SECONDS)
        self._looked = now
        for place in self._places:
            # A seat that has not answered yet may wait for room on the cluster, without a job that would wait for it.
            if place.call is None or not place.ready:
                continue
            place.silent += listened
            if place.silent > self._lease_seconds:
                self._lose(place, "node", f"Nothing was heard of the worker for {place.silent:.1f} s.")

    def _judge_start(self) -> None:
        now = self._clock()
        if any(place.ready for place in self._places) or not self._jobs:
            self._served = now
        elif now - self._served > START_SECONDS:
            self._refuse(f"The cluster had no room for a worker for {START_SECONDS:g} s. {self._cluster.describe()}")
            self._served = now

    def _refuse(self, detail: str) -> None:
        """End all jobs with an error that no other attempt would spare."""
        for place in self._places:
            self._vacate(place)
        for job in self._jobs:
            self._outcomes[job] = Raised(job, detail, "", 0.0, at_start=True)
        self._jobs.clear()
        self._queue.clear()
