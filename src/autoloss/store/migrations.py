"""Every schema that a release wrote, and the step from each to the next; a run is brought up to date when it is resumed.

A step runs in a transaction of its own, with the number of the new schema. Readers take older schemas as they are.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from autoloss.errors import RunError
from autoloss.store.rows import insert
from autoloss.tasks.training.atomic_files import file_digest

SAMPLES = "samples.safetensors"
"""The B samples of a run, beside its store."""
SAMPLES_DIGEST = "samples"
"""The setting that holds their digest."""

Step = Callable[[sqlite3.Connection, Path], None]
"""Changes a store in a run's directory; its transaction is open."""


def digest_of_samples(directory: Path) -> str:
    """Return the digest of a run's samples.

    Raises:
        RunError: They are missing.
    """
    try:
        return file_digest(directory / SAMPLES)
    except OSError as error:
        raise RunError(
            f"{directory / SAMPLES} cannot be read: {error.strerror}. Restore it from a copy of the run."
        ) from None


def _name_samples(connection: sqlite3.Connection, directory: Path) -> None:
    """Since schema 2 the settings hold the digest of the samples: a damaged file of samples is told from a whole one."""
    if connection.execute("SELECT 1 FROM setting").fetchone() is None:
        # No search was begun here: trainings alone have no samples.
        return
    insert(connection, "setting", {"name": SAMPLES_DIGEST, "value": digest_of_samples(directory)})


STEPS: Mapping[int, Step] = {1: _name_samples}
"""Schema → the step to the next one."""
SCHEMA = 1 + max(STEPS)
"""Of this release; written to `PRAGMA user_version`."""
EMPTY = 0
"""Of a file in which nothing was written yet."""
READ = range(min(STEPS), SCHEMA + 1)
