"""The process between a driver and its worker: it holds their pipes, and no process of the worker outlives it.

`python -m autoloss.workers.reaper DRIVER_PID`

A worker is a child process of its reaper, which on Linux also becomes the parent of processes that the worker leaves behind. When
the worker or the driver ends, or the driver asks for it, the reaper kills all of them and ends with the worker's exit status.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import struct
import sys
import time
from typing import NoReturn

import psutil

from autoloss.workers.process_table import find_descendants

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NUMBER = struct.Struct(">Q")
"""The first bytes that a driver reads: the process id of the worker."""
END_SECONDS = 1.5
"""Time that the kernel has to end killed processes; the driver waits a little longer."""


def main() -> None:
    """Fork: this process becomes the reaper, and its child process the worker, as the leader of its own session."""
    driver = int(sys.argv[1])
    _control(PR_SET_PDEATHSIG, signal.SIGCONT)
    # Orphaned descendants become child processes of this one.
    _control(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != driver:
        os._exit(1)
    reaper = os.getpid()
    worker = os.fork()
    if worker:
        _keep(driver, worker)
    os.setsid()
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != reaper:
        os._exit(1)
    os.write(1, NUMBER.pack(os.getpid()))
    # Imported here: the reaper stays small.
    from autoloss.workers.worker import serve

    serve(reaper)


def _control(option: int, value: int) -> None:
    """Call prctl on Linux; other systems do not have it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def _keep(driver: int, worker: int) -> NoReturn:
    """Wait until the worker or the driver ends, or the driver sends SIGTERM; then kill all descendants and end like the worker."""
    told: list[int] = []
    woken, waking = os.pipe()
    for pipe in (woken, waking):
        os.set_blocking(pipe, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    for number in (signal.SIGCHLD, signal.SIGCONT, signal.SIGINT):
        signal.signal(number, lambda number, frame: None)
    events = select.poll()
    events.register(0, 0)
    events.register(woken, select.POLLIN)
    hung_up = has_ended = False
    while not (hung_up or told or os.getppid() != driver):
        if not has_ended and _has_exited(worker):
            has_ended = True
            # The driver sees the end of the stream and replies; until then the worker's process id must stay taken.
            os.close(1)
            _end_descendants(worker)
        _reap_orphans(worker)
        hung_up = 0 in dict(events.poll())
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
    _end_descendants(worker)
    with contextlib.suppress(ChildProcessError):
        _end_like(os.waitstatus_to_exitcode(os.waitpid(worker, os.WNOHANG)[1]))
    os._exit(1)


def _has_exited(worker: int) -> bool:
    """Return True if the worker has ended, without reaping it, so that no other process gets its process id."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _reap_orphans(worker: int) -> None:
    for process in psutil.Process().children():
        if process.pid != worker:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _end_descendants(worker: int) -> None:
    """Kill all descendants of this process, also those started meanwhile, until none is left."""
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        left = [process for process in find_descendants(os.getpid()) if process.pid != worker]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _reap_orphans(worker)
        if not left and _has_exited(worker):
            return
        time.sleep(0.002)


def _end_like(status: int) -> NoReturn:
    """End with the worker's exit status or signal, so that the driver sees it."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


if __name__ == "__main__":
    main()
