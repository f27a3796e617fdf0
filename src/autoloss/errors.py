"""Exceptions for wrong requests and failed runs; the command line prints their message without a traceback.

A wrong request ends with exit code 2, a failed run with 1 or 3.
"""

from __future__ import annotations

import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence


class RequestError(ValueError):
    """A request that is wrong (exit code 2).

    Args:
        message: What was found, what was expected and what to do.
        argument: The argument of the Python function that has to change; the command line prints the matching option.
    """

    def __init__(self, message: object = "", *, argument: str | None = None) -> None:
        super().__init__(message)
        self.argument = argument


class RunError(RuntimeError):
    """A run that cannot continue although the request was right (exit code 1)."""


class OwnedError(RunError):
    """Another process owns the run (exit code 3)."""


FAILURES = (Exception, SystemExit)
"""What a user's code raises when it fails; `sys.exit()` in it is no reason to end without a word."""
LONGEST = 80
"""Largest number of characters of a wrong value that a message repeats."""
LONGEST_TEXT = 1000
"""Largest number of characters of an exception's text that a message repeats."""
MOST = 60
"""Largest number of names that a message lists; a table may have thousands of columns."""


def mask_unprintable(text: str) -> str:
    """Replace each character that a terminal would interpret or not print by `�`; line breaks are kept."""
    return "".join(character if character.isprintable() or character == "\n" else "�" for character in text)


def is_text(text: str) -> bool:
    """Return whether UTF-8 can write a text; a path may hold bytes that it cannot.

    >>> is_text("größe.py"), is_text(os.fsdecode(b"gr\\xf6\\xdfe.py"))
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quote(found: object) -> str:
    """Return the `repr` of a value in one line, shortened to `LONGEST` characters."""
    text = repr(found) if isinstance(found, str) else " ".join(repr(found).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]}…{text[-LONGEST // 4 :]}"


def name_kind(found: object) -> str:
    """Return the type of a value with its article; `None` for None."""
    kind = type(found).__name__
    return "None" if found is None else f"{'an' if kind[0] in 'aeiouAEIO' else 'a'} {kind}"


_CUT = " … shortened … "


def keep_text(text: str, characters: int) -> str:
    """Return a text as a run keeps it: what UTF-8 cannot write is escaped, and the middle of a longer one is left out.

    >>> keep_text("a" * 100, 30)
    'aaaaaaa … shortened … aaaaaaa'
    """
    # A subclass's methods are not ours.
    text = str.__str__(text)
    # What cannot be written is rare, and long texts are cut before they are copied again.
    if len(text) > characters:
        half = (characters - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return plain if plain == text else keep_text(plain, characters)


def suggest(found: str, known: Iterable[str]) -> str:
    """Return ' Did you mean …?' for the closest known name, or an empty text if none is close.

    >>> suggest("recipe.lr", ["recipe.power", "recipe.learning_rate"])
    " Did you mean 'recipe.learning_rate'?"
    """
    names, last = list(known), found.lower().rpartition(".")[2]
    # A long text is not a misspelt name, and comparing it is slow.
    if len(found) > LONGEST:
        return ""
    close = [name for name in names if found.lower() in re.split("[/_]", name.lower())]
    close = close or [name for name in names if last == "".join(re.findall("(?:_|^)(.)", name.rpartition(".")[2]))]
    close = close or difflib.get_close_matches(found, names, n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def unknown(kind: str, found: str, known: Iterable[str]) -> RequestError:
    """Return the error for an unknown name: the name, the closest known one, and all known names.

    >>> unknown("metric", "miuo", ["miou", "gacc"])
    RequestError("There is no metric named 'miuo'. Did you mean 'miou'? Known: miou, gacc.")
    """
    names = list(known)
    text = f"There is no {kind} named {quote(found)}.{suggest(str(found), names)}"
    return RequestError(f"{text} Known: {join_names(names) or 'none'}.")


def describe_user_error(error: BaseException) -> str:
    """Return the type, the text and the line of what a user's own code raised, without a full stop at the end."""
    text = str(error)
    text = text.rstrip(".") if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"
    where = f", in {found}" if (found := _find_user_line(error)) else ""
    return f"{type(error).__name__}: {text}{where}"


def _find_user_line(error: BaseException) -> str:
    """Return file, line and text of the last line of a user's own code that an error came through; empty without one."""
    folders = (os.path.dirname(__file__), *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*folders, "<")):
            return f"{os.path.basename(frame.filename)}, line {frame.lineno}: {(frame.line or '')[: 2 * LONGEST]}"
    return ""


def join_names(names: Sequence[str]) -> str:
    """Join names with commas; of more than `MOST`, the first ones and the total."""
    text, more = ", ".join(names[:MOST]), f", … ({len(names)} in all)" if len(names) > MOST else ""
    return (text if len(text) <= MOST * LONGEST else f"{text[: MOST * LONGEST]}…") + more
