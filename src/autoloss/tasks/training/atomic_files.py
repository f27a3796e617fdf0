"""Atomic replacement of files, also across a loss of power, and digests to detect that a file has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def commit_file(partial: Path, path: Path) -> None:
    """Sync a finished file and rename it to `path`; after a loss of power there is all of it or nothing."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def file_digest(path: Path) -> str:
    """Return the BLAKE2b digest of a file's content, sixteen hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
