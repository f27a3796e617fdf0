"""A worker: `python -m autoloss.workers.worker DRIVER_PID THREADS` runs one function on the payloads that its driver sends.

Its parent is a reaper (`reaper.py`), which ends it, and all that it leaves, as soon as its driver has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle

from autoloss.workers.messages import REPLY_BYTES, START, Cause, Finished, JobOutcome, Lost, Raised, decode
from autoloss.workers.reaper import Channel, start_worker

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
    channel = start_worker(driver)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # The last lines must be written before the worker is killed.
        sys.stdout.reconfigure(line_buffering=True)
    _raise_oom_score()
    faulthandler.enable()
    with contextlib.suppress(EOFError, BrokenPipeError):
        _serve(channel, threads)


def _raise_oom_score() -> None:
    """Have the kernel end this process first when memory runs out."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < OOM_SCORE:
            file.seek(0)
            file.write(str(OOM_SCORE))


def _serve(channel: Channel, threads: int) -> None:
    own = os.getpid()
    loaded = run_job(decode, START, channel.receive())
    if not isinstance(loaded, Finished):
        channel.send(START, _pickle(loaded))
        return
    function = loaded.value
    channel.send(START, _pickle(Finished(START, None, loaded.seconds)))
    while True:
        job, payload = decode(channel.receive())
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(threads)
        outcome = run_job(lambda body: function(decode(body)), job, payload)
        if os.getpid() != own:
            # A process that user code forked came back out of it: the answer is its parent's to give.
            os._exit(0)
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        channel.send(job, _pickle(outcome))


def _pickle(outcome: JobOutcome) -> bytes:
    try:
        body = cloudpickle.dumps(outcome)
    except Exception as error:
        message, traceback_text = describe_error(error)
        text = f"The result cannot be sent to the driver; return plain values. {message}"
        return cloudpickle.dumps(Raised(outcome.job, text, traceback_text, outcome.seconds))
    if len(body) > REPLY_BYTES:
        text = f"The result has {len(body)} bytes, and a driver takes at most {REPLY_BYTES}; return plain values."
        return cloudpickle.dumps(Raised(outcome.job, text, "", outcome.seconds))
    return body


if __name__ == "__main__":
    main()
