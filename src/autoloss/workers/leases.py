"""Workers on machines that may vanish: each heartbeat renews the lease of a job, and a job whose lease runs out is lost.

On the cluster, a supervisor runs one worker process and enforces its limits there. It answers one call at a time, after
`HEARTBEAT_SECONDS` at the latest; each answer is a heartbeat. When a supervisor is silent for too long, its job is `Lost`, it is
ended, and another one is started; an answer of the old one is ignored.
"""

from __future__ import annotations

import platform
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from typing import Any

import cloudpickle

from autoloss.workers.messages import START, JobOutcome, Lost, Raised, decode
from autoloss.workers.pool import PolledWorkers, ProcessWorkers

HEARTBEAT_SECONDS = 0.5
LEASE_SECONDS = 10.0
"""Silence after which a job is lost. Ray itself notices a killed node after 13 s, a frozen one after a minute."""
LISTENING_SECONDS = 1.0
"""Most silence that one poll can add: a driver that is busy or stopped does not hear its supervisors."""
RESTART_SECONDS = 1.0
"""Pause between two attempts to start a supervisor in the same slot."""
START_SECONDS = 120.0
"""Time without any supervisor after which the run ends."""
Request = tuple[int, bytes, float]
"""A job for a supervisor: its number, its payload, pickled, and its deadline in seconds."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A supervisor's answer.

    Args:
        build: The releases that its node computes with; see `build`.
        outcome: The outcome of its job, pickled; empty while there is none.
    """

    build: tuple[str, ...]
    outcome: bytes = b""


class Supervisor:
    """One worker process on a node of the cluster, where its deadline and its memory limit are enforced.

    Args:
        function: The function that jobs run, pickled by `encode_function`.
    """

    def __init__(self, function: bytes, memory_limit_bytes: int | None) -> None:
        self._workers = ProcessWorkers(function, 1, memory_limit_bytes=memory_limit_bytes)

    def beat(self, request: Request | None) -> Heartbeat:
        """Start a job, if one is requested; return when a job has an outcome, after `HEARTBEAT_SECONDS` at the latest."""
        if request is not None:
            job, payload, deadline_seconds = request
            self._workers.submit(job, decode(payload), deadline_seconds=deadline_seconds)
        outcomes = self._workers.wait(HEARTBEAT_SECONDS)
        return Heartbeat(build(), cloudpickle.dumps(outcomes[0]) if outcomes else b"")


class Cluster(ABC):
    """Starts supervisors on its nodes, and carries requests to them and heartbeats back. No method blocks but `wait`."""

    @abstractmethod
    def start(self) -> Any:
        """Start a supervisor, which may be ready much later; return its handle."""

    @abstractmethod
    def call(self, supervisor: Any, request: Request | None) -> Any:
        """Call `Supervisor.beat` and return a handle of the answer; calls are answered in their order."""

    @abstractmethod
    def wait(self, calls: Sequence[Any], timeout_seconds: float) -> Sequence[tuple[Any, Heartbeat | Lost | Raised]]:
        """Return calls with their answers, none after a timeout; `Lost`: the supervisor is gone, `Raised`: it fails."""

    @abstractmethod
    def end(self, supervisor: Any) -> None:
        """Kill a supervisor and its worker, on whichever node they run."""

    @abstractmethod
    def close(self) -> None:
        """End only what this object started."""

    @abstractmethod
    def describe(self) -> str:
        """Return one sentence on the resources of the cluster and those that a supervisor needs."""


@dataclass(slots=True)
class _RemoteSlot:
    """A supervisor, its unanswered call, its job, and the time from which another one may replace it."""

    supervisor: Any = None
    call: Any = None
    has_answered: bool = False
    job: int | None = None
    job_started: float = 0.0
    silent_seconds: float = 0.0
    restart: float = 0.0


class LeasedWorkers(PolledWorkers):
    """Runs jobs on the supervisors of a cluster, one per slot; a job waits until one is ready.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, cluster: Cluster, slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(slots)
        self._cluster = cluster
        self._clock = clock
        self._slots = [_RemoteSlot() for _ in range(slots)]
        self._jobs: dict[int, Request] = {}
        self._polled = self._served = clock()

    @property
    def busy(self) -> Collection[int]:
        return tuple(self._jobs)

    def _begin(self, job: int, body: bytes, deadline_seconds: float) -> None:
        self._jobs[job] = (job, body, deadline_seconds)
        self._assign()

    def _end(self, job: int) -> None:
        del self._jobs[job]
        for slot in self._slots:
            if slot.job == job:
                self._vacate(slot)

    def _close(self) -> None:
        for slot in self._slots:
            self._vacate(slot)
        self._jobs.clear()
        self._cluster.close()

    def _poll(self, timeout_seconds: float) -> None:
        for slot in self._slots:
            if slot.supervisor is None and self._clock() >= slot.restart:
                slot.supervisor = self._cluster.start()
                slot.call = self._cluster.call(slot.supervisor, None)
        self._assign()
        calls = {slot.call: slot for slot in self._slots if slot.call is not None}
        for call, answer in self._cluster.wait(list(calls), timeout_seconds):
            if calls[call].call is call:
                self._handle(calls[call], answer)
        self._end_leases()
        self._check_progress()
        self._assign()

    def _assign(self) -> None:
        """Give waiting jobs to ready supervisors, in the order of their submission."""
        given = {slot.job for slot in self._slots}
        waiting = iter([job for job in self._jobs if job not in given])
        for slot in self._slots:
            if slot.has_answered and slot.job is None and slot.call is None:
                slot.job = next(waiting, None)
                if slot.job is None:
                    return
                slot.job_started, slot.silent_seconds = self._clock(), 0.0
                slot.call = self._cluster.call(slot.supervisor, self._jobs[slot.job])

    def _handle(self, slot: _RemoteSlot, answer: Heartbeat | Lost | Raised) -> None:
        match answer:
            case Heartbeat(build=theirs) if theirs != build():
                self._refuse(
                    f"A node of the cluster has {', '.join(theirs)}; the driver has {', '.join(build())}. Install the same "
                    "releases on all nodes."
                )
            case Heartbeat():
                self._renew(slot, answer)
            case Lost():
                self._lose(slot, answer)
            case Raised() if slot.has_answered:
                self._lose(slot, Lost(START, "exited", answer.message, 0.0))
            case Raised():
                self._refuse(answer.message)

    def _renew(self, slot: _RemoteSlot, heartbeat: Heartbeat) -> None:
        slot.has_answered, slot.silent_seconds, slot.call = True, 0.0, None
        self._served = self._clock()
        if slot.job is None:
            return
        if not heartbeat.outcome:
            slot.call = self._cluster.call(slot.supervisor, None)
            return
        try:
            outcome: JobOutcome = decode(heartbeat.outcome)
        except Exception as error:
            text = f"The driver cannot read the result; return plain values. {type(error).__name__}: {error}"
            outcome = Raised(slot.job, text, "", self._clock() - slot.job_started)
        if outcome.job != slot.job:
            self._lose(slot, Lost(START, "exited", f"The worker answered for job {outcome.job}.", 0.0))
            return
        slot.job = None
        del self._jobs[outcome.job]
        self._outcomes[outcome.job] = outcome

    def _lose(self, slot: _RemoteSlot, lost: Lost) -> None:
        if slot.job is not None:
            del self._jobs[slot.job]
            self._outcomes[slot.job] = replace(lost, job=slot.job, seconds=self._clock() - slot.job_started)
        self._vacate(slot)

    def _vacate(self, slot: _RemoteSlot) -> None:
        """End the supervisor of a slot; another one starts in a moment."""
        if slot.supervisor is not None:
            self._cluster.end(slot.supervisor)
        slot.supervisor = slot.call = slot.job = None
        slot.has_answered = False
        slot.restart = self._clock() + RESTART_SECONDS

    def _end_leases(self) -> None:
        now = self._clock()
        listened = min(now - self._polled, LISTENING_SECONDS)
        self._polled = now
        for slot in self._slots:
            # A supervisor that has not answered yet may wait for room on the cluster; it has no job.
            if slot.call is None or not slot.has_answered:
                continue
            slot.silent_seconds += listened
            if slot.silent_seconds > LEASE_SECONDS:
                detail = f"The worker was silent for {slot.silent_seconds:.1f} s."
                self._lose(slot, Lost(START, "node", detail, 0.0))

    def _check_progress(self) -> None:
        now = self._clock()
        if any(slot.has_answered for slot in self._slots) or not self._jobs:
            self._served = now
        elif now - self._served > START_SECONDS:
            self._refuse(f"The cluster had no room for a worker for {START_SECONDS:g} s. {self._cluster.describe()}")
            self._served = now

    def _refuse(self, detail: str) -> None:
        """End all jobs with an error that every other attempt would repeat."""
        for slot in self._slots:
            self._vacate(slot)
        for job in self._jobs:
            self._outcomes[job] = Raised(job, detail, "", 0.0, at_start=True)
        self._jobs.clear()


@cache
def build() -> tuple[str, ...]:
    """Return the releases that decide the last digits of a result: only machines with the same ones share a history."""
    packages = [f"{name} {metadata.version(name)}" for name in ("autoloss", "torch", "numba")]
    return (f"Python {platform.python_version()}", *packages)
