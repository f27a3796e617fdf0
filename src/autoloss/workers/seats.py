"""A seat on a cluster: what it is told, what it answers, and the attendant that runs one supervised process there."""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

from autoloss.workers.messages import Cause, decode, pickled
from autoloss.workers.pool import ProcessWorkers

BEAT_SECONDS = 0.5
"""A seat answers after so long at the latest."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a seat is told: to do a job, to stop, or nothing new.

    Args:
        job: What it begins with, in place of whatever it does.
        body: The pickled payload.
        stops: Whether it drops what it does.
    """

    job: int | None = None
    body: bytes = b""
    deadline_seconds: float = 0.0
    stops: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """A seat's answer.

    Args:
        frame: The outcome of its job, pickled; empty while there is none.
        seconds: How long the job has run.
        build: What the seat computes with; see `build`.
    """

    frame: bytes
    seconds: float
    build: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gone:
    """A seat that is no more, through no fault of its job."""

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """A seat that cannot work, as another one in its place could not either."""

    detail: str


News = Report | Gone | Unfit


class Cluster(ABC):
    """Where seats are: opens them, carries commands there and news back."""

    @abstractmethod
    def open(self) -> Any:
        """Ask for a seat; it may take its time to be there."""

    @abstractmethod
    def call(self, seat: Any, command: Command) -> Any:
        """Send a command after those sent before; returns what its answer is known by."""

    @abstractmethod
    def wait(self, calls: Sequence[Any], timeout_seconds: float) -> Sequence[tuple[Any, News]]:
        """Wait for news of some calls; none if the time was up first."""

    @abstractmethod
    def end(self, seat: Any) -> None:
        """Have a seat killed, wherever it is, without waiting for it."""

    @abstractmethod
    def close(self) -> None:
        """End what was started here and nothing else."""

    @abstractmethod
    def describe(self) -> str:
        """Say what the cluster has and what a seat asks for, in a sentence."""


class Attendant:
    """What sits at a seat: one supervised process, which it holds to its limits on the spot.

    Args:
        frame: `sealed` of what the process performs on unpickled payloads.
    """

    def __init__(self, frame: bytes, memory_limit_bytes: int | None) -> None:
        self._workers = ProcessWorkers(frame, 1, memory_limit_bytes=memory_limit_bytes)

    def turn(self, command: Command) -> Report:
        """Carry out a command and answer as soon as there is an outcome, or after a moment."""
        workers = self._workers
        if command.stops or command.job is not None:
            for job in list(workers.busy):
                workers.cancel(job)
        if command.job is not None:
            workers.submit(command.job, command.body, deadline_seconds=command.deadline_seconds)
        outcomes = workers.wait(BEAT_SECONDS)
        return Report(pickled(outcomes[0]) if outcomes else b"", next(iter(workers.busy.values()), 0.0), build())

    def close(self) -> None:
        """End the process."""
        self._workers.close()


@dataclass(frozen=True, slots=True)
class Opened:
    """Performs a job whose payload arrives as it was pickled by the driver."""

    perform: Callable[[Any], Any]

    def __call__(self, body: bytes) -> Any:
        return self.perform(decode(body))


@cache
def build() -> tuple[str, ...]:
    """Return what decides the last digits of a figure, and whether two machines can share a history."""
    packages = [f"{name} {metadata.version(name)}" for name in ("autoloss", "torch", "numba")]
    return (f"Python {platform.python_version()}", *packages)
