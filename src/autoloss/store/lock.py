"""One driver per run: a lock on a separate file, which names its owner.

Opening and closing the database file a second time would release SQLite's own locks.
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
NAME_SECONDS = 1.0
"""Seconds that a new owner may take to write its name."""


def lock_run(directory: Path) -> IO[str]:
    """Make this process the one that drives a run, until the returned file is closed.

    The operating system releases the run however the process ends.

    Raises:
        OwnedError: Another process drives the run.
        RequestError: The folder cannot be written.
        RunError: There is no room for the owner's name.
    """
    path = directory / FILE
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Use another folder.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = _owner(file)
        file.close()
        raise OwnedError(f"{directory} is driven by {owner}. Wait for it to end, or stop it first.") from None
    try:
        file.truncate(0)
        os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        file.close()
        raise RunError(f"{path} cannot be written: {error.strerror}. Free disk space and try again.") from None
    return file


def refuse_owned(directory: Path) -> None:
    """Refuse a run that another process drives, before anything else is done; the lock is not kept.

    Raises:
        OwnedError: Another process drives the run.
    """
    if (directory / FILE).exists():
        lock_run(directory).close()


def owner_lives(directory: Path) -> bool | None:
    """Return whether the last owner of a run is still running; None when it runs on another machine.

    The lock itself is not tried: a reader that held it for a moment would keep a driver out.
    """
    try:
        return _lives((directory / FILE).read_text().strip())
    except OSError:
        return False


def _owner(file: IO[str]) -> str:
    """Return who holds a lock, waiting while the file still names the owner before."""
    end = time.monotonic() + NAME_SECONDS
    while True:
        file.seek(0)
        name = file.read().strip()
        if _lives(name) is not False or time.monotonic() > end:
            return name or "another process"
        time.sleep(0.01)


def _lives(name: str) -> bool | None:
    """Return whether a named owner is running; None for one on another host."""
    found = re.fullmatch(r"process (\d{1,9}) on (.+)", name)
    if found is None:
        return False
    if found[2] != socket.gethostname():
        return None
    import psutil

    return psutil.pid_exists(int(found[1]))
