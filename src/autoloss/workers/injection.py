"""Faults on purpose, so that a person sees a run survive them before a long one starts: `--inject worker-crash=0.05,seed=7`.

An injected fault never changes a history: what it hits is done again with the same seed, and it is not counted among the
failures after which a job is given up.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.search.chance import derive_generator
from autoloss.search.jobs import Job, RejectionBatch, Train

FAULTY_ATTEMPTS = 3
"""Only the first so many attempts at a job may be given a fault: a rehearsal ends, whatever its rates."""
STEP_BYTES = 64 << 20
GREED = 1.5
"""A greedy worker takes so many times its limit."""
UNLIMITED_BYTES = 1 << 30
"""What it takes where there is no limit: enough to be seen, not enough to endanger the machine."""
HANG_SECONDS = 5.0
"""Deadline of a job that was made to hang; its own may be an hour."""
FOREVER_SECONDS = 10**6


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with one attempt at a job.

    Args:
        kind: A key of `FAULTS`.
        late: When the work is done and not yet told, in place of before it.
        memory_bytes: What a greedy worker takes.
    """

    kind: str
    late: bool
    memory_bytes: int = UNLIMITED_BYTES


@dataclass(frozen=True, slots=True)
class Faulty:
    """A job on its way to a worker, with what goes wrong there."""

    job: Any
    fault: Fault


@dataclass(frozen=True, slots=True)
class Rehearsing:
    """Does jobs, and what is to go wrong with them."""

    perform: Callable[[Any], Any]

    def __call__(self, payload: Any) -> Any:
        if not isinstance(payload, Faulty):
            return self.perform(payload)
        if payload.fault.late:
            value = self.perform(payload.job)
            FAULTS[payload.fault.kind](payload.fault)
            return value
        FAULTS[payload.fault.kind](payload.fault)
        # Somebody let a stopped process go on: there is a job to do.
        return self.perform(payload.job)


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
    hoard: list[bytearray] = []
    while len(hoard) * STEP_BYTES < fault.memory_bytes:
        # Bytes other than 0, so that the kernel has to find a page for each.
        hoard.append(bytearray(b"x") * STEP_BYTES)
    # A look at memory comes about five times a second.
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
"""By the names that `--inject` takes: SIGKILL, a loop in Python, C that holds the GIL, SIGSTOP, memory, a GPU's error."""
HANGING = ("hang", "hang-c", "freeze")


@dataclass(frozen=True, slots=True)
class Injection:
    """How often what goes wrong.

    Which attempts are hit is a function of the seed, the job and the number of the attempt at it: of trainings it is the
    same ones with any number of workers. How tests are cut into jobs depends on their pace, and so do their faults.

    Args:
        rates: Key of `FAULTS` → share of attempts.
        seed: Of the draws; no draw of the search depends on it.

    Raises:
        RequestError: An unknown fault, a rate outside 0 to 1, or more than 1 in all.
    """

    rates: Mapping[str, float]
    seed: int = 0

    def __post_init__(self) -> None:
        for name, rate in self.rates.items():
            if name not in FAULTS:
                raise unknown("fault to inject", name, [*FAULTS, "seed"])
            if not 0 <= rate <= 1:
                raise RequestError(f"The rate of {name} is {rate}; it is a share of all attempts, from 0 to 1.")
        if sum(self.rates.values()) > 1:
            raise RequestError(f"The rates of faults add up to {sum(self.rates.values()):g}; they cannot pass 1.")

    @classmethod
    def parse(cls, text: str) -> Injection:
        """Read `worker-crash=0.05,hang=0.01,seed=7`.

        Raises:
            RequestError: It reads otherwise.
        """
        rates: dict[str, float] = {}
        seed = 0
        for part in filter(None, map(str.strip, text.split(","))):
            name, _, value = (piece.strip() for piece in part.partition("="))
            if name in rates:
                raise RequestError(f"{name} comes twice in the faults to inject; keep one of them.")
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
        return cls(MappingProxyType(rates), seed)

    def drawn(self, job: Job, attempt: int, memory_bytes: int | None) -> Fault | None:
        """Return what goes wrong with an attempt at a job, or None.

        Args:
            attempt: From 0.
            memory_bytes: The limit of a worker.
        """
        if attempt >= FAULTY_ATTEMPTS:
            return None
        # How many attempts a job tests, and what was known when it was sent, is a matter of timing.
        name = (job.candidate, job.branch, job.first) if isinstance(job, RejectionBatch) else _decisive(job)
        rng = derive_generator(self.seed, "fault", *name, attempt)
        left = rng.random()
        for kind, rate in self.rates.items():
            left -= rate
            if left < 0:
                greedy = UNLIMITED_BYTES if memory_bytes is None else round(GREED * memory_bytes)
                return Fault(kind, kind not in HANGING and rng.random() < 0.5, greedy)
        return None


@dataclass(slots=True)
class Mishaps:
    """What went wrong with attempts at jobs, on purpose and of itself.

    Args:
        injected: By kind.
        repeated: Attempts that an injected fault ended, so that the job was tried again.
        losses: By cause, attempts that the machine ended by itself, and that were tried again.
        given_up: Jobs that failed after all, for reasons of their own.
    """

    injected: Counter[str] = field(default_factory=Counter)
    repeated: int = 0
    losses: Counter[str] = field(default_factory=Counter)
    given_up: int = 0

    def failures(self) -> str:
        """Say what the machine did, in one line."""
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(self.losses.items()))
        return f"The machine ended {self.losses.total()} attempts ({causes}); they were repeated with the same seed."

    def rehearsal(self) -> str:
        """Say what came of the injected faults in one line."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.injected.items()))
        lost = "no job was lost" if not self.given_up else f"{self.given_up} jobs failed for reasons of their own"
        return (
            f"Injected {self.injected.total()} faults ({kinds or 'none was drawn'}): "
            f"{self.repeated} attempts repeated with the same seed, {lost}."
        )


def _decisive(job: Train) -> tuple[int | str, ...]:
    """Return what a draw for a training depends on."""
    training = job.training
    return (
        job.loss,
        training.seed,
        training.split,
        training.schedule,
        str((training.learning_rate, dict(training.scale))),
    )
