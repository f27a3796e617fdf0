"""How many rows a store has, kept beside it: SQLite drops the end of a damaged log, and says nothing.

A commit is synced before it is counted, so the tally never names more rows than were written, even when it is itself lost
with the power. A store with fewer rows than that has lost some. An absent or torn tally says nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from autoloss.conversion import parse_json

FILE = "run.tally"
WIDTH = 256
"""Bytes; one length, so that a new tally overwrites the old one in place."""


class Tally:
    """Counts rows by table.

    Args:
        directory: The run's.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def read(self) -> Mapping[str, int]:
        """Return table → rows that it had at least; nothing where no whole tally is there."""
        try:
            text, _, digest = self.path.read_text(encoding="ascii").strip().rpartition(" ")
            return dict(parse_json(text)) if digest == _digest(text) else {}
        except (OSError, ValueError, TypeError):
            return {}

    def write(self, rows: Mapping[str, int]) -> None:
        """Overwrite the tally. It is evidence, not data: on a full disk it stays behind."""
        text = json.dumps(dict(rows), separators=(",", ":"))
        line = f"{text} {_digest(text)}".ljust(WIDTH - 1) + "\n"
        try:
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.pwrite(file, line.encode("ascii"), 0)
            finally:
                os.close(file)
        except OSError:
            return


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("ascii"), digest_size=8).hexdigest()
