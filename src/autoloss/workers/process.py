"""One worker with its reaper and its process group, as their driver sees them."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import IO

from autoloss.workers.gpus import VARIABLE
from autoloss.workers.libraries import path_variables
from autoloss.workers.messages import START, TOKEN_BYTES, Cause, pack_header, split_answers
from autoloss.workers.process_table import has_ended
from autoloss.workers.reaper import NUMBER

TAIL_BYTES = 4096
TAIL_LINES = 20
READ_BYTES = 1 << 18
REAP_SECONDS = 2.0
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


class WorkerProcess:
    """A running worker, a child process of the reaper that this process starts.

    No call but `close` blocks: the caller waits on the selector and then calls `exchange`.

    Args:
        selector: The pipes are registered with it.
        function: The function that jobs run, pickled; shared by all workers, never copied.
        gpu: The only GPU that the worker sees; None for those of this process.
        libraries: Names of libraries that the worker loads before any file of the user's.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        function: bytes,
        gpu: str | None = None,
        libraries: Sequence[str] = (),
    ) -> None:
        self._process = subprocess.Popen(
            # -P: a file in the current directory must not stand in for a module of the standard library.
            [sys.executable, "-P", "-m", "autoloss.workers.reaper", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=_environment(gpu, libraries),
            start_new_session=True,
        )
        self.reaper = self._process.pid
        """The process id of the reaper, the ancestor of all processes of the worker; it leads its own process group."""
        requests, answers, errors = self._process.stdin, self._process.stdout, self._process.stderr
        assert requests is not None
        assert answers is not None
        assert errors is not None
        self._requests, self._answers, self._errors = requests, answers, errors
        self._selector = selector
        self._outgoing: deque[memoryview] = deque()
        self._incoming = bytearray()
        self._tail = bytearray()
        self._killed = False
        self._token = os.urandom(TOKEN_BYTES)
        self._worker: int | None = None
        self.hung_up = False
        self.ready = False
        self.started = time.monotonic()
        for stream in (self._requests, self._answers, self._errors):
            os.set_blocking(stream.fileno(), False)
        selector.register(self._answers, selectors.EVENT_READ)
        selector.register(self._errors, selectors.EVENT_READ)
        self.send(START, function)

    @property
    def has_ended(self) -> bool:
        """True once the worker has ended; its last answers may not have been read."""
        return self.hung_up or (self._worker is not None and has_ended(self._worker))

    def send(self, job: int, body: bytes) -> None:
        """Queue a request and write as much as the pipe takes; `exchange` writes the rest. Earlier output is dropped."""
        self._tail.clear()
        self._outgoing += memoryview(pack_header(self._token, job, body)), memoryview(body)
        self._write()

    def exchange(self) -> list[tuple[int, bytes]]:
        """Write queued requests and read arrived answers, without waiting.

        Returns:
            The complete answers: number of the job and body.

        Raises:
            StrayBytesError: Something other than an answer arrived.
        """
        self._write()
        self._receive()
        self._drain_errors(1)
        return [] if self._worker is None else split_answers(self._incoming, self._token)

    def kill(self) -> None:
        """Have the reaper kill the worker and all its descendants."""
        if not self._killed:
            for number in (signal.SIGTERM, signal.SIGCONT):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(self.reaper, number)
            self._killed = True

    def close(self) -> None:
        """End the worker, reap it and close the pipes."""
        if self._requests.closed:
            return
        self.kill()
        # A process in an uninterruptible system call dies when the kernel lets it; the driver does not wait for that.
        try:
            self._process.wait(REAP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(REAP_SECONDS)
        if self._worker is not None:
            _end_orphans(self._worker)
        self._drain_errors(16)
        for stream in (self._requests, self._answers, self._errors):
            self._unwatch(stream)
            stream.close()
        self._outgoing.clear()

    def describe_exit(self) -> tuple[Cause, str]:
        """Describe the end of a worker that this process did not kill; call `close` first."""
        status = self._process.returncode
        if status is not None and status >= 0:
            return "exited", f"The worker ended itself with exit status {status}."
        number = signal.SIGKILL if status is None else -status
        with contextlib.suppress(ValueError):
            number = signal.Signals(number).name
        return "killed", f"The worker was ended by signal {number}."

    def last_output(self) -> str:
        """Return the last lines that the worker printed since its job began."""
        lines = bytes(self._tail).decode(errors="replace").splitlines()[-TAIL_LINES:]
        return "\nIts last output:\n" + "\n".join(lines) if lines else ""

    def _write(self) -> None:
        while self._outgoing:
            try:
                written = os.write(self._requests.fileno(), self._outgoing[0])
            except BlockingIOError:
                if self._requests not in self._selector.get_map():
                    self._selector.register(self._requests, selectors.EVENT_WRITE)
                return
            except BrokenPipeError:
                self._outgoing.clear()
                break
            self._outgoing[0] = self._outgoing[0][written:]
            if not self._outgoing[0]:
                self._outgoing.popleft()
        self._unwatch(self._requests)

    def _receive(self) -> None:
        while chunk := self._read(self._answers):
            self._incoming += chunk
        if chunk is not None:
            self.hung_up = True
        if self._worker is None and len(self._incoming) >= NUMBER.size:
            (self._worker,) = NUMBER.unpack_from(self._incoming)
            del self._incoming[: NUMBER.size]

    def _read(self, stream: IO[bytes]) -> bytes | None:
        """Return arrived bytes, empty bytes at the end of the stream, or None if nothing has arrived yet."""
        try:
            chunk = os.read(stream.fileno(), READ_BYTES)
        except BlockingIOError:
            return None
        if not chunk:
            self._unwatch(stream)
        return chunk

    def _drain_errors(self, times: int) -> None:
        for _ in range(times):
            chunk = self._read(self._errors)
            if not chunk:
                return
            self._tail += chunk
            del self._tail[:-TAIL_BYTES]

    def _unwatch(self, stream: IO[bytes]) -> None:
        if stream in self._selector.get_map():
            self._selector.unregister(stream)


def _environment(gpu: str | None, libraries: Sequence[str]) -> dict[str, str]:
    # One seed for hashes of str: sets of names are iterated in the same order in every worker.
    own = {**path_variables(libraries), "PYTHONHASHSEED": "0", **dict.fromkeys(THREAD_VARIABLES, "1")}
    return {**os.environ, **own, **({} if gpu is None else {VARIABLE: gpu})}


def _end_orphans(group: int) -> None:
    """Kill the processes left by a worker whose reaper was killed, and reap those that this process inherited."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    end = time.monotonic() + REAP_SECONDS
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-group, os.WNOHANG) == (0, 0):
                time.sleep(0.005)
