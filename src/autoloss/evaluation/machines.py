"""The machines on which jobs run: this process, processes of this machine, or a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.proposing.jobs import Job, RejectionBatch
from autoloss.tasks.task import Task
from autoloss.workers.gpus import deal_gpus
from autoloss.workers.injection import FaultyFunction, FaultyWorkers, Injection
from autoloss.workers.pool import InlineWorkers, ProcessWorkers, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """The number and the place of a run's workers; its history does not depend on them.

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

    workers: int = 2
    ray: str | None = None
    ray_insecure: bool = False
    inject: str | None = None

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise RequestError(f"workers is {self.workers}; expected 0 (this process) or a number of processes.")
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


LIBRARIES = ("numpy", "torch", "numba")
"""Loaded by every worker at its start: a file beside a task may have the name of something that they look for."""


def start_workers(runner: Evaluator, machines: Machines, resume: str = "autoloss resume") -> Workers:
    """Start workers that run jobs.

    Args:
        resume: The command that resumes a run whose Ray cluster is lost.

    Raises:
        RequestError: The Ray cluster cannot be used.
    """
    limit, injection = runner.configuration.limits.memory_bytes, machines.injection
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
        gpus = gpus_of_workers(runner.task, machines)
        workers = ProcessWorkers(function, machines.workers, memory_limit_bytes=limit, gpus=gpus, libraries=LIBRARIES)
    return workers if injection is None else FaultyWorkers(workers, injection, job_key, limit)


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
