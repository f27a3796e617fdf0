"""A command that is interrupted: everything finished is saved, and how to go on is printed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal other than Ctrl-C."""


class Interrupted(Exception):
    """A run that was interrupted, with everything finished saved; its text says how to go on."""

    def __init__(self, interruption: KeyboardInterrupt) -> None:
        self.code = 143 if isinstance(interruption, Terminated) else 130
        super().__init__(" ".join(["Interrupted.", *getattr(interruption, "__notes__", ())]))


@contextmanager
def interruptible(note: str | None = None) -> Iterator[None]:
    # Typer would turn an interrupt into a bare exit.
    try:
        yield
    except KeyboardInterrupt as interruption:
        if note is not None:
            interruption.add_note(note)
        raise Interrupted(interruption) from None


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
