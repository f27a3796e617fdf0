"""One driver per run: a lock on a file of its own, that names its owner.

A second descriptor on the database itself would drop SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
import time
from pathlib import Path
from typing import IO

from autoloss.errors import OwnedError, RequestError, RunError

FILE = "owner.lock"
NAMED_SECONDS = 1.0
"""How long a new owner may take to write its name."""


class Ownership:
    """Held by the process that drives a run; the operating system releases it, however the process ends.

    Raises:
        OwnedError: Another process drives the run.
        RequestError: The folder cannot be written.
        RunError: There is no room for the owner's name.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / FILE
        try:
            self._file = path.open("a+", encoding="utf-8")
        except OSError as error:
            raise RequestError(
                f"{path} cannot be written: {error.strerror}. A run is driven in a folder of one's own."
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _owner(self._file)
            self._file.close()
            raise OwnedError(f"{directory} is driven by {owner}. Wait for it to end, or stop it first.") from None
        try:
            self._file.truncate(0)
            os.write(self._file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except OSError as error:
            self._file.close()
            raise RunError(
                f"{path} cannot be written: {error.strerror}. Make room on its disk and try again."
            ) from None

    def close(self) -> None:
        self._file.close()


def refuse_owned(directory: Path) -> None:
    """Leave early where another process drives a run; who goes on takes the lock all the same.

    Raises:
        OwnedError: Another process drives the run.
    """
    if (directory / FILE).exists():
        Ownership(directory).close()


def owner_lives(directory: Path) -> bool | None:
    """Say whether the process that took the run last still lives; None where another machine would have to say.

    The lock itself is not touched: a reader that tried it would keep a driver out for that moment.
    """
    try:
        return _lives((directory / FILE).read_text().strip())
    except OSError:
        return False


def _owner(file: IO[str]) -> str:
    """Return who holds a lock; the one before may still stand there for the moment until the new one has signed."""
    end = time.monotonic() + NAMED_SECONDS
    while True:
        file.seek(0)
        name = file.read().strip()
        if _lives(name) is not False or time.monotonic() > end:
            return name or "another process"
        time.sleep(0.01)


def _lives(name: str) -> bool | None:
    """Say whether a named owner is running; of those on other hosts nothing is known."""
    found = re.fullmatch(r"process (\d+) on (.+)", name)
    if found is None:
        return False
    if found[2] != socket.gethostname():
        return None
    try:
        os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
