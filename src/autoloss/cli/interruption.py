"""How an interrupted command ends: it prints how to resume the run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal other than Ctrl-C."""


class Interrupted(Exception):
    """An interrupted command; its text says how to resume."""

    def __init__(self, interruption: KeyboardInterrupt) -> None:
        self.code = 143 if isinstance(interruption, Terminated) else 130
        super().__init__(" ".join(["Interrupted.", *getattr(interruption, "__notes__", ())]))


@contextmanager
def interruptible(note: str | None = None) -> Iterator[None]:
    """Turn an interrupt into `Interrupted`.

    Args:
        note: Says how to resume; the run's own note otherwise.
    """
    # Typer would turn an interrupt into a bare exit.
    try:
        yield
    except KeyboardInterrupt as interruption:
        if note is not None:
            interruption.add_note(note)
        raise Interrupted(interruption) from None


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated
