"""Faults that a worker can be given on purpose: it crashes, hangs, runs out of memory or fails like a GPU."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from autoloss.workers.pool import JobFunction

STEP_BYTES = 64 << 20
UNLIMITED_BYTES = 1 << 30
"""What it takes where there is no limit: enough to be measured, not enough to endanger the machine."""
FOREVER_SECONDS = 10**6


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one attempt at a job.

    Args:
        kind: A key of `FAULTS`.
        late: Whether it happens after the work is done and before the result is sent, or before the work.
        memory_bytes: What a worker with the fault `oom` takes.
    """

    kind: str
    late: bool
    memory_bytes: int = UNLIMITED_BYTES


@dataclass(frozen=True, slots=True)
class FaultyPayload:
    """A payload with the fault that its worker shall have."""

    payload: Any
    fault: Fault


@dataclass(frozen=True, slots=True)
class FaultyFunction:
    """Runs jobs as `function` does, with the faults that `FaultyWorkers` adds to their payloads."""

    function: JobFunction

    def __call__(self, payload: Any) -> Any:
        if not isinstance(payload, FaultyPayload):
            return self.function(payload)
        fault = payload.fault
        if not fault.late:
            FAULTS[fault.kind](fault)
        # A process that was stopped may be continued: there is a job to do.
        value = self.function(payload.payload)
        if fault.late:
            FAULTS[fault.kind](fault)
        return value


def _crash(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(fault: Fault) -> None:
    end = time.monotonic() + FOREVER_SECONDS
    while time.monotonic() < end:
        pass


def _hang_in_c(fault: Fault) -> None:
    # PyDLL keeps the GIL: no thread and no signal handler of the worker runs until it returns.
    ctypes.PyDLL(None).sleep(FOREVER_SECONDS)


def _freeze(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _grow(fault: Fault) -> None:
    taken: list[bytearray] = []
    while len(taken) * STEP_BYTES < fault.memory_bytes:
        # Bytes other than 0, so that the kernel has to find a page for each.
        taken.append(bytearray(b"x") * STEP_BYTES)
    # Memory is measured about five times a second.
    time.sleep(1.0)
    raise MemoryError(f"injected, at {fault.memory_bytes} bytes")


def _fail(fault: Fault) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure (injected)")


FAULTS: Mapping[str, Callable[[Fault], None]] = MappingProxyType(
    {
        "worker-crash": _crash,
        "hang": _hang,
        "hang-c": _hang_in_c,
        "freeze": _freeze,
        "oom": _grow,
        "error": _fail,
    }
)
"""By name: SIGKILL, a loop in Python, C code that holds the GIL, SIGSTOP, memory beyond the limit, an error of a GPU."""
HANGING = ("hang", "hang-c", "freeze")
