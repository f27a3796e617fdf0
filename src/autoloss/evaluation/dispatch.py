"""The machines on which the jobs of a search or a comparison run, and their outcomes as results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autoloss.errors import RequestError, RunError, keep_text
from autoloss.evaluation.evaluator import Evaluator
from autoloss.options import Natural, check_arguments
from autoloss.proposing.records import (
    REASON_CHARACTERS,
    Attempt,
    CompletedJob,
    Job,
    Outcome,
    RejectionBatch,
    State,
    Train,
)
from autoloss.settings import LimitSettings
from autoloss.tasks.task import Task
from autoloss.workers.gpus import deal_gpus
from autoloss.workers.injection import FaultyFunction, FaultyWorkers, Injection
from autoloss.workers.messages import Finished, JobOutcome, Lost, Raised
from autoloss.workers.pool import InlineWorkers, ProcessWorkers, Workers
from autoloss.workers.queue import JobQueue

LIBRARIES = ("numpy", "torch", "numba")
"""Loaded by every worker at its start: a file beside a task may have the name of something that they look for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The number and location of a run's workers, on which its history does not depend.

    >>> Machines(workers=0).ray is None
    True

    Args:
        workers: Processes that train and test; 0 does both in this process.
        ray: None for this machine alone; `auto` starts a Ray cluster on it; otherwise the address of one.
        ray_insecure: Also use a cluster that runs code for everybody who reaches it.
        inject: Faults to inject, as `Injection.parse` reads them.

    Raises:
        RequestError: These values do not fit together.
    """

    workers: Natural = 2
    ray: str | None = None
    ray_insecure: bool = False
    inject: str | None = None

    def __post_init__(self) -> None:
        check_arguments(Machines, {name: getattr(self, name) for name in ("workers", "ray", "inject")})
        for name, value in {"ray": self.ray, "inject": self.inject}.items():
            if value is not None and self.workers == 0:
                raise RequestError(f"workers is 0; {name} needs at least one worker process.")
        if self.ray_insecure and self.ray is None:
            raise RequestError("ray_insecure allows an open Ray cluster, and ray names none. Set ray to its address.")
        # Checked here, before anything starts.
        _ = self.injection
        if self.ray is not None:
            from autoloss.workers.ray_cluster import check_address

            check_address(self.ray, insecure=self.ray_insecure)

    @property
    def injection(self) -> Injection | None:
        """The faults to inject, or None."""
        return None if self.inject is None else Injection.parse(self.inject)


class Dispatcher:
    """Runs jobs on workers, trainings first, each until it has a result; at its end it closes them.

    A training that raises, passes its deadline, or is ended three times by the machine is failed: it has no score, and the
    search goes on.

    Attributes:
        queue: Repeats what the machine ended.
        failed: The number of failed trainings.
    """

    def __init__(self, workers: Workers, limits: LimitSettings) -> None:
        self.queue = JobQueue(workers)
        self.failed = 0
        self._workers = workers
        self._limits = limits
        self._error: RunError | None = None

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        training = isinstance(job, Train)
        deadline = self._limits.training_seconds if training else self._limits.testing_seconds
        self.queue.submit(job, deadline_seconds=deadline, urgent=training)

    def wait(self, timeout_seconds: float | None) -> list[CompletedJob]:
        """Return the finished jobs: at least one, unless the time is over or no job is queued or running.

        Raises:
            RunError: No worker can start, or a rejection test failed. What ended beside it is returned before.
        """
        completed: list[CompletedJob] = []
        for job, outcome in [] if self._error else self.queue.wait(timeout_seconds):
            try:
                completed.append((job, self._result(job, outcome), outcome.seconds))
            except RunError as error:
                self._error = error
        if self._error is not None and not completed:
            raise self._error
        return completed

    def describe_losses(self) -> Iterator[str]:
        """Describe the attempts that the machine ended, and the faults that were injected."""
        if self.queue.losses:
            yield self.queue.describe_losses()
        if isinstance(self._workers, FaultyWorkers):
            yield self._workers.describe_faults(self.failed)

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
            case Lost(cause="deadline"):
                limit = "training" if isinstance(job, Train) else "testing"
                reason, trace = outcome.detail.replace("deadline:", f"deadline of limits.{limit}_seconds:", 1), ""
            case Lost():
                reason, trace = outcome.detail, ""
        if isinstance(job, RejectionBatch):
            request = reason.removeprefix(f"{RequestError.__name__}: ")
            if request == reason:
                raise RunError(f"Testing losses failed: {reason}\n{trace}".rstrip())
            # The samples of a run that began with them no longer serve.
            raise RunError(
                f"Losses cannot be tested. {request} If the task has changed, restore it, or start a new run."
            )
        self.failed += 1
        text = keep_text(f"{reason}\n{trace}".rstrip(), REASON_CHARACTERS)
        return Outcome(state=State.FAILED, reason=text, seconds=outcome.seconds)


def run_jobs(jobs: Iterable[Job], dispatcher: Dispatcher) -> Iterator[CompletedJob]:
    """Run jobs and yield each as it ends, in any order."""
    for job in jobs:
        dispatcher.submit(job)
    while dispatcher.queue.pending:
        yield from dispatcher.wait(None)


def start_workers(runner: Evaluator, machines: Machines, resume: str = "autoloss resume") -> Dispatcher:
    """Start workers, and return what runs an evaluator's jobs on them.

    Args:
        resume: The command that resumes a run whose Ray cluster is lost.

    Raises:
        RequestError: The Ray cluster cannot be used.
    """
    limit, injection = runner.configuration.limits.memory_bytes, machines.injection
    gpus = gpus_of_workers(runner.task, machines)
    function = runner.perform if injection is None else FaultyFunction(runner.perform)
    if machines.ray is not None:
        from autoloss.workers.ray_cluster import start_ray_workers

        execution = runner.task.execution
        on_gpu = execution is not None and execution.device.startswith("cuda")
        workers = start_ray_workers(
            function, machines.workers, machines.ray, on_gpu=on_gpu, memory_limit_bytes=limit, resume=resume
        )
    elif machines.workers == 0:
        workers = InlineWorkers(function)
    else:
        workers = ProcessWorkers(function, machines.workers, memory_limit_bytes=limit, gpus=gpus, libraries=LIBRARIES)
    used = workers if injection is None else FaultyWorkers(workers, injection, job_key, limit)
    return Dispatcher(used, runner.configuration.limits)


def job_key(job: Job) -> tuple[int | str, ...]:
    """Return the identity of a job in every run of the same configuration."""
    if isinstance(job, RejectionBatch):
        # How many attempts a batch holds, and which keys were known when it was sent, is a matter of timing.
        return job.candidate, job.branch, job.first
    return job.loss, str(job.training)


def gpus_of_workers(task: Task, machines: Machines) -> tuple[str, ...]:
    """Return the GPU of each local worker that trains a task; nothing where they are not dealt out here."""
    if machines.ray is not None or task.execution is None:
        return ()
    return deal_gpus(task.execution.device, machines.workers)
