"""A worker's way to its driver, through pipes that its reaper holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from autoloss.workers.messages import pack_reply, read_frame

PRIVATE = 100
"""Least number of a descriptor that user code does not meet by chance."""


class Channel:
    """A worker's way to its driver.

    On Linux its pipes are opened for one message at a time: while a job runs, no descriptor of its process leads to the driver.

    Args:
        reaper: The process whose standard input and output are the pipes.
    """

    def __init__(self, reaper: int) -> None:
        self._requests: int | str = f"/proc/{reaper}/fd/0"
        self._replies: int | str = f"/proc/{reaper}/fd/1"
        try:
            os.close(os.open(self._requests, os.O_RDONLY))
            os.close(os.open(self._replies, os.O_WRONLY))
        except OSError:
            self._requests, self._replies = (fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, PRIVATE) for pipe in (0, 1))
        # User code may print and read.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self._token = self.receive()

    def receive(self) -> bytes:
        """Wait for a frame.

        Raises:
            EOFError: The driver is gone.
        """
        with _opened(self._requests, os.O_RDONLY) as pipe:
            return read_frame(pipe)

    def send(self, job: int, body: bytes) -> None:
        """Send the answer of a job."""
        with _opened(self._replies, os.O_WRONLY) as pipe:
            rest = memoryview(pack_reply(self._token, job, body))
            while rest:
                rest = rest[os.write(pipe, rest) :]


@contextlib.contextmanager
def _opened(pipe: int | str, mode: int) -> Iterator[int]:
    if isinstance(pipe, int):
        yield pipe
        return
    opened = os.open(pipe, mode)
    try:
        yield opened
    finally:
        os.close(opened)
