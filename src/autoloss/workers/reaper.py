"""The process between a driver and its worker: it holds their pipes, and nothing of the worker outlives it.

`python -m autoloss.workers.reaper DRIVER_PID`

A worker is a child of its reaper, which on Linux also becomes the parent of whatever the worker leaves behind. When the worker
or the driver ends, or the driver asks for it, the reaper kills all of them and ends as the worker did.
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
    """Fork; this process becomes the reaper, and its child the worker, as the leader of its own session."""
    driver = int(sys.argv[1])
    _control(PR_SET_PDEATHSIG, signal.SIGCONT)
    # What loses its parent becomes a child of this process.
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
    """Call prctl, which other systems do not have."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, int(value), 0, 0, 0)


def _keep(driver: int, worker: int) -> NoReturn:
    """Wait until the worker or the driver ends, or the driver says so; end with all that is left, and as the worker did."""
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
        if not has_ended and _ended(worker):
            has_ended = True
            # The driver sees that nothing will come, and says when it has seen it: until then the worker's number is taken.
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


def _ended(worker: int) -> bool:
    """Say whether the worker has ended; it is not reaped, so that no other process gets its number."""
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return False


def _reap_orphans(worker: int) -> None:
    for process in psutil.Process().children():
        if process.pid != worker:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _end_descendants(worker: int) -> None:
    """Kill all that descend from this process, and what they start meanwhile, until nothing is left."""
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        left = [process for process in find_descendants(os.getpid()) if process.pid != worker]
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        _reap_orphans(worker)
        if not left and _ended(worker):
            return
        time.sleep(0.002)


def _end_like(status: int) -> NoReturn:
    """End as the worker did, so that the driver sees it."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(abs(status))


if __name__ == "__main__":
    main()
