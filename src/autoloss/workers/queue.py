"""A queue of jobs for workers, which repeats the jobs that the machine ended."""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from autoloss.workers.messages import JobOutcome, Lost
from autoloss.workers.pool import Workers

TRIES = 3
"""Failures of the machine after which a job is given up."""
STARTS = 30
"""Workers that may in addition be killed for a job before they begin it."""


@dataclass(slots=True)
class _Job:
    payload: Any
    deadline_seconds: float
    urgent: bool
    starts: int = 0
    failures: list[str] = field(default_factory=list)


class JobQueue:
    """Gives jobs to workers in the order of their submission, urgent ones first; repeats those that the machine ended.

    Attributes:
        slots: The number of jobs that run at once.
        losses: Cause → attempts that the machine ended and that were repeated.
    """

    def __init__(self, workers: Workers) -> None:
        self.slots = workers.slots
        self._workers = workers
        self.losses: Counter[str] = Counter()
        self._numbers, self._order = itertools.count(), itertools.count()
        self._waiting: list[tuple[bool, int, int]] = []
        self._jobs: dict[int, _Job] = {}
        self._ended: list[JobOutcome] = []

    @property
    def idle(self) -> int:
        """The number of free workers without a queued job."""
        return max(0, self._workers.free - len(self._waiting))

    @property
    def pending(self) -> int:
        """The number of jobs queued or running."""
        return len(self._jobs)

    def submit(self, payload: Any, *, deadline_seconds: float, urgent: bool = False) -> None:
        """Queue a job."""
        number = next(self._numbers)
        self._jobs[number] = _Job(payload, deadline_seconds, urgent)
        self._enqueue(number)
        self._start()

    def wait(self, timeout_seconds: float | None) -> list[tuple[Any, JobOutcome]]:
        """Return the ended jobs with their outcomes: at least one, unless the time ran out or nothing is queued or running.

        `Lost` means that a job was given up; its detail names each failure.
        """
        self._start()
        ended, self._ended = [*self._ended, *self._workers.wait(0.0 if self._ended else timeout_seconds)], []
        outcomes = []
        for outcome in ended:
            if outcome.job not in self._jobs:
                continue
            if isinstance(outcome, Lost) and (outcome := self._judge(outcome)) is None:
                continue
            outcomes.append((self._jobs.pop(outcome.job).payload, outcome))
        self._start()
        return outcomes

    def abandon(self) -> None:
        """Drop all queued and running jobs, without outcomes."""
        for number in self._jobs:
            if number in self._workers.busy:
                self._workers.cancel(number)
        self._waiting.clear()
        self._jobs.clear()

    def rest(self, seconds: float) -> None:
        """Wait while nothing can be recorded: outcomes are kept for the next `wait`, and no job is started."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._workers.busy:
                time.sleep(left)
            self._ended += self._workers.wait(left)

    def describe_losses(self) -> str:
        """Return one line on the attempts that the machine ended."""
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(self.losses.items()))
        return f"The machine ended {self.losses.total()} attempts ({causes}); they were repeated with the same seed."

    def _enqueue(self, number: int) -> None:
        heapq.heappush(self._waiting, (not self._jobs[number].urgent, next(self._order), number))

    def _start(self) -> None:
        while self._waiting and self._workers.free:
            *_, number = heapq.heappop(self._waiting)
            job = self._jobs[number]
            self._workers.submit(number, job.payload, deadline_seconds=job.deadline_seconds)

    def _judge(self, lost: Lost) -> Lost | None:
        """Repeat a job; return its outcome if it is given up."""
        job = self._jobs[lost.job]
        if lost.cause == "killed" and not lost.begun and job.starts < STARTS:
            job.starts += 1
        elif lost.cause != "injected":
            job.failures.append(f"{lost.cause}: {lost.detail}" if lost.detail else lost.cause)
            if lost.cause == "deadline" or len(job.failures) >= TRIES:
                return replace(lost, detail="; ".join(job.failures))
        if lost.cause != "injected":
            self.losses[lost.cause] += 1
        self._enqueue(lost.job)
        return None
