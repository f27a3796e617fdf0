"""Jobs on their way through the workers: queued, retried when the machine fails, and turned into outcomes."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autoloss.errors import RunError
from autoloss.search.jobs import Attempt, Job, RejectionBatch, Train
from autoloss.search.records import Outcome, State
from autoloss.settings import LimitSettings
from autoloss.workers.injection import HANG_SECONDS, HANGING, Faulty, Injection, Mishaps
from autoloss.workers.pool import Finished, Lost, Raised, Workers

TRIES = 3
"""After so many failures of the machine a job is given up."""
STARTS = 30
"""Likewise after so many workers that were killed while they started, with no job of theirs begun."""


@dataclass(frozen=True, slots=True)
class Done:
    """A job that came to its end."""

    ticket: int
    job: Job
    result: Outcome | list[Attempt]
    seconds: float


class Again:
    """A job is tried once more."""


class Dispatcher:
    """Gives jobs to workers, the first in first, and tries again what the machine killed.

    A training that raises, or that passes its deadline, is failed: it has no score, and the search goes on.

    Args:
        injection: What goes wrong on purpose; the workers do it, see `Rehearsing`.
    """

    def __init__(self, workers: Workers, limits: LimitSettings, injection: Injection | None = None) -> None:
        self._workers = workers
        self._limits = limits
        self._injection = injection
        self.mishaps = Mishaps()
        self._attempts: dict[int, int] = {}
        self._faulty: set[int] = set()
        self._tickets = itertools.count()
        self._queue: deque[int] = deque()
        self._jobs: dict[int, Job] = {}
        self._failures: dict[int, list[str]] = {}
        self._starts: Counter[int] = Counter()
        self._error: RunError | None = None
        self._ended: list[Finished | Raised | Lost] = []

    @property
    def slots(self) -> int:
        return self._workers.slots

    @property
    def idle(self) -> int:
        """The number of workers that nothing is queued for."""
        return max(0, self._workers.free - len(self._queue))

    @property
    def pending(self) -> int:
        """The number of jobs queued or under way."""
        return len(self._jobs)

    @property
    def trainings(self) -> int:
        """The number of trainings queued or under way."""
        return sum(isinstance(job, Train) for job in self._jobs.values())

    def submit(self, job: Job) -> int:
        """Queue a job; trainings go before tests. Returns the ticket under which its end is told."""
        ticket = next(self._tickets)
        self._jobs[ticket] = job
        self._failures[ticket] = []
        self._attempts[ticket] = 0
        self._enqueue(ticket)
        self._start()
        return ticket

    def abandon(self) -> None:
        """Stop everything that is queued or under way; nothing is told of it any more."""
        for ticket in self._jobs:
            if ticket in self._workers.busy:
                self._workers.cancel(ticket)
        self._queue.clear()
        self._jobs.clear()
        self._failures.clear()
        self._starts.clear()
        self._attempts.clear()
        self._faulty.clear()

    def wait(self, timeout_seconds: float | None) -> list[Done]:
        """Return what ended; at least one job unless the time ran out or nothing is under way."""
        if self._error is not None:
            raise self._error
        self._start()
        done = []
        ended, self._ended = [*self._ended, *self._workers.wait(0.0 if self._ended else timeout_seconds)], []
        for outcome in ended:
            if outcome.job not in self._jobs:
                continue
            try:
                result = self._result(outcome)
            except RunError as error:
                # What ended beside it is told first: nothing finished is lost.
                self._error = error
                continue
            if not isinstance(result, Again):
                del self._failures[outcome.job], self._attempts[outcome.job], self._starts[outcome.job]
                done.append(Done(outcome.job, self._jobs.pop(outcome.job), result, outcome.seconds))
        if self._error is not None and not done:
            raise self._error
        self._start()
        return done

    def rest(self, seconds: float) -> None:
        """Let time pass in which nothing can be recorded: what ends is kept for the next `wait`, nothing new is started."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._workers.busy:
                time.sleep(left)
            self._ended += self._workers.wait(left)

    def _enqueue(self, ticket: int) -> None:
        if isinstance(self._jobs[ticket], Train):
            waiting = sum(isinstance(self._jobs[other], Train) for other in self._queue)
            self._queue.insert(waiting, ticket)
        else:
            self._queue.append(ticket)

    def _start(self) -> None:
        while self._queue and self._workers.free:
            ticket = self._queue.popleft()
            job = self._jobs[ticket]
            training = isinstance(job, Train)
            deadline = self._limits.training_seconds if training else self._limits.testing_seconds
            payload, deadline = self._armed(ticket, job, deadline)
            self._workers.submit(ticket, payload, deadline_seconds=deadline)

    def _armed(self, ticket: int, job: Job, deadline_seconds: float) -> tuple[Job | Faulty, float]:
        """Return what a worker gets: the job, or the job with a fault."""
        attempt = self._attempts[ticket]
        self._attempts[ticket] += 1
        fault = None if self._injection is None else self._injection.drawn(job, attempt, self._limits.memory_bytes)
        if fault is None:
            return job, deadline_seconds
        self._faulty.add(ticket)
        self.mishaps.injected[fault.kind] += 1
        return Faulty(job, fault), min(deadline_seconds, HANG_SECONDS) if fault.kind in HANGING else deadline_seconds

    def _result(self, outcome: Finished | Raised | Lost) -> Outcome | list[Attempt] | Again:
        """Return what the job came to."""
        faulty = outcome.job in self._faulty
        self._faulty.discard(outcome.job)
        match outcome:
            case Finished(value=Outcome() as trained):
                return replace(trained, seconds=outcome.seconds)
            case Finished():
                return outcome.value
            case Raised(at_start=True):
                raise RunError(f"{outcome.message}\n{outcome.traceback_text}".rstrip())
            case Raised():
                return self._given_up(outcome.job, outcome.message, outcome.traceback_text, outcome.seconds)
            case Lost() if faulty:
                # Not the machine's failure, so not one of those after which the job is given up.
                self.mishaps.repeated += 1
                self._enqueue(outcome.job)
                return Again()
            case Lost(cause="killed", begun=False) if self._starts[outcome.job] < STARTS:
                self._starts[outcome.job] += 1
                return self._again(outcome)
            case Lost():
                failures = self._failures[outcome.job]
                failures.append(f"{outcome.cause}: {outcome.detail}" if outcome.detail else outcome.cause)
                if outcome.cause == "deadline" or len(failures) >= TRIES:
                    return self._given_up(outcome.job, "; ".join(failures), "", outcome.seconds)
                return self._again(outcome)

    def _again(self, outcome: Lost) -> Again:
        self.mishaps.losses[outcome.cause] += 1
        self._enqueue(outcome.job)
        return Again()

    def _given_up(self, ticket: int, reason: str, traceback: str, seconds: float) -> Outcome:
        self.mishaps.given_up += 1
        if isinstance(self._jobs[ticket], RejectionBatch):
            raise RunError(f"Testing losses failed: {reason}\n{traceback}".rstrip())
        return Outcome(state=State.FAILED, reason=f"{reason}\n{traceback}".rstrip(), seconds=seconds)


def run_all(jobs: Iterable[Job], dispatcher: Dispatcher) -> Iterator[Done]:
    """Run jobs and give each as it ends, in any order."""
    for job in jobs:
        dispatcher.submit(job)
    while dispatcher.pending:
        yield from dispatcher.wait(None)
