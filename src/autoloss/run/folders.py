"""The folder that a new run is written to: its own, or one with nothing but logs in it."""

from __future__ import annotations

from pathlib import Path

from autoloss.errors import RequestError, join_names
from autoloss.store import store as stores
from autoloss.store.lock import FILE as LOCK
from autoloss.store.samples import FILE as SAMPLES

LOGS = frozenset({".log", ".out", ".err", ".txt"})
"""Suffixes of files that a shell or a batch system may have put into the folder."""


def make_directory(path: Path) -> None:
    """Make the folder of a new run."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = _list_others(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be made: {error.strerror}. Use another.", argument="directory") from None
    if others and not stores.exists(path):
        raise RequestError(
            f"{path} contains other files ({join_names(others[:3])}{', …' if len(others) > 3 else ''}). Name an empty folder.",
            argument="directory",
        )


def is_left_over(path: Path) -> bool:
    """Return whether a folder holds nothing but what a search writes before it begins; a search can start there."""
    return path.is_dir() and (path / LOCK).exists() and not _list_others(path) and not stores.exists(path)


def _list_others(path: Path) -> list[str]:
    own = (LOCK, SAMPLES, stores.FILE)
    found = sorted(entry.name for entry in path.iterdir())
    return [name for name in found if not name.startswith((".", *own)) and Path(name).suffix not in LOGS]
