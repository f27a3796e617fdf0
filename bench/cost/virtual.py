"""Workers on a clock of their own: jobs take the time they are given, and a search of hours is over in seconds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from autoloss.proposing.records import Train
from autoloss.workers.messages import Finished, JobOutcome
from autoloss.workers.pool import JobFunction, Workers
from autoloss.workers.worker import run_job


class VirtualWorkers(Workers):
    """A discrete-event simulation: `wait` moves the clock to the next job that ends.

    Args:
        perform: What a worker would do, answered at once.
        seconds: (payload, result) → how long it takes by the clock.
    """

    def __init__(self, slots: int, perform: JobFunction, seconds: Callable[[Any, Any], float]) -> None:
        self._slots = slots
        self._perform = perform
        self._seconds = seconds
        self._ends: list[tuple[float, int]] = []
        self._results: dict[int, Any] = {}
        self._began: dict[int, float] = {}
        self.clock = 0.0
        self.training_seconds = 0.0
        self.testing_seconds = 0.0

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def busy(self) -> Mapping[int, float]:
        return {job: self.clock - began for job, began in self._began.items()}

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        found = run_job(self._perform, job, payload)
        seconds = self._seconds(payload, found.value if isinstance(found, Finished) else None)
        self._results[job] = replace(found, seconds=seconds)
        self._began[job] = self.clock
        heapq.heappush(self._ends, (self.clock + seconds, job))
        if isinstance(payload, Train):
            self.training_seconds += seconds
        else:
            self.testing_seconds += seconds

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        while self._ends:
            self.clock, job = heapq.heappop(self._ends)
            if self._began.pop(job, None) is not None:
                return [self._results.pop(job)]
        return []

    def cancel(self, job: int) -> None:
        del self._began[job], self._results[job]

    def close(self) -> None:
        self._ends.clear()
        self._began.clear()
        self._results.clear()
