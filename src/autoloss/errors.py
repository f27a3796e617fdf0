"""What a person got wrong: the errors that end as one screen and exit code 2, never as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class RequestError(ValueError):
    """A request that cannot be carried out as it was made.

    Args:
        message: What was found, what was expected and what to do.
        argument: The argument of the Python function that has to change; the command line names its option for it.
    """

    def __init__(self, *message: object, argument: str | None = None) -> None:
        super().__init__(*message)
        self.argument = argument


class RunError(RuntimeError):
    """A run that cannot go on, through no fault of the request (exit code 1)."""


class OwnedError(RunError):
    """Another process owns the run (exit code 3)."""


LONGEST = 80
"""Characters of what was found that a message repeats."""
MOST = 60
"""Names that a message lists; there are fewer settings and tasks, but tables with thousands of columns."""


def visible(text: str) -> str:
    """Return a text with one `�` for each character that a terminal would obey or not show; lines stay lines."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)


def shown(found: object) -> str:
    """Return what was found, in quotes and no longer than a message bears."""
    text = repr(found)
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 4 :]}"


def nearest(found: str, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' for the closest known name, or nothing when none is close."""
    names = list(known)
    # Whoever wrote more than a line meant no name, and comparing takes time.
    if len(found) > LONGEST:
        return ""
    close = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, found: str, known: Iterable[str]) -> RequestError:
    """Build the one message that every unknown name gets: what was found, what exists, the nearest."""
    names = list(known)
    return RequestError(
        f"There is no {kind} named {shown(found)}.{nearest(found, names)} Known: {listing(names) or 'none'}."
    )


def listing(names: Sequence[str]) -> str:
    """Return names with commas between; of very many the first, and how many there are."""
    text, more = ", ".join(names[:MOST]), f", … ({len(names)} in all)" if len(names) > MOST else ""
    return (text if len(text) <= MOST * LONGEST else f"{text[: MOST * LONGEST]}…") + more
