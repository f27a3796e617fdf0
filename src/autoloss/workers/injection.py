"""Injected faults: workers that crash, hang or run out of memory at chosen attempts, so that a run can be rehearsed.

`worker-crash=0.05,seed=7` kills the worker in one attempt out of twenty. An injected fault never changes a history: the queue
repeats the attempt with the same payload and so with the same seed, and does not count it among the failures of the machine.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.workers.messages import JobOutcome, Lost
from autoloss.workers.pool import JobFunction, Workers

FAULTY_ATTEMPTS = 3
"""Attempts at a job that may be given a fault, the first ones; a run thus ends at any rates."""
OVERUSE = 1.5
"""Memory that the fault `oom` takes, in multiples of the worker's limit."""
HANG_SECONDS = 5.0
"""Deadline of an attempt with a fault that hangs; the job's own may be an hour."""
UNLIMITED_BYTES = 1 << 30
"""Memory that the fault `oom` takes if there is no limit: enough to be measured, too little to endanger the machine."""
FOREVER_SECONDS = 10**6


@dataclass(frozen=True, slots=True)
class Fault:
    """The fault of one attempt at a job.

    Args:
        kind: A key of `FAULTS`.
        late: Whether it happens after the work and before the result is sent, instead of before the work.
        memory_bytes: Memory that the fault `oom` takes.
    """

    kind: str
    late: bool
    memory_bytes: int = UNLIMITED_BYTES


@dataclass(frozen=True, slots=True)
class FaultyFunction:
    """Runs jobs as `function` does, with the faults that `FaultyWorkers` puts beside their payloads."""

    function: JobFunction

    def __call__(self, given: tuple[Any, Fault | None]) -> Any:
        payload, fault = given
        if fault is not None and not fault.late:
            FAULTS[fault.kind](fault)
        # A stopped process may be continued: the job is still to be done.
        value = self.function(payload)
        if fault is not None and fault.late:
            FAULTS[fault.kind](fault)
        return value


def _hang(fault: Fault) -> None:
    while True:
        pass


def _grow(fault: Fault) -> None:
    # Bytes other than 0, so that the kernel has to find a page for each. Memory is measured about five times a second.
    taken = bytearray(b"x") * fault.memory_bytes
    time.sleep(1.0)
    raise MemoryError(f"injected, at {len(taken)} bytes")


def _fail(fault: Fault) -> None:
    raise RuntimeError("CUDA error: unspecified launch failure (injected)")


FAULTS: Mapping[str, Callable[[Fault], None]] = {
    "worker-crash": lambda fault: os.kill(os.getpid(), signal.SIGKILL),
    "hang": _hang,
    # PyDLL keeps the GIL: no thread and no signal handler of the worker runs until it returns.
    "hang-c": lambda fault: ctypes.PyDLL(None).sleep(FOREVER_SECONDS),
    "freeze": lambda fault: os.kill(os.getpid(), signal.SIGSTOP),
    "oom": _grow,
    "error": _fail,
}
"""By name: SIGKILL, a loop in Python, C code that holds the GIL, SIGSTOP, memory beyond the limit, an error of a GPU."""
HANGING = ("hang", "hang-c", "freeze")


@dataclass(frozen=True, slots=True)
class Injection:
    """Faults to inject, with their rates.

    The fault of an attempt is a function of the seed, the job and the number of the attempt. Trainings therefore get the same
    faults with any number of workers; the division of tests into jobs depends on timing, and so do their faults.

    Args:
        rates: Key of `FAULTS` → share of attempts, 0 to 1.
        seed: Seed of the draws; no draw of the search depends on it.
    """

    rates: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        for name, rate in self.rates.items():
            if name not in FAULTS:
                raise unknown("fault to inject", name, [*FAULTS, "seed"])
            if not 0 <= rate <= 1:
                raise RequestError(f"The rate of {name} is {rate}; expected a share of all attempts, from 0 to 1.")
        if sum(self.rates.values()) > 1:
            raise RequestError(f"The rates of faults add up to {sum(self.rates.values()):g}; the most is 1.")

    @classmethod
    def parse(cls, text: str) -> Injection:
        """Read the text form of an injection.

        >>> Injection.parse("worker-crash=0.05,hang=0.01,seed=7").seed
        7

        Raises:
            RequestError: The text has another form.
        """
        rates: dict[str, float] = {}
        seed = 0
        for part in filter(None, map(str.strip, text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name in rates:
                raise RequestError(f"{name} is given twice in the faults to inject; keep one of them.")
            try:
                if name == "seed":
                    seed = int(value)
                else:
                    rates[name] = float(value)
            except ValueError:
                expected = "a whole number" if name == "seed" else "a share such as 0.05"
                raise RequestError(
                    f"Faults to inject are written worker-crash=0.05,hang=0.01,seed=7; {name} takes {expected}, found {part!r}."
                ) from None
        if not rates:
            raise RequestError(f"Name a fault to inject, such as worker-crash=0.05. Known: {', '.join(FAULTS)}.")
        return cls(rates, seed)

    def draw_fault(self, key: tuple[int | str, ...], attempt: int, memory_bytes: int | None) -> Fault | None:
        """Return the fault of an attempt at a job, or None.

        Args:
            key: Identity of the job in every run of the same configuration.
            attempt: From 0.
            memory_bytes: The limit of a worker.
        """
        if attempt >= FAULTY_ATTEMPTS:
            return None
        rng = Random(repr((self.seed, *key, attempt)))
        left = rng.random()
        for kind, rate in self.rates.items():
            left -= rate
            if left < 0:
                taken = UNLIMITED_BYTES if memory_bytes is None else round(OVERUSE * memory_bytes)
                return Fault(kind, kind not in HANGING and rng.random() < 0.5, taken)
        return None


class FaultyWorkers(Workers):
    """Runs jobs on other workers and injects faults; an attempt ended by a fault is `Lost` with the cause `injected`.

    A job that is submitted again after `Lost` keeps its number: it is the next attempt at the same job.

    >>> from autoloss.workers.pool import InlineWorkers
    >>> injection = Injection({"error": 1.0})
    >>> with FaultyWorkers(InlineWorkers(FaultyFunction(str.upper)), injection, lambda text: (text,)) as workers:
    ...     workers.submit(0, "a", deadline_seconds=60)
    ...     workers.wait()[0].cause
    'injected'

    Args:
        workers: Workers that run a `FaultyFunction`; `close` closes them.
        key: Payload → the identity of its job in every run of the same configuration.
        memory_limit_bytes: The limit of one worker.

    Attributes:
        injected: Kind → faults so far.
        repeated: Attempts that a fault ended.
    """

    def __init__(
        self,
        workers: Workers,
        injection: Injection,
        key: Callable[[Any], tuple[int | str, ...]],
        memory_limit_bytes: int | None = None,
    ) -> None:
        self.slots = workers.slots
        self._workers = workers
        self._injection = injection
        self._key = key
        self._memory_limit_bytes = memory_limit_bytes
        self._attempts: Counter[int] = Counter()
        self._faults: dict[int, Fault | None] = {}
        self.injected: Counter[str] = Counter()
        self.repeated = 0

    @property
    def busy(self) -> Collection[int]:
        return self._workers.busy

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        fault = self._injection.draw_fault(self._key(payload), self._attempts[job], self._memory_limit_bytes)
        self._attempts[job] += 1
        self._faults[job] = fault
        if fault is not None:
            self.injected[fault.kind] += 1
            deadline_seconds = min(deadline_seconds, HANG_SECONDS) if fault.kind in HANGING else deadline_seconds
        self._workers.submit(job, (payload, fault), deadline_seconds=deadline_seconds)

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        return [self._mark(outcome) for outcome in self._workers.wait(timeout_seconds)]

    def cancel(self, job: int) -> None:
        self._workers.cancel(job)

    def close(self) -> None:
        self._workers.close()

    def describe_faults(self, failed: int) -> str:
        """Return one line on the injected faults and their consequences.

        Args:
            failed: Jobs that ended without a result.
        """
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.injected.items()))
        lost = "no job was lost" if not failed else f"{failed} jobs failed for other reasons"
        return (
            f"Injected {self.injected.total()} faults ({kinds or 'none was drawn'}): "
            f"{self.repeated} attempts repeated with the same seed, {lost}."
        )

    def _mark(self, outcome: JobOutcome) -> JobOutcome:
        if self._faults.pop(outcome.job) is None or not isinstance(outcome, Lost):
            return outcome
        self.repeated += 1
        return replace(outcome, cause="injected")
