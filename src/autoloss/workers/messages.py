"""What a driver and its workers say to each other: the outcomes of jobs, and how they cross a pipe."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal

import cloudpickle

Cause = Literal["deadline", "killed", "memory", "device", "node", "exited"]

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Finished:
    """A job whose callable returned.

    Args:
        seconds: Spent in the callable, by the worker's clock.
    """

    job: int
    value: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class Raised:
    """A job whose callable raised, or could not be loaded: a fault of the task's code, which another attempt repeats.

    Args:
        message: Type and text of the exception.
        traceback_text: Without the frames of the worker itself.
        at_start: No worker could be started or load its callable, so no other job will do better.
    """

    job: int
    message: str
    traceback_text: str
    seconds: float
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A job that ended with its worker: a fault of the infrastructure, which says nothing about the payload.

    Args:
        cause: `deadline`: it ran longer than allowed; `memory`: it went beyond the
            limit, or raised MemoryError; `device`: the accelerator failed, and with it everything this worker could still
            do there; `killed`: a signal ended the worker (SIGSEGV, the kernel's OOM killer, a person); `node`: the
            machine it ran on was lost, or was not heard of for too long; `exited`: the worker ended itself, or did not
            start in time.
        detail: What happened, and the last lines of the worker's output.
        begun: The worker was ready for the job; one that ended before says nothing about it.
    """

    job: int
    cause: Cause
    detail: str
    seconds: float
    begun: bool = True


Outcome = Finished | Raised | Lost


START = -1
"""The job that every worker does first: load its callable."""


def encode(message: Any) -> bytes:
    """Write a message as one frame: its length in eight bytes, then the pickled message."""
    body = pickled(message)
    return _LENGTH.pack(len(body)) + body


def pickled(message: Any) -> bytes:
    """Write a message as `decode` reads it."""
    return cloudpickle.dumps(message)


def seal(perform: Any) -> bytes:
    """Write the callable that workers load first as the frame that they get; a frame stays as it is."""
    return perform if isinstance(perform, bytes) else encode(perform)


def decode(body: bytes) -> Any:
    """Read the body of a frame.

    Raises:
        Exception: Whatever unpickling raises, such as ModuleNotFoundError for a type that is unknown here.
    """
    # The only unpickling in the package. It reads pipes between a driver and children that the driver itself started
    # with the same user's rights and code, in memory, and what Ray carries between this driver and the seats that it
    # opened itself on a cluster that it was told to trust. Nothing that was on a disk ever gets here.
    return cloudpickle.loads(body)


def split(buffer: bytearray) -> list[bytes]:
    """Take the bodies of all complete frames off the front of a buffer."""
    bodies = []
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        bodies.append(bytes(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return bodies


def receive(stream: BinaryIO) -> bytes:
    """Wait for one frame and return its body.

    Raises:
        EOFError: The other side is gone.
    """
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    body = stream.read(length)
    if len(body) < length:
        raise EOFError
    return body
