"""Jobs on their way through the workers: queued, repeated when the machine fails, and turned into outcomes."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autoloss.errors import RequestError, RunError
from autoloss.proposing.jobs import Attempt, Job, RejectionBatch, Train
from autoloss.proposing.records import REASON_CHARACTERS, Outcome, State, keep_text
from autoloss.settings import LimitSettings
from autoloss.workers.messages import Finished, JobOutcome, Lost, Raised
from autoloss.workers.pool import Workers

TRIES = 3
"""After so many failures of the machine a job has failed."""
STARTS = 30
"""Likewise after so many workers that were killed while they started, before they began the job."""


@dataclass(frozen=True, slots=True)
class CompletedJob:
    """A job with its result."""

    ticket: int
    job: Job
    result: Outcome | list[Attempt]
    seconds: float


class Dispatcher:
    """Gives jobs to workers in the order of their submission, trainings first, and repeats those that the machine ended.

    A training that raises, or that passes its deadline, is failed: it has no score, and the search goes on.

    Attributes:
        losses: Cause → attempts that the machine ended and that were repeated.
        failed: Jobs that ended without a result.
    """

    def __init__(self, workers: Workers, limits: LimitSettings) -> None:
        self._workers = workers
        self._limits = limits
        self.losses: Counter[str] = Counter()
        self.failed = 0
        self._tickets = itertools.count()
        self._queue: deque[int] = deque()
        self._jobs: dict[int, Job] = {}
        self._failures: dict[int, list[str]] = {}
        self._starts: Counter[int] = Counter()
        self._error: RunError | None = None
        self._ended: list[JobOutcome] = []

    @property
    def slots(self) -> int:
        return self._workers.slots

    @property
    def idle(self) -> int:
        """The number of workers that nothing is queued for."""
        return max(0, self._workers.free - len(self._queue))

    @property
    def pending(self) -> int:
        """The number of jobs queued or running."""
        return len(self._jobs)

    @property
    def trainings(self) -> int:
        """The number of trainings queued or running."""
        return sum(isinstance(job, Train) for job in self._jobs.values())

    def submit(self, job: Job) -> int:
        """Queue a job and return its ticket, which its `CompletedJob` carries."""
        ticket = next(self._tickets)
        self._jobs[ticket] = job
        self._failures[ticket] = []
        self._enqueue(ticket)
        self._start()
        return ticket

    def abandon(self) -> None:
        """Stop everything that is queued or running; no result of it is returned."""
        for ticket in self._jobs:
            if ticket in self._workers.busy:
                self._workers.cancel(ticket)
        for kept in (self._queue, self._jobs, self._failures, self._starts):
            kept.clear()

    def wait(self, timeout_seconds: float | None) -> list[CompletedJob]:
        """Return the jobs that ended: at least one, unless the time ran out or nothing is queued or running.

        Raises:
            RunError: No worker can start, or a rejection test failed. What ended beside it is returned before.
        """
        if self._error is not None:
            raise self._error
        self._start()
        completed = []
        ended, self._ended = [*self._ended, *self._workers.wait(0.0 if self._ended else timeout_seconds)], []
        for outcome in ended:
            if outcome.job not in self._jobs:
                continue
            try:
                result = self._result(outcome)
            except RunError as error:
                self._error = error
                continue
            if result is not None:
                del self._failures[outcome.job], self._starts[outcome.job]
                completed.append(CompletedJob(outcome.job, self._jobs.pop(outcome.job), result, outcome.seconds))
        if self._error is not None and not completed:
            raise self._error
        self._start()
        return completed

    def rest(self, seconds: float) -> None:
        """Wait while nothing can be recorded: what ends is kept for the next `wait`, and no job is started."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._workers.busy:
                time.sleep(left)
            self._ended += self._workers.wait(left)

    def describe_losses(self) -> str:
        """Return one line on the attempts that the machine ended."""
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(self.losses.items()))
        return f"The machine ended {self.losses.total()} attempts ({causes}); they were repeated with the same seed."

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
            self._workers.submit(ticket, job, deadline_seconds=deadline)

    def _result(self, outcome: JobOutcome) -> Outcome | list[Attempt] | None:
        """Return the result of a job, or None when it is repeated."""
        match outcome:
            case Finished(value=Outcome() as trained):
                return replace(trained, seconds=outcome.seconds)
            case Finished():
                return outcome.value
            case Raised(at_start=True):
                raise RunError(f"{outcome.message}\n{outcome.traceback_text}".rstrip())
            case Raised():
                return self._fail(outcome.job, outcome.message, outcome.traceback_text, outcome.seconds)
            case Lost(cause="killed", begun=False) if self._starts[outcome.job] < STARTS:
                self._starts[outcome.job] += 1
                return self._repeat(outcome)
            case Lost():
                failures = self._failures[outcome.job]
                failures.append(f"{outcome.cause}: {outcome.detail}" if outcome.detail else outcome.cause)
                if outcome.cause == "deadline" or len(failures) >= TRIES:
                    return self._fail(outcome.job, "; ".join(failures), "", outcome.seconds)
                return self._repeat(outcome)

    def _repeat(self, outcome: Lost) -> None:
        self.losses[outcome.cause] += 1
        self._enqueue(outcome.job)

    def _fail(self, ticket: int, reason: str, traceback: str, seconds: float) -> Outcome:
        self.failed += 1
        if isinstance(self._jobs[ticket], RejectionBatch):
            request = reason.removeprefix(f"{RequestError.__name__}: ")
            if request != reason:
                # The samples of a run that began with them no longer serve.
                raise RunError(
                    f"Losses cannot be tested. {request} If the task has changed since the run began, restore it, or "
                    "begin another run."
                )
            raise RunError(f"Testing losses failed: {reason}\n{traceback}".rstrip())
        text = keep_text(f"{reason}\n{traceback}".rstrip(), REASON_CHARACTERS)
        return Outcome(state=State.FAILED, reason=text, seconds=seconds)


def run_jobs(jobs: Iterable[Job], dispatcher: Dispatcher) -> Iterator[CompletedJob]:
    """Run jobs and yield each as it ends, in any order."""
    for job in jobs:
        dispatcher.submit(job)
    while dispatcher.pending:
        yield from dispatcher.wait(None)
