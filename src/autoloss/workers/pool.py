"""Workers: jobs run side by side and end in any order; one that hangs, dies or grows too large costs one attempt."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Self

import cloudpickle

from autoloss.workers.messages import JobOutcome, encode_function
from autoloss.workers.process import WorkerProcess
from autoloss.workers.process_state import preserve_state
from autoloss.workers.process_table import measure_memory
from autoloss.workers.slot import Slot
from autoloss.workers.worker import run_job

JobFunction = Callable[[Any], Any]
"""Runs one job: payload → value, both of them plain values that can be pickled."""

POLL_SECONDS = 0.2
MEMORY_SHARE = 0.05

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def hold_interrupts() -> Iterator[Callable[[], bool]]:
    """Run the body uninterrupted; signals that arrive meanwhile go to their handlers at the end.

    Blocking the signals does not suffice: another thread would receive them and Python would still raise in this one.
    Outside the main thread, and for signals without a Python handler, nothing is done, since nothing is raised there.

    Yields:
        A function that returns whether a signal arrived, for loops that can end early.
    """
    arrived: list[tuple[int, FrameType | None]] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        known = {number: signal.getsignal(number) for number in _HELD}
        handlers = {int(number): handler for number, handler in known.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append((number, frame)))
        yield lambda: bool(arrived)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in arrived:
            handlers[number](number, frame)


class Workers(ABC):
    """Runs jobs that may end in any order.

    - One thread makes all calls, and lives as long as the jobs do.
    - The caller numbers the jobs, submits one when a slot is free, and cancels only what is busy.
    - `wait` returns the outcome of every submitted job exactly once: `Finished`, `Raised` or `Lost`. Nothing is returned
      for a cancelled job, or after `close`.
    - After a `Lost` job its slot is usable again, and the caller may submit the job once more.
    - Deadlines and limits are enforced inside `wait`, so it is called often.
    - Ctrl-C during a call loses no outcome: the next `wait` returns it.

    >>> with InlineWorkers(lambda number: number**2) as workers:
    ...     workers.submit(0, 3, deadline_seconds=60)
    ...     [(outcome.job, outcome.value) for outcome in workers.wait()]
    [(0, 9)]
    """

    slots: int
    """The number of jobs that run at once."""

    @property
    @abstractmethod
    def busy(self) -> Collection[int]:
        """The numbers of the jobs without an outcome."""

    @property
    def free(self) -> int:
        """The number of jobs that can be submitted now."""
        return self.slots - len(self.busy)

    @abstractmethod
    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        """Start a job in a free slot.

        Args:
            job: Its number; not that of a job that is busy or whose outcome was not returned yet.
            payload: The argument of the function.
            deadline_seconds: Time for which it may run, above 0; the start of a worker does not count.
        """

    @abstractmethod
    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        """Wait for outcomes.

        Returns:
            Outcomes in the order of arrival: at least one if any job was busy, none after a timeout.
        """

    @abstractmethod
    def cancel(self, job: int) -> None:
        """End a busy job at once; its outcome is not returned."""

    @abstractmethod
    def close(self) -> None:
        """End all jobs and processes. A second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()


class InlineWorkers(Workers):
    """One slot in this process, for debugging: `wait` runs the job to its end and ignores deadline and timeout.

    An interrupted job stays busy; the next `wait` runs it from its beginning.
    """

    slots = 1

    def __init__(self, function: JobFunction) -> None:
        self._function = function
        self._jobs: dict[int, Any] = {}

    @property
    def busy(self) -> Collection[int]:
        return tuple(self._jobs)

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        self._jobs[job] = payload

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        with preserve_state():
            outcomes = [run_job(self._function, job, payload) for job, payload in self._jobs.items()]
        self._jobs.clear()
        return outcomes

    def cancel(self, job: int) -> None:
        del self._jobs[job]

    def close(self) -> None:
        self._jobs.clear()


class PolledWorkers(Workers):
    """Workers outside this process: Ctrl-C interrupts no call halfway, and outcomes wait until they are returned.

    Attributes:
        _outcomes: Outcomes that were not returned yet; `_poll` adds to it.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._outcomes: dict[int, JobOutcome] = {}
        self._closed = False

    @abstractmethod
    def _begin(self, job: int, body: bytes, deadline_seconds: float) -> None:
        """Start a job in a free slot, or queue it until one is ready; `body` is the payload, pickled."""

    @abstractmethod
    def _poll(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` for messages and handle them; not called after `close`."""

    @abstractmethod
    def _end(self, job: int) -> None:
        """End a busy job without an outcome."""

    @abstractmethod
    def _close(self) -> None:
        """End all jobs and processes; called once."""

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        body = cloudpickle.dumps(payload)
        with hold_interrupts():
            self._begin(job, body, deadline_seconds)

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        end = float("inf") if timeout_seconds is None else time.monotonic() + timeout_seconds
        with hold_interrupts() as is_interrupted:
            while not self._closed:
                waits = self.busy and not self._outcomes
                self._poll(max(0.0, min(POLL_SECONDS, end - time.monotonic())) if waits else 0.0)
                if self._outcomes or not self.busy or is_interrupted() or time.monotonic() >= end:
                    break
            # An interrupt is raised as this returns, and the list would be lost: outcomes stay for the next call.
            found = [] if is_interrupted() else list(self._outcomes.values())
            for outcome in found:
                del self._outcomes[outcome.job]
            return found

    def cancel(self, job: int) -> None:
        with hold_interrupts():
            self._end(job)

    def close(self) -> None:
        with hold_interrupts():
            if not self._closed:
                self._closed = True
                self._close()
                self._outcomes.clear()


class ProcessWorkers(PolledWorkers):
    """Local processes, one per slot. Each has a process group, which gets SIGKILL when its job has to end.

    A worker starts with the first job of its slot and runs the next ones too; after a `Lost` job it is replaced. On Linux
    all descendants of a worker end with it; elsewhere a process that leaves the group (setsid) may survive. Needs a POSIX
    system.

    Args:
        function: Sent once to each worker, by cloudpickle in memory: lambdas and definitions of the user's script work.
            May be pickled already, by `encode_function`.
        memory_limit_bytes: Resident memory allowed for a worker's process group and all descendants, measured about five
            times a second.
        gpus: For each slot the GPU that its worker sees; if empty, workers see those of this process.
        libraries: Names of libraries that workers load before any file of the user's, where this process has loaded them.

    Raises:
        Exception: Whatever pickling the function raises.
    """

    def __init__(
        self,
        function: JobFunction | bytes,
        slots: int,
        *,
        memory_limit_bytes: int | None = None,
        gpus: Sequence[str] = (),
        libraries: Sequence[str] = (),
    ) -> None:
        super().__init__(slots)
        body = encode_function(function)
        self._selector = selectors.DefaultSelector()
        crowd = slots / (os.cpu_count() or 1)
        starts = (partial(WorkerProcess, self._selector, body, gpu, libraries) for gpu in gpus or [None] * slots)
        self._slots = [Slot(start, memory_limit_bytes, crowd) for start in starts]
        self._memory_limit_bytes = memory_limit_bytes
        self._memory_due = 0.0

    @property
    def busy(self) -> Collection[int]:
        return tuple(slot.job.number for slot in self._slots if slot.job is not None)

    def _begin(self, job: int, body: bytes, deadline_seconds: float) -> None:
        self._poll(0.0)
        idle = [slot for slot in self._slots if slot.job is None]
        slot = next((slot for slot in idle if slot.worker is not None), idle[0])
        slot.submit(job, body, deadline_seconds)

    def _end(self, job: int) -> None:
        next(slot for slot in self._slots if slot.job is not None and slot.job.number == job).clear()

    def _close(self) -> None:
        for slot in self._slots:
            if slot.worker is not None:
                slot.worker.kill()
        for slot in self._slots:
            slot.clear()
        self._selector.close()

    def _poll(self, timeout_seconds: float) -> None:
        if all(slot.worker is None for slot in self._slots):
            return
        left = [slot.job.deadline_seconds - slot.job.seconds for slot in self._slots if slot.job is not None]
        self._selector.select(max(0.0, min([timeout_seconds, *left])))
        memory = self._measure_memory()
        for slot in self._slots:
            outcome = slot.update(memory)
            if outcome is not None:
                self._outcomes[outcome.job] = outcome

    def _measure_memory(self) -> Mapping[int, int]:
        start = time.monotonic()
        if self._memory_limit_bytes is None or start < self._memory_due:
            return {}
        workers = [slot.worker.reaper for slot in self._slots if slot.worker is not None]
        memory = measure_memory(workers, self._memory_limit_bytes)
        # With many thousand processes on a server one measurement takes long: it gets a fixed share of the time.
        self._memory_due = start + max(POLL_SECONDS, (time.monotonic() - start) / MEMORY_SHARE)
        return memory
