"""Atomic replacement of files, also across a power failure, and digests to detect that a file has changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from autoloss.errors import RequestError


def commit_file(partial: Path, path: Path) -> None:
    """Sync a finished file and rename it to `path`; after a power failure the file is complete or absent."""
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


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        commit_file(partial, path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Choose another place.") from None
