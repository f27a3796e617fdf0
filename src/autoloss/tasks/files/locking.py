"""One process at a time; the operating system ends a lock with its process, however that ends."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def lock_file(file: Path) -> Iterator[None]:
    """Wait until no other process holds the lock, and hold it."""
    # The file stays: were it removed, two processes could hold locks on two files of its name.
    with file.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
