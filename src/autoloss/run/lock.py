"""One driver per run: a lock on a file of its own, that names its owner.

A second descriptor on the database itself would drop SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import os
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
