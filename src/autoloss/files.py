"""Files: JSON that anybody may have written; atomic replacement, also across a power failure; digests that tell a changed file."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

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
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        RequestError: It cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        commit_file(partial, path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Choose another place.") from None


def parse_json(text: str | bytes) -> Any:
    """Read a JSON text that may come from anybody.

    Raises:
        ValueError: It is none, or is nested deeper than any text that is written here.

    >>> parse_json("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None
