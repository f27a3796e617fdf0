"""Output that a command survives the loss of: a run is worth more than what is printed about it."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, ParamSpec, final

Parameters = ParamSpec("Parameters")


@final
class _Patient(io.FileIO):
    """A file whose writes always succeed; what cannot be written is left out."""

    problem: str | None = None

    def write(self, content: Any) -> int:
        try:
            return super().write(content) or 0
        except OSError as error:
            # A closed pipe, a full disk, a terminal that is gone.
            self.problem = error.strerror
            return memoryview(content).nbytes


def outlast_output(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Let a command end normally if its output is closed or its disk is full; stderr says so at the end.

    What the user's code prints in this process is covered, too.
    """

    @functools.wraps(command)
    def outlasting(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        with _replace_stream("stdout") as out, _replace_stream("stderr") as said:
            command(*arguments, **named)
        problem = next((one.problem for one in (out, said) if one is not None and one.problem), None)
        if problem is not None:
            with suppress(OSError):
                print(
                    f"autoloss: part of the output could not be written: {problem}. Nothing else is lost; autoloss top and "
                    "autoloss report show the run.",
                    file=sys.stderr,
                    flush=True,
                )

    return outlasting


@contextmanager
def _replace_stream(name: str) -> Iterator[_Patient | None]:
    """Put a patient file in the place of `sys.stdout` or `sys.stderr`; one that a program has replaced stays."""
    before = getattr(sys, name)
    try:
        raw = _Patient(before.fileno(), "w", closefd=False)
    except (AttributeError, OSError, ValueError):
        yield None
        return
    drop_output(before)
    patient = io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=before.encoding, errors=before.errors, line_buffering=before.line_buffering
    )
    setattr(sys, name, patient)
    try:
        yield raw
    finally:
        setattr(sys, name, before)
        patient.flush()


def drop_output(stream: Any) -> None:
    """Write what a stream holds back; where it cannot, send it and all that follows nowhere.

    At the end of a process, Python would fail with an exit code of its own.
    """
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
