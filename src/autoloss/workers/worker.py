"""A worker: runs one function on the payloads that its driver sends.

Its parent is a reaper (`reaper.py`), which ends it, with all its descendants, as soon as its driver has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import io
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cloudpickle

from autoloss.errors import keep_text
from autoloss.workers.libraries import load_libraries
from autoloss.workers.messages import (
    ANSWER_BYTES,
    START,
    Cause,
    Finished,
    JobOutcome,
    Lost,
    Raised,
    decode,
    pack_header,
    read_request,
)
from autoloss.workers.process_state import read_state, restore_state

DEVICE_ERRORS = ("AcceleratorError",)
"""Exception types of torch, by name: a worker may not have imported it."""
DEVICE_TEXTS = ("CUDA error", "HIP error", "device-side assert", "CUBLAS_STATUS_", "CUDNN_STATUS_", "NCCL error")
MEMORY_ERRORS = ("MemoryError", "OutOfMemoryError")
MESSAGE_CHARACTERS, TRACEBACK_CHARACTERS = 1000, 6000
PRIVATE = 100
"""Least number of a file descriptor that user code does not use by chance."""
OOM_SCORE = 500
"""`oom_score_adj` of a worker: the kernel's OOM killer ends it, and its job is repeated, before it ends the driver."""


class Channel:
    """A worker's connection to its driver, through pipes that its reaper holds.

    On Linux its pipes are opened for one message at a time: while a job runs, no descriptor of its process leads to the driver.

    Args:
        reaper: Id of the process whose standard input and output are the pipes.
    """

    def __init__(self, reaper: int) -> None:
        self._requests, self._answers = (f"/proc/{reaper}/fd/{pipe}" for pipe in (0, 1))
        if not os.access(self._requests, os.R_OK):
            own = (fcntl.fcntl(pipe, fcntl.F_DUPFD_CLOEXEC, PRIVATE) for pipe in (0, 1))
            self._requests, self._answers = (f"/dev/fd/{pipe}" for pipe in own)
        self._token = b""
        # User code may print and read.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)

    def receive(self) -> tuple[int, bytes]:
        """Wait for a job and its payload.

        Raises:
            EOFError: The driver is gone.
        """
        with open(self._requests, "rb", buffering=0) as pipe:
            self._token, job, body = read_request(pipe)
        return job, body

    def send(self, job: int, body: bytes) -> None:
        """Send the answer of a job."""
        with open(self._answers, "wb") as pipe:
            pipe.write(pack_header(self._token, job, body))
            pipe.write(body)


def run_job(
    function: Callable[[Any], Any],
    job: int,
    payload: Any,
    passing: type[BaseException] | tuple[type[BaseException], ...] = KeyboardInterrupt,
) -> JobOutcome:
    """Run one job and return its outcome, also if it raises.

    Args:
        passing: Exceptions that are not caught; in the driver's process, Ctrl-C.

    >>> run_job(len, 3, "abc").value
    3
    """
    start = time.perf_counter()
    try:
        value = function(payload)
    except passing:
        raise
    except BaseException as error:
        seconds = time.perf_counter() - start
        try:
            cause, texts = classify_error(error), describe_error(error)
        except passing:
            raise
        except BaseException:
            # The type, the causes or the text of the exception are code of the job too, and may raise.
            cause, texts = None, ("An exception that cannot be described.", "")
        if cause is not None:
            return Lost(job, cause, "\n".join(texts), seconds)
        return Raised(job, *texts, seconds)
    return Finished(job, value, time.perf_counter() - start)


def classify_error(error: BaseException) -> Cause | None:
    """Return the part of the machine that failed, or None if the job's code did.

    The causes of an exception count too: after an error of a GPU, every call of its process on that GPU fails as well.
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
        is_of_device = isinstance(found, RuntimeError) and any(text in str(found) for text in DEVICE_TEXTS)
        if is_of_device or names.intersection(DEVICE_ERRORS):
            return "device"
        rest += [cause for cause in (found.__cause__, found.__context__) if cause is not None]
        if isinstance(found, BaseExceptionGroup):
            rest += found.exceptions
    return None


def describe_error(error: BaseException) -> tuple[str, str]:
    """Return the message and the traceback of an exception, without the frames of this file, both of limited length."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    kind, text = type(error).__name__, str(error)
    told = "".join(traceback.TracebackException(type(error), error, trace).format())
    return keep_text(f"{kind}: {text}" if text else kind, MESSAGE_CHARACTERS), keep_text(told, TRACEBACK_CHARACTERS)


def serve(reaper: int) -> None:
    """Load the function and run jobs until the driver is gone."""
    channel = Channel(reaper)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # So that the last lines are written before the worker is killed.
        sys.stdout.reconfigure(line_buffering=True)
    # An interrupt from outside is an accident of the machine; KeyboardInterrupt then comes from the job's own code.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # The kernel ends this process first when memory runs out.
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < OOM_SCORE:
            file.seek(0)
            file.write(str(OOM_SCORE))
    faulthandler.enable()
    load_libraries()
    with contextlib.suppress(EOFError, BrokenPipeError):
        _run_jobs(channel)


def _run_jobs(channel: Channel) -> None:
    own = os.getpid()
    loaded = run_job(decode, *channel.receive(), passing=())
    channel.send(START, _pickle(replace(loaded, value=None) if isinstance(loaded, Finished) else loaded))
    if not isinstance(loaded, Finished):
        return
    state: dict[str, Any] = {}
    while True:
        job, payload = channel.receive()
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(1)
        # Settings made while the function was loaded are kept; those of a module are read once it is loaded.
        state = {**read_state(), **state}
        with warnings.catch_warnings():
            outcome = run_job(lambda body: loaded.value(decode(body)), job, payload, passing=())
        if os.getpid() != own:
            # User code forked this process and did not end it: only its parent may answer.
            os._exit(0)
        faulthandler.cancel_dump_traceback_later()
        is_last = bool(restore_state(state))
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        channel.send(job, _pickle(outcome, is_last=is_last))


def _pickle(outcome: JobOutcome, *, is_last: bool = False) -> bytes:
    """Pickle an outcome; `is_last` tells the driver that the worker can run no other job."""
    pickled = run_job(cloudpickle.dumps, outcome.job, (outcome, is_last), passing=())
    match pickled:
        case Finished(value=body) if len(body) <= ANSWER_BYTES:
            return body
        case Finished(value=body):
            text = f"The result has {len(body)} bytes, and a driver takes at most {ANSWER_BYTES}; return plain values."
            pickled = Raised(outcome.job, text, "", outcome.seconds)
        case Raised(message=message):
            text = f"The result cannot be sent to the driver; return plain values. {message}"
            pickled = replace(pickled, message=text, seconds=outcome.seconds)
        case Lost():
            pass
    return cloudpickle.dumps((pickled, is_last))
