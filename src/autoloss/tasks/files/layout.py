"""The layout of data sets on disk; errors show the expected layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath

from autoloss.errors import RequestError, quote, suggest


def find_directory(directory: Path, name: str, layout: str) -> Path:
    """Return the folder of a data set.

    Raises:
        RequestError: There is no such folder.
    """
    found = directory.expanduser()
    if not found.is_dir():
        what = "is no folder" if found.exists() else "does not exist"
        raise RequestError(f"{directory} {what}; expected the folder of {name}:\n{layout}\nCheck the path.")
    return found


def find_root(roots: Iterable[Path], needed: Sequence[str], name: str, layout: str) -> Path:
    """Return the first root that has all needed parts.

    Raises:
        RequestError: None has; the message names the missing parts of the most complete one.
    """
    candidates = list(dict.fromkeys(roots))
    lacking = {root: [part for part in needed if not (root / part).exists()] for root in candidates}
    best = min(candidates, key=lambda root: len(lacking[root]))
    if lacking[best]:
        raise RequestError(
            f"{best} holds no {name}: there is no {' and no '.join(lacking[best])}. Expected\n{layout}\n"
            "Give the folder that holds all of it."
        )
    return best


def check_split(split: str, known: Iterable[str], name: str, place: Path) -> None:
    """Check that a data set has a split.

    Raises:
        RequestError: It does not.
    """
    names = list(known)
    if split not in names:
        raise RequestError(
            f"{name} in {place} has no split named {split!r}.{suggest(split, names)} "
            f"It has {', '.join(names) or 'none'}; choose one of these, or add the split."
        )


def leads_outside(name: str) -> bool:
    """Return whether a name from a file leads outside its folder."""
    return "\0" in name or PurePath(name).is_absolute() or ".." in PurePath(name).parts


def read_names(file: Path, name: str) -> list[str]:
    """Read the names of a split, one per line, without blank lines and repeated names.

    Raises:
        RequestError: The file is missing, is not text, or is empty.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise RequestError(
            f"{name} has no split {file.stem!r}: there is no {file}; expected a text file with one name per line. "
            "Add it, or choose another split."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file} cannot be read ({error}); expected a text file with one name per line.") from None
    names = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if astray := [name for name in names if leads_outside(name)]:
        raise RequestError(
            f"{file} names {quote(astray[0])}, which lies outside the folder of {name}. List names inside that folder only."
        )
    if not names:
        raise RequestError(f"{file} is empty: the split {file.stem!r} of {name} has no images. Put one name per line.")
    return names
