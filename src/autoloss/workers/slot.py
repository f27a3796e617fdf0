"""One slot for jobs: its worker process, its job, and the outcome of that job at a limit or at the end of the worker."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from autoloss.workers.messages import START, Cause, Finished, JobOutcome, Lost, Raised, StrayBytesError, decode
from autoloss.workers.process import WorkerProcess

START_SECONDS = 120.0
"""Limit for the start of a worker on a core of its own, which includes importing all that the function needs."""
PAUSE_SECONDS = 5.0
"""Time between two looks at a worker that counts at most: if it is longer, the machine or the driver was suspended."""


@dataclass(slots=True)
class RunningJob:
    """A job in its slot.

    Args:
        started: Time at which the worker was ready for it, or None before that.
    """

    number: int
    deadline_seconds: float
    started: float | None

    @property
    def seconds(self) -> float:
        """The time for which the job has run."""
        return 0.0 if self.started is None else time.monotonic() - self.started


class Slot:
    """Runs one job at a time in a worker, which starts with the first job and is replaced after a `Lost` one.

    Args:
        start: Starts a worker.
        memory_limit_bytes: Resident memory allowed for the worker's process group.
        crowd: Workers per core that start at once, and slow each other.
    """

    def __init__(self, start: Callable[[], WorkerProcess], memory_limit_bytes: int | None, crowd: float = 1.0) -> None:
        self._start = start
        self._start_seconds = START_SECONDS * max(1.0, crowd)
        self._memory_limit_bytes = memory_limit_bytes
        self.worker: WorkerProcess | None = None
        self.job: RunningJob | None = None
        self._looked = time.monotonic()

    def submit(self, number: int, body: bytes, deadline_seconds: float) -> None:
        """Send a job to the worker, which is started if there is none."""
        self._skip_pause()
        if self.worker is not None and self.worker.has_ended:
            self.clear()
        if self.worker is None:
            self.worker = self._start()
        self.worker.send(number, body)
        self.job = RunningJob(number, deadline_seconds, time.monotonic() if self.worker.ready else None)

    def update(self, memory: Mapping[int, int]) -> JobOutcome | None:
        """Read the answers of the worker and enforce its limits.

        Args:
            memory: Reaper of a worker → resident bytes; empty if memory was not measured.

        Returns:
            The outcome of the job, once it has one; the slot is then free.
        """
        worker = self.worker
        if worker is None:
            return None
        self._skip_pause()
        try:
            answers = worker.exchange()
        except StrayBytesError as error:
            outcome = self._refuse(worker, str(error))
        else:
            outcome = self._read(worker, answers) or self._enforce_limits(worker, memory)
        if outcome is None or self.job is None:
            return None
        self.job = None
        return outcome

    def clear(self) -> None:
        """End the worker and drop its job."""
        self._discard()
        self.job = None

    def _skip_pause(self) -> None:
        """Count no time towards a limit in which nobody looked: worker and driver may have been suspended."""
        now = time.monotonic()
        pause = now - self._looked - PAUSE_SECONDS
        self._looked = now
        if pause <= 0:
            return
        if self.worker is not None:
            self.worker.started += pause
        if self.job is not None and self.job.started is not None:
            self.job.started += pause

    def _read(self, worker: WorkerProcess, answers: Sequence[tuple[int, bytes]]) -> JobOutcome | None:
        for job, body in answers:
            if job != (START if self.job is None or not worker.ready else self.job.number):
                return self._refuse(worker, f"an answer came for job {job}")
            try:
                message, is_last = decode(body)
            except Exception as error:
                text = f"The driver cannot read the result; return plain values. {type(error).__name__}: {error}"
                return self._fail(text, traceback.format_exc())
            match message:
                case Finished(job=number) if number == START:
                    worker.ready = True
                    if self.job is not None:
                        self.job.started = time.monotonic()
                case Raised(job=number) if number == START:
                    text = f"A worker could not load the function of its jobs. {message.message}"
                    return self._fail(text, message.traceback_text, at_start=True)
                case Lost():
                    # The worker itself reports an error of its memory or its GPU; it gets no other job.
                    return self._lose(worker, message.cause, message.detail)
                case _:
                    if is_last:
                        # A setting that the job changed cannot be restored.
                        self._discard()
                    return message
        return None

    def _enforce_limits(self, worker: WorkerProcess, memory: Mapping[int, int]) -> JobOutcome | None:
        if worker.hung_up:
            worker.close()
            cause, text = worker.describe_exit()
            if cause == "exited" and not worker.ready:
                # Another worker would end in the same way: an error to show, not an accident to repeat.
                return self._fail(f"A worker could not start. {text}{worker.last_output()}", "", at_start=True)
            return self._lose(worker, cause, text)
        used, limit = memory.get(worker.reaper, 0), self._memory_limit_bytes
        if limit is not None and used > limit:
            return self._lose(worker, "memory", f"The worker's processes held {used} bytes; the limit is {limit}.")
        if not worker.ready and time.monotonic() - worker.started > self._start_seconds:
            return self._lose(worker, "exited", f"The worker did not start within {self._start_seconds:g} s.")
        if self.job is not None and self.job.seconds >= self.job.deadline_seconds:
            text = f"The job was still running after {self.job.deadline_seconds:g} s."
            return self._lose(worker, "deadline", text)
        return None

    def _refuse(self, worker: WorkerProcess, found: str) -> JobOutcome:
        """End a worker whose pipe another process wrote to: nothing further on it can be trusted."""
        return self._lose(worker, "exited", f"The worker's answers cannot be read: {found}. It was ended.")

    def _lose(self, worker: WorkerProcess, cause: Cause, text: str) -> Lost:
        job, seconds = self._find_job()
        self._discard()
        return Lost(job.number, cause, text + worker.last_output(), seconds, job.started is not None)

    def _fail(self, text: str, trace: str, *, at_start: bool = False) -> Raised:
        job, seconds = self._find_job()
        self._discard()
        return Raised(job.number, text, trace, seconds, at_start)

    def _find_job(self) -> tuple[RunningJob, float]:
        job = self.job or RunningJob(START, 0.0, None)
        return job, job.seconds

    def _discard(self) -> None:
        if self.worker is not None:
            self.worker.close()
        self.worker = None
