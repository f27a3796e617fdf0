"""Messages between a driver and its workers: the outcomes of jobs, and their frames on a pipe."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import IO, Any, Literal

import cloudpickle

Cause = Literal["deadline", "killed", "memory", "device", "node", "exited", "injected"]

TOKEN_BYTES = 16
ANSWER_BYTES = 64 << 20
"""Longest answer of a job that a driver accepts; results are a few numbers and texts."""
READ_BYTES = 1 << 20
START = -1
"""The number of the first job of every worker: to load the function."""
_HEADER = struct.Struct(f">{TOKEN_BYTES}sqQ")


@dataclass(frozen=True, slots=True)
class Finished:
    """A job whose function returned.

    Args:
        seconds: Spent in the function, by the worker's clock.
    """

    job: int
    value: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Raised:
    """A job whose function raised, or could not be loaded: an error of the task's code, which another attempt would repeat.

    Args:
        message: Type and text of the exception.
        traceback_text: Without the frames of the worker itself.
        at_start: No worker could be started or load the function, so every other job would fail as well.
    """

    job: int
    message: str
    traceback_text: str
    seconds: float
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that ended with its worker: a failure of the machine, which says nothing about the payload.

    Args:
        cause: `deadline`: it ran longer than allowed. `memory`: it exceeded the limit, or raised MemoryError. `device`: the
            accelerator failed, so this worker process cannot use it any more. `killed`: a signal ended the worker (SIGSEGV, the
            kernel's OOM killer, a person). `node`: its machine was lost, or was silent for too long. `exited`: the worker
            ended itself, or did not start in time. `injected`: a fault that was injected ended the attempt.
        detail: What happened, and the last lines of the worker's output.
        begun: Whether the worker had started the job when it ended.
    """

    job: int
    cause: Cause
    detail: str
    seconds: float
    begun: bool = True


JobOutcome = Finished | Raised | Lost


def encode_function(function: Any) -> bytes:
    """Pickle the function that workers load first; bytes are returned as they are."""
    return function if isinstance(function, bytes) else cloudpickle.dumps(function)


def decode(body: bytes) -> Any:
    """Read a pickled value.

    Raises:
        Exception: Whatever unpickling raises, such as ModuleNotFoundError for a type that is unknown here.
    """
    # The only unpickling in the package. It reads pipes between a driver and processes that the driver itself started
    # with the same user's rights and code, in memory, and what Ray carries between this driver and the supervisors that
    # it started on a cluster that it was told to trust. Nothing read from a disk gets here.
    return cloudpickle.loads(body)


class StrayBytesError(ValueError):
    """Bytes on a pipe that are not an answer."""


def pack_header(token: bytes, job: int, body: bytes) -> bytes:
    """Pack the header of a message: a token that only driver and worker know, the job, and the length of the body."""
    return _HEADER.pack(token, job, len(body))


def split_answers(buffer: bytearray, token: bytes) -> list[tuple[int, bytes]]:
    """Remove all complete answers from the front of a buffer and return their jobs and bodies.

    Raises:
        StrayBytesError: The buffer holds something other than answers of the worker with this token.
    """
    answers = []
    while buffer:
        if not token.startswith(buffer[:TOKEN_BYTES]):
            raise StrayBytesError(f"expected an answer, received {bytes(buffer[:TOKEN_BYTES])!r}")
        if len(buffer) < _HEADER.size:
            break
        _, job, length = _HEADER.unpack_from(buffer)
        if length > ANSWER_BYTES:
            raise StrayBytesError(f"an answer of {length} bytes was announced; the most is {ANSWER_BYTES}")
        end = _HEADER.size + length
        if len(buffer) < end:
            break
        answers.append((job, bytes(buffer[_HEADER.size : end])))
        del buffer[:end]
    return answers


def read_request(pipe: IO[bytes]) -> tuple[bytes, int, bytes]:
    """Wait for one request on an unbuffered pipe and return its token, its job and its body.

    Raises:
        EOFError: The other side closed the pipe.
    """
    token, job, length = _HEADER.unpack(_read(pipe, _HEADER.size))
    return token, job, _read(pipe, length)


def _read(pipe: IO[bytes], count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        chunk = pipe.read(min(count - len(found), READ_BYTES))
        if not chunk:
            raise EOFError
        found += chunk
    return bytes(found)
