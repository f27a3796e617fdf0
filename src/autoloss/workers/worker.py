"""A worker: `python -m autoloss.workers.worker DRIVER_PID THREADS` runs one function on the payloads that its driver sends.

It leads its own process group and ends, with that group, as soon as its driver has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

from autoloss.workers.messages import START, Cause, Finished, JobOutcome, Lost, Raised, decode, encode, read_frame

PR_SET_PDEATHSIG = 1
DEVICE_ERRORS = ("AcceleratorError",)
"""Exception types of torch, by name: a worker may not have imported it."""
DEVICE_TEXTS = ("CUDA error", "HIP error", "device-side assert", "CUBLAS_STATUS_", "CUDNN_STATUS_", "NCCL error")
MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")
OOM_SCORE = 500
"""`oom_score_adj` of a worker: the kernel's OOM killer ends it, and its job is tried again, before it ends the driver."""


def run_job(function: Callable[[Any], Any], job: int, payload: Any) -> JobOutcome:
    """Run one job and return its outcome; only KeyboardInterrupt passes through.

    >>> run_job(len, 3, "abc").value
    3
    """
    start = time.perf_counter()
    try:
        value = function(payload)
    except (Exception, SystemExit) as error:
        cause, seconds = classify_error(error), time.perf_counter() - start
        if cause is not None:
            return Lost(job, cause, "\n".join(describe_error(error)), seconds)
        return Raised(job, *describe_error(error), seconds)
    return Finished(job, value, time.perf_counter() - start)


def classify_error(error: BaseException) -> Cause | None:
    """Return which part of the machine failed, or None when the code did.

    The causes of an exception count too: after an error of a GPU, all that its process does there fails as well.
    """
    seen: set[int] = set()
    rest = [error]
    while rest:
        found = rest.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        names = {kind.__name__ for kind in type(found).__mro__}
        if names.intersection(MEMORY_ERRORS):
            return "memory"
        if names.intersection(DEVICE_ERRORS) or (
            isinstance(found, RuntimeError) and any(text in str(found) for text in DEVICE_TEXTS)
        ):
            return "device"
        rest += [cause for cause in (found.__cause__, found.__context__) if cause is not None]
    return None


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return the message and the traceback of an exception, without the frames of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    told = traceback.TracebackException(type(error), error, trace)
    text = str(told)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__, "".join(told.format())


def main() -> None:
    driver, threads = int(sys.argv[1]), int(sys.argv[2])
    requests, replies = _take_pipes()
    _end_with_driver(driver, requests)
    _raise_oom_score()
    faulthandler.enable()
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(io.BufferedReader(io.FileIO(requests)), io.FileIO(replies, "w"), threads)


def _take_pipes() -> tuple[int, int]:
    """Move the connection to private descriptors, so that user code that prints or reads cannot disturb it."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The last lines must be written before the worker is killed.
        sys.stdout.reconfigure(line_buffering=True)
    return requests, replies


def _end_with_driver(driver: int, requests: int) -> None:
    """Have this process and its whole group killed when its driver ends.

    No thread could do it: a C loop that holds the GIL stops all of them. On Linux the kernel kills this process; a
    forked watcher, which sees the pipe hang up, kills the rest of the group, and on other systems all of it.
    """
    _signal_at_parent_exit(signal.SIGKILL)
    if os.getppid() != driver:
        os._exit(1)
    if os.fork() == 0:
        # The group may have been stopped, the watcher with it.
        _signal_at_parent_exit(signal.SIGCONT)
        os.closerange(1, requests)
        os.closerange(requests + 1, 256)
        hangup = select.poll()
        hangup.register(requests, 0)
        hangup.poll()
        os.killpg(0, signal.SIGKILL)


def _signal_at_parent_exit(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent, or the thread that started it, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _raise_oom_score() -> None:
    """Have the kernel end this process first when memory runs out."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < OOM_SCORE:
            file.seek(0)
            file.write(str(OOM_SCORE))


def _serve(requests: BinaryIO, replies: io.FileIO, threads: int) -> None:
    own = os.getpid()
    loaded = run_job(decode, START, read_frame(requests))
    if not isinstance(loaded, Finished):
        _send(replies, encode(loaded))
        return
    function = loaded.value
    _send(replies, encode(Finished(START, None, loaded.seconds)))
    while True:
        job, payload = decode(read_frame(requests))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(threads)
        outcome = run_job(lambda body: function(decode(body)), job, payload)
        if os.getpid() != own:
            # A process that user code forked came back out of it: the answer is its parent's to give.
            os._exit(0)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _send(replies, _answer(outcome))


def _answer(outcome: JobOutcome) -> bytes:
    try:
        return encode(outcome)
    except Exception as error:
        message, traceback_text = describe_error(error)
        text = f"The result cannot be sent to the driver; return plain values. {message}"
        return encode(Raised(outcome.job, text, traceback_text, outcome.seconds))


def _send(replies: io.FileIO, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[replies.write(rest) :]


if __name__ == "__main__":
    main()
