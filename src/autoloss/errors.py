"""What a person got wrong: the errors that end as one screen and exit code 2, never as a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RequestError(ValueError):
    """A request that cannot be carried out as it was made.

    The message says what was found, what was expected and what to do.
    """


class RunError(RuntimeError):
    """A run that cannot go on, through no fault of the request (exit code 1)."""


class OwnedError(RunError):
    """Another process owns the run (exit code 3)."""


def nearest(found: str, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' for the closest known name, or nothing when none is close."""
    names = list(known)
    close = difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, found: str, known: Iterable[str]) -> RequestError:
    """Build the one message that every unknown name gets: what was found, what exists, the nearest."""
    names = list(known)
    return RequestError(
        f"There is no {kind} named {found!r}.{nearest(found, names)} Known: {', '.join(names) or 'none'}."
    )
