"""Jobs of a search or a comparison handed to workers, and their outcomes as results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autoloss.errors import RequestError, RunError, keep_text
from autoloss.proposing.jobs import Attempt, CompletedJob, Job, RejectionBatch, Train
from autoloss.proposing.records import REASON_CHARACTERS, Outcome, State
from autoloss.settings import LimitSettings
from autoloss.workers.messages import Finished, JobOutcome, Lost, Raised
from autoloss.workers.pool import Workers
from autoloss.workers.queue import JobQueue


class Dispatcher:
    """Runs jobs on workers, trainings first, each until it has a result.

    A training that raises, passes its deadline, or is ended three times by the machine is failed: it has no score, and the
    search goes on.

    Attributes:
        queue: Repeats what the machine ended.
        failed: The number of failed trainings.
    """

    def __init__(self, workers: Workers, limits: LimitSettings) -> None:
        self.queue = JobQueue(workers)
        self.failed = 0
        self._limits = limits
        self._jobs: dict[int, Job] = {}
        self._error: RunError | None = None

    def submit(self, job: Job) -> int:
        """Queue a job and return its ticket, which its `CompletedJob` carries."""
        training = isinstance(job, Train)
        deadline = self._limits.training_seconds if training else self._limits.testing_seconds
        ticket = self.queue.submit(job, deadline_seconds=deadline, urgent=training)
        self._jobs[ticket] = job
        return ticket

    def wait(self, timeout_seconds: float | None) -> list[CompletedJob]:
        """Return the finished jobs: at least one, unless the time is over or no job is queued or running.

        Raises:
            RunError: No worker can start, or a rejection test failed. What ended beside it is returned before.
        """
        completed = []
        for outcome in [] if self._error else self.queue.wait(timeout_seconds):
            job = self._jobs.pop(outcome.job)
            try:
                completed.append(CompletedJob(outcome.job, job, self._result(job, outcome), outcome.seconds))
            except RunError as error:
                self._error = error
        if self._error is not None and not completed:
            raise self._error
        return completed

    def _result(self, job: Job, outcome: JobOutcome) -> Outcome | list[Attempt]:
        match outcome:
            case Finished(value=Outcome() as trained):
                return replace(trained, seconds=outcome.seconds)
            case Finished():
                return outcome.value
            case Raised(at_start=True):
                raise RunError(f"{outcome.message}\n{outcome.traceback_text}".rstrip())
            case Raised():
                reason, trace = outcome.message, outcome.traceback_text
            case Lost():
                reason, trace = outcome.detail, ""
        if isinstance(job, RejectionBatch):
            raise _describe_failed_test(reason, trace)
        self.failed += 1
        text = keep_text(f"{reason}\n{trace}".rstrip(), REASON_CHARACTERS)
        return Outcome(state=State.FAILED, reason=text, seconds=outcome.seconds)


def _describe_failed_test(reason: str, trace: str) -> RunError:
    request = reason.removeprefix(f"{RequestError.__name__}: ")
    if request == reason:
        return RunError(f"Testing losses failed: {reason}\n{trace}".rstrip())
    # The samples of a run that began with them no longer serve.
    return RunError(
        f"Losses cannot be tested. {request} If the task has changed since, restore it, or start a new run."
    )


def run_jobs(jobs: Iterable[Job], dispatcher: Dispatcher) -> Iterator[CompletedJob]:
    """Run jobs and yield each as it ends, in any order."""
    for job in jobs:
        dispatcher.submit(job)
    while dispatcher.queue.pending:
        yield from dispatcher.wait(None)
