"""Every schema that a release wrote, and the step from each to the next.

A run is brought up to date when it is resumed; each step runs in a transaction of its own, with the number of the new schema.
Readers take the steps in a copy of their own, and leave the file as it is.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from autoloss.atomic_files import file_digest
from autoloss.conversion import parse_json
from autoloss.errors import RunError
from autoloss.proposing.chance import derive_seed
from autoloss.space.loss_text import split_branches
from autoloss.store.rows import CHECKSUM, Row, StoreError, insert, intact, to_json, training_to_row
from autoloss.training.training import Training

SAMPLES = "samples.safetensors"
"""The B samples of a run, beside its store."""
SAMPLES_DIGEST = "samples"
"""The setting that holds their digest."""

WHOLE: Row = {"fidelity": 1.0, "pool": "{}"}
"""What schema 4 added to a candidate: before, all were trained whole, and the first attempt that passed was taken."""

Step = Callable[[sqlite3.Connection, Path | None], None]
"""Changes a store in a run's directory, None for a reader's copy; its transaction is open."""


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


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of this release's schema."""
    for statement in _read_statements():
        connection.execute(statement)


def _read_statements(table: str = "") -> list[str]:
    """Return the statements of this release's schema, or that which creates one table."""
    statements = files("autoloss.store").joinpath("schema.sql").read_text(encoding="utf-8").split(";\n")
    return [statement for statement in statements if f"CREATE TABLE {table}" in statement or not table]


def _add_digest_of_samples(connection: sqlite3.Connection, directory: Path | None) -> None:
    """Since schema 2 the settings hold the digest of the samples: a damaged file of samples is told from a whole one."""
    if directory is None or connection.execute("SELECT 1 FROM setting").fetchone() is None:
        # Readers need no digest. Where no search was begun, there are trainings alone and no samples.
        return
    insert(connection, "setting", {"name": SAMPLES_DIGEST, "value": digest_of_samples(directory)})


def _unite_trainings(connection: sqlite3.Connection, directory: Path | None) -> None:
    """Since schema 3 `candidate` is the name of what was `child`, and `training` holds what were `outcome` and `trial`."""
    connection.execute("ALTER TABLE rejected RENAME TO rejected_before")
    # The tables of this release: what schema 4 adds to a candidate is added here at once.
    create_tables(connection)
    losses: dict[int, str] = {}
    for row, is_intact in _read(connection, "child"):
        losses[row["id"]] = row["loss"]
        _write(connection, "candidate", {**row, **WHOLE}, is_intact)
    for row, is_intact in _read(connection, "rejected_before"):
        _write(connection, "rejected", {"candidate": row.pop("child"), **row}, is_intact)
    search = None
    for row, is_intact in _read(connection, "outcome"):
        search = search or Training(seed=derive_seed(_seed(connection), "training"))
        candidate = row.pop("child")
        key = training_to_row(losses.get(candidate, ""), search, candidate)
        _write(connection, "training", {**key, **row}, is_intact and candidate in losses)
    for row, is_intact in _read(connection, "trial"):
        # A trial had one factor for all branches, and no fidelity.
        factor = row.pop("scale")
        scale = {} if factor == 1 else dict.fromkeys(sorted(split_branches(row["loss"])), factor)
        row |= {"candidate": None, "fidelity": 1.0, "scale": to_json(scale)}
        _write(connection, "training", row, is_intact)
    for table in ("child", "rejected_before", "outcome", "trial"):
        connection.execute(f"DROP TABLE {table}")


def _add_fidelity(connection: sqlite3.Connection, directory: Path | None) -> None:
    """Since schema 4 a candidate has the share of the schedule that it is trained at, and what it was chosen among."""
    columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(candidate)")]
    if "fidelity" in columns:
        return
    rows = list(_read(connection, "candidate"))
    connection.execute("DROP TABLE candidate")
    connection.execute(*_read_statements("candidate"))
    for row, is_intact in rows:
        _write(connection, "candidate", {**row, **WHOLE}, is_intact)


def _seed(connection: sqlite3.Connection) -> int:
    """Return the seed of a run's search."""
    for row, is_intact in _read(connection, "setting"):
        if row["name"] == "configuration" and is_intact:
            return parse_json(row["value"])["seed"]
    raise StoreError("The setting 'configuration' of the run is missing or damaged. Restore the file from a copy.")


def _read(connection: sqlite3.Connection, table: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """Read rows without their checksums, each with whether it is what was written."""
    cursor = connection.execute(f"SELECT * FROM {table} ORDER BY rowid")
    names = [name for name, *_ in cursor.description]
    for values in cursor:
        row = dict(zip(names, values, strict=True))
        is_intact = intact(row)
        del row[CHECKSUM]
        yield row, is_intact


def _write(connection: sqlite3.Connection, table: str, row: Row, is_intact: bool) -> None:
    """Write a row; one that was damaged stays damaged, for readers to name."""
    insert(connection, table, row)
    if not is_intact:
        connection.execute(f"UPDATE {table} SET {CHECKSUM} = 'damaged' WHERE rowid = last_insert_rowid()")


STEPS: Mapping[int, Step] = {1: _add_digest_of_samples, 2: _unite_trainings, 3: _add_fidelity}
"""Schema → the step to the next one."""
SCHEMA = 1 + max(STEPS)
"""Of this release; written to `PRAGMA user_version`."""
EMPTY = 0
"""Of a file in which nothing was written yet."""
READ = range(min(STEPS), SCHEMA + 1)
RENAMED: Mapping[str, str] = {"child": "candidate", "outcome": "training", "trial": "training"}
"""Tables of older schemas → the table that holds their rows now."""


def count_by_table(tally: Mapping[str, int]) -> Counter[str]:
    """Return how many rows each table has at least, from a tally that an older release may have written."""
    counts: Counter[str] = Counter()
    for table, count in tally.items():
        counts[RENAMED.get(table, table)] += count
    return counts


def step_up(connection: sqlite3.Connection, directory: Path | None) -> None:
    """Take the step from the schema of a store to the next one; its transaction is open."""
    found = read_schema(connection)
    try:
        STEPS[found](connection, directory)
    # Names of columns are damaged, or what stands in them.
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"The run cannot be read by schema {found}: {error!r}. Restore the file from a copy."
        ) from error
    connection.execute(f"PRAGMA user_version = {found + 1}")


def read_schema(connection: sqlite3.Connection) -> int:
    return connection.execute("PRAGMA user_version").fetchone()[0]
