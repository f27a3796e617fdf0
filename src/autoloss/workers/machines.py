"""Where jobs run: in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autoloss.errors import RequestError
from autoloss.workers.injection import Injection, Rehearsing
from autoloss.workers.job_runner import JobRunner
from autoloss.workers.pool import InlineWorkers, ProcessWorkers, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """How many workers and where; a history depends on none of it.

    Args:
        workers: Processes that train and test; 0 does it all in this one.
        ray: None for this machine alone; `auto` starts a cluster on it; anything else is the address of one.
        ray_insecure: Also use a cluster that anybody who reaches it can run code on.
        inject: Faults on purpose, as `Injection.parse` reads them.

    Raises:
        RequestError: These do not go together.
    """

    workers: int = 2
    ray: str | None = None
    ray_insecure: bool = False
    inject: str | None = None

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise RequestError(
                f"workers is {self.workers}; it needs to be 0 (this process) or the number of processes."
            )
        for name, value in {"--ray": self.ray, "--inject": self.inject}.items():
            if value is not None and self.workers == 0:
                raise RequestError(f"{name} needs worker processes, and workers is 0. Ask for --workers 1 or more.")
        if self.ray_insecure and self.ray is None:
            raise RequestError("--ray-insecure says how to use a Ray cluster; name one with --ray ADDRESS.")
        # Looked at now: what is wrong is told before anything starts.
        _ = self.injection
        if self.ray is not None:
            from autoloss.workers.ray_access import refuse_unusable

            refuse_unusable(self.ray, insecure=self.ray_insecure)

    @property
    def injection(self) -> Injection | None:
        return None if self.inject is None else Injection.parse(self.inject)


def start_workers(workshop: JobRunner, machines: Machines) -> Workers:
    """Return workers on a bench.

    Raises:
        RequestError: Ray is not installed, or its cluster cannot be used.
    """
    perform: Callable[[Any], Any] = workshop.perform if machines.inject is None else Rehearsing(workshop.perform)
    limit = workshop.configuration.limits.memory_bytes
    if machines.ray is not None:
        from autoloss.workers.ray_workers import ray_workers

        execution = workshop.task.execution
        on_gpu = execution is not None and execution.device.startswith("cuda")
        return ray_workers(
            perform,
            machines.workers,
            machines.ray,
            on_gpu=on_gpu,
            memory_limit_bytes=limit,
        )
    if machines.workers == 0:
        return InlineWorkers(perform)
    return ProcessWorkers(perform, machines.workers, memory_limit_bytes=limit)
