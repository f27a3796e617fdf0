"""One driver per run: a lock on a file of its own, that names its owner.

A second descriptor on the database itself would drop SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import socket
from pathlib import Path

from autoloss.errors import OwnedError

FILE = "owner.lock"


class Ownership:
    """Held by the process that drives a run; the operating system releases it, however the process ends.

    Raises:
        OwnedError: Another process drives the run.
    """

    def __init__(self, directory: Path) -> None:
        self._file = (directory / FILE).open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            owner = self._file.read().strip() or "another process"
            self._file.close()
            raise OwnedError(f"{directory} is driven by {owner}. Wait for it to end, or stop it first.") from None
        self._file.truncate(0)
        self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def owner_lives(directory: Path) -> bool | None:
    """Say whether the process that took the run last still lives; None where another machine would have to say.

    The lock itself is not touched: a reader that tried it would keep a driver out for that moment.
    """
    try:
        text = (directory / FILE).read_text()
    except OSError:
        return False
    found = re.fullmatch(r"process (\d+) on (.*)\n?", text)
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
