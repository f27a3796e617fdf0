"""A worker: `python -m autoloss.workers.worker DRIVER_PID THREADS` runs one callable on the payloads that its driver sends.

It leads a process group of its own and ends, with that group, as soon as its driver is gone.
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

from autoloss.workers.messages import START, Cause, Finished, Lost, Outcome, Raised, decode, encode, receive

PR_SET_PDEATHSIG = 1
DEVICE_ERRORS = ("AcceleratorError",)
"""Types of torch, by name: a worker need not have imported it."""
DEVICE_TEXTS = ("CUDA error", "HIP error", "device-side assert", "CUBLAS_STATUS_", "CUDNN_STATUS_", "NCCL error")
MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")
FIRST_TO_GO = 500
"""Where a worker stands with the kernel's OOM killer: it ends a worker, whose job is tried again, before its driver."""


def attempt(perform: Callable[[Any], Any], job: int, payload: Any) -> Outcome:
    """Run one job to its outcome; only KeyboardInterrupt passes through."""
    start = time.perf_counter()
    try:
        value = perform(payload)
    except (Exception, SystemExit) as error:
        cause, seconds = fault_of_machine(error), time.perf_counter() - start
        if cause is not None:
            return Lost(job, cause, "\n".join(describe(error)), seconds)
        return Raised(job, *describe(error), seconds)
    return Finished(job, value, time.perf_counter() - start)


def fault_of_machine(error: BaseException) -> Cause | None:
    """Say which part of the machine an exception blames; None blames the code.

    Whatever an exception was made of counts: after an error of a GPU all that its process does there fails as well.
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


def describe(error: BaseException) -> tuple[str, str]:
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
    _go_first()
    faulthandler.enable()
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(io.BufferedReader(io.FileIO(requests)), io.FileIO(replies, "w"), threads)


def _take_pipes() -> tuple[int, int]:
    """Move the connection to private descriptors: user code that prints or reads cannot disturb it."""
    requests, replies = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The last lines must have left when the worker is killed.
        sys.stdout.reconfigure(line_buffering=True)
    return requests, replies


def _end_with_driver(driver: int, requests: int) -> None:
    """Have this process killed when its driver is gone, and its whole group as well.

    No thread could do it: a C loop that holds the GIL stops all of them. The kernel kills this process, on Linux; a
    forked watcher, which sees the pipe hang up, kills what else is in the group, and everything on other systems.
    """
    _at_parents_end(signal.SIGKILL)
    if os.getppid() != driver:
        os._exit(1)
    if os.fork() == 0:
        # The group may have been stopped, the watcher with it.
        _at_parents_end(signal.SIGCONT)
        os.closerange(1, requests)
        os.closerange(requests + 1, 256)
        hangup = select.poll()
        hangup.register(requests, 0)
        hangup.poll()
        os.killpg(0, signal.SIGKILL)


def _at_parents_end(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent, or the thread that started it, ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _go_first() -> None:
    """Have the kernel end this process, when memory runs out, rather than the driver or what else runs here."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < FIRST_TO_GO:
            file.seek(0)
            file.write(str(FIRST_TO_GO))


def _serve(requests: BinaryIO, replies: io.FileIO, threads: int) -> None:
    own = os.getpid()
    loaded = attempt(decode, START, receive(requests))
    if not isinstance(loaded, Finished):
        _send(replies, encode(loaded))
        return
    perform = loaded.value
    _send(replies, encode(Finished(START, None, loaded.seconds)))
    while True:
        job, payload = decode(receive(requests))
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(threads)
        outcome = attempt(lambda body: perform(decode(body)), job, payload)
        if os.getpid() != own:
            # A process that user code forked came back out of it: the answer is its parent's to give.
            os._exit(0)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _send(replies, _answer(outcome))


def _answer(outcome: Outcome) -> bytes:
    try:
        return encode(outcome)
    except Exception as error:
        message, traceback_text = describe(error)
        text = f"The result cannot be sent to the driver; return plain values. {message}"
        return encode(Raised(outcome.job, text, traceback_text, outcome.seconds))


def _send(replies: io.FileIO, frame: bytes) -> None:
    rest = memoryview(frame)
    while rest:
        rest = rest[replies.write(rest) :]


if __name__ == "__main__":
    main()
