"""A lock between processes; the operating system releases it when its process ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_file(file: Path) -> Iterator[None]:
    """Wait until no other process holds the lock, and hold it."""
    # The file is not removed: two processes could then hold locks on two files of that name.
    with file.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
