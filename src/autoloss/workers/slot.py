"""One slot for jobs: the worker in it, the job it has, and what its limits and its end make of that job."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autoloss.workers.messages import START, Cause, Finished, Lost, Outcome, Raised, decode
from autoloss.workers.process import WorkerProcess


@dataclass(slots=True)
class Running:
    """A job in its slot.

    Args:
        started: When the worker was ready for it, or None before that.
    """

    number: int
    deadline_seconds: float
    started: float | None

    @property
    def seconds(self) -> float:
        return 0.0 if self.started is None else time.monotonic() - self.started


class Slot:
    """Runs one job at a time in a worker that it starts for the first one and replaces once it is lost.

    Args:
        start: Starts a worker.
        start_seconds: How long that may take.
        memory_limit_bytes: Of the worker's group.
    """

    def __init__(
        self, start: Callable[[], WorkerProcess], start_seconds: float, memory_limit_bytes: int | None
    ) -> None:
        self._start = start
        self._start_seconds = start_seconds
        self._memory_limit_bytes = memory_limit_bytes
        self.child: WorkerProcess | None = None
        self.job: Running | None = None

    def submit(self, number: int, frame: bytes, deadline_seconds: float) -> None:
        """Give the worker its job."""
        if self.child is None:
            self.child = self._start()
        self.child.forget_output()
        self.child.send(frame)
        self.job = Running(number, deadline_seconds, time.monotonic() if self.child.ready else None)

    def advance(self, memory: Mapping[int, int]) -> Outcome | None:
        """Take what the worker sent and hold it to its limits.

        Args:
            memory: Process group → resident bytes, for all groups, or empty when it was not looked at.

        Returns:
            The outcome of the job, once it has one; the slot is free then.
        """
        child = self.child
        if child is None:
            return None
        # Looked at before the last reading: what a worker answered before its end counts.
        has_ended = child.has_ended
        outcome = self._hear(child) or self._judge(child, memory, has_ended or child.hung_up)
        if outcome is None or self.job is None:
            return None
        self.job = None
        return outcome

    def clear(self) -> None:
        """End the worker and forget its job."""
        if self.child is not None:
            self.child.close()
        self.child = self.job = None

    @property
    def _number(self) -> int:
        return START if self.job is None else self.job.number

    @property
    def _seconds(self) -> float:
        return 0.0 if self.job is None else self.job.seconds

    def _hear(self, child: WorkerProcess) -> Outcome | None:
        for body in child.pump():
            try:
                message = decode(body)
            except Exception as error:
                text = f"The driver cannot read the result; return plain values. {type(error).__name__}: {error}"
                return Raised(self._number, text, traceback.format_exc(), self._seconds)
            match message:
                case Finished(job=number) if number == START:
                    child.ready = True
                    if self.job is not None:
                        self.job.started = time.monotonic()
                case Raised(job=number) if number == START:
                    text = f"A worker could not load what it is to run. {message.message}"
                    self._drop(child)
                    return Raised(self._number, text, message.traceback_text, 0.0, at_start=True)
                case Lost(_, cause, text, _):
                    # The worker says so itself, of memory or of its GPU: what is left of it gets no other job.
                    return self._lose(child, cause, text)
                case _:
                    return message
        return None

    def _judge(self, child: WorkerProcess, memory: Mapping[int, int], has_ended: bool) -> Outcome | None:
        if has_ended:
            return self._bury(child)
        used, limit = memory.get(child.group, 0), self._memory_limit_bytes
        if limit is not None and used > limit:
            return self._lose(child, "memory", f"The worker's processes held {used} bytes; the limit is {limit}.")
        if not child.ready and time.monotonic() - child.started > self._start_seconds:
            return self._lose(child, "exited", f"The worker did not start within {self._start_seconds:g} s.")
        if self.job is not None and self.job.seconds >= self.job.deadline_seconds:
            text = f"The job was still running after {self.job.deadline_seconds:g} s."
            return self._lose(child, "deadline", text)
        return None

    def _bury(self, child: WorkerProcess) -> Outcome:
        """Account for a worker that ended without being told to."""
        child.close()
        cause, text = child.ending()
        if cause == "exited" and not child.ready:
            # It would do so again: an error to show, not an accident to repeat.
            self._drop(child)
            return Raised(self._number, f"A worker could not start. {text}{child.output()}", "", 0.0, at_start=True)
        return self._lose(child, cause, text)

    def _lose(self, child: WorkerProcess, cause: Cause, text: str) -> Outcome:
        number, seconds = self._number, self._seconds
        begun = self.job is not None and self.job.started is not None
        self._drop(child)
        return Lost(number, cause, text + child.output(), seconds, begun)

    def _drop(self, child: WorkerProcess) -> None:
        child.close()
        self.child = None
