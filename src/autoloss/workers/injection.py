"""Injected faults: workers that crash, hang or run out of memory at chosen attempts, so that a run can be rehearsed.

`worker-crash=0.05,seed=7` kills the worker in one attempt out of twenty. An injected fault never changes a history: the attempt
is repeated with the same job and so with the same seed, and whoever submitted the job is told nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.proposing.chance import derive_generator
from autoloss.proposing.jobs import Job, RejectionBatch
from autoloss.workers.faults import FAULTS, HANGING, UNLIMITED_BYTES, Fault, FaultyPayload
from autoloss.workers.interruption import hold_interrupts
from autoloss.workers.messages import JobOutcome, Lost
from autoloss.workers.pool import Workers, check_submission, wait_for_outcomes

FAULTY_ATTEMPTS = 3
"""Only the first so many attempts at a job may be given a fault, so a run ends whatever the rates."""
OVERUSE = 1.5
"""A worker with the fault `oom` takes so many times its limit."""
HANG_SECONDS = 5.0
"""Deadline of a job that was made to hang; its own may be an hour."""


@dataclass(frozen=True, slots=True)
class Injection:
    """Which faults to inject, and how often.

    Which attempts are hit is a function of the seed, the job and the number of the attempt at it. Trainings are therefore hit
    alike with any number of workers; how tests are divided into jobs depends on timing, and so do their faults.

    Args:
        rates: Key of `FAULTS` → share of attempts, 0 to 1.
        seed: Of the draws; no draw of the search depends on it.

    Raises:
        RequestError: An unknown fault, a rate outside 0 to 1, or rates that add up to more than 1.
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

    def draw_fault(self, key: tuple[int | str, ...], attempt: int, memory_bytes: int | None) -> Fault | None:
        """Return what goes wrong with an attempt at a job, or None.

        Args:
            key: What identifies the job; see `job_key`.
            attempt: From 0.
            memory_bytes: The limit of a worker.
        """
        if attempt >= FAULTY_ATTEMPTS:
            return None
        rng = derive_generator(self.seed, "fault", *key, attempt)
        left = rng.random()
        for kind, rate in self.rates.items():
            left -= rate
            if left < 0:
                taken = UNLIMITED_BYTES if memory_bytes is None else round(OVERUSE * memory_bytes)
                return Fault(kind, kind not in HANGING and rng.random() < 0.5, taken)
        return None


def job_key(job: Job) -> tuple[int | str, ...]:
    """Return what identifies a job in every run of the same configuration."""
    if isinstance(job, RejectionBatch):
        # How many attempts a batch holds, and which keys were known when it was sent, is a matter of timing.
        return job.candidate, job.branch, job.first
    training = job.training
    factors = str((training.fidelity, training.learning_rate, dict(training.scale)))
    return job.loss, training.seed, training.split, training.schedule, factors


class FaultyWorkers(Workers):
    """Runs jobs on other workers and injects faults; an attempt that a fault ended is repeated here and not returned.

    A job that is submitted again after `Lost` keeps its number: it is the next attempt at the same job.

    >>> from autoloss.workers.faults import FaultyFunction
    >>> from autoloss.workers.pool import InlineWorkers
    >>> injection = Injection({"error": 1.0})
    >>> with FaultyWorkers(InlineWorkers(FaultyFunction(str.upper)), injection, key=lambda text: (text,)) as workers:
    ...     workers.submit(0, "a", deadline_seconds=60)
    ...     workers.wait()[0].value, workers.injected
    ('A', Counter({'error': 3}))

    Args:
        workers: They run a `FaultyFunction`; `close` closes them.
        memory_limit_bytes: The limit of one of them.
        key: Payload → what identifies the job.

    Attributes:
        injected: Kind → faults so far.
        repeated: Attempts that a fault ended.
    """

    def __init__(
        self,
        workers: Workers,
        injection: Injection,
        memory_limit_bytes: int | None = None,
        key: Callable[[Any], tuple[int | str, ...]] = job_key,
    ) -> None:
        self._workers = workers
        self._injection = injection
        self._memory_limit_bytes = memory_limit_bytes
        self._key = key
        self._jobs: dict[int, tuple[Any, float]] = {}
        self._attempts: Counter[int] = Counter()
        self._faulty: set[int] = set()
        self._outcomes: dict[int, JobOutcome] = {}
        self.injected: Counter[str] = Counter()
        self.repeated = 0

    @property
    def slots(self) -> int:
        return self._workers.slots

    @property
    def busy(self) -> Mapping[int, float]:
        # A job that a fault ended keeps its slot until it is repeated.
        seconds = self._workers.busy
        return {job: seconds.get(job, 0.0) for job in self._jobs}

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        with hold_interrupts():
            check_submission(self, job, deadline_seconds, closed=False, waiting=self._outcomes)
            self._submit(job, payload, deadline_seconds)

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        return wait_for_outcomes(self, self._outcomes, self._poll, timeout_seconds)

    def cancel(self, job: int) -> None:
        with hold_interrupts():
            if self._outcomes.pop(job, None) is None:
                self._workers.cancel(job)
                self._faulty.discard(job)
                del self._jobs[job], self._attempts[job]

    def close(self) -> None:
        self._workers.close()
        self._jobs.clear()
        self._outcomes.clear()

    def describe_faults(self, failed: int) -> str:
        """Return one line on the injected faults and what came of them.

        Args:
            failed: Jobs that ended without a result.
        """
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.injected.items()))
        lost = "no job was lost" if not failed else f"{failed} jobs failed for reasons of their own"
        return (
            f"Injected {self.injected.total()} faults ({kinds or 'none was drawn'}): "
            f"{self.repeated} attempts repeated with the same seed, {lost}."
        )

    def _submit(self, job: int, payload: Any, deadline_seconds: float) -> None:
        fault = self._injection.draw_fault(self._key(payload), self._attempts[job], self._memory_limit_bytes)
        if fault is None:
            self._workers.submit(job, payload, deadline_seconds=deadline_seconds)
        else:
            limit = min(deadline_seconds, HANG_SECONDS) if fault.kind in HANGING else deadline_seconds
            self._workers.submit(job, FaultyPayload(payload, fault), deadline_seconds=limit)
            self._faulty.add(job)
            self.injected[fault.kind] += 1
        self._attempts[job] += 1
        self._jobs[job] = payload, deadline_seconds

    def _poll(self, timeout_seconds: float) -> None:
        for outcome in self._workers.wait(timeout_seconds):
            job, was_faulty = outcome.job, outcome.job in self._faulty
            self._faulty.discard(job)
            if was_faulty and isinstance(outcome, Lost):
                self.repeated += 1
                self._submit(job, *self._jobs[job])
                continue
            del self._jobs[job]
            if not isinstance(outcome, Lost):
                del self._attempts[job]
            self._outcomes[job] = outcome
