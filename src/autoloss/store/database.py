"""One SQLite file with checksummed rows: opened by its one writer or by readers, damage named, a full disk waited for."""

from __future__ import annotations

import sqlite3
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.resources import files
from operator import itemgetter
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError, RunError
from autoloss.store import migrations
from autoloss.store.crash_points import crash_point
from autoloss.store.rows import Row, Template, insert
from autoloss.store.tally import Tally

TABLES = ("setting", "child", "outcome", "rejected", "trial")
RETRY_SECONDS = 5.0
"""How long a full disk is left alone before the next try."""
NO_ROOM = (
    sqlite3.SQLITE_FULL,
    # A quota, or a limit on the size of files, is reported as a failed write.
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
PRIMARY = 0xFF
"""The part of an extended error code that names its kind."""

Write = Callable[[sqlite3.Connection], None]
Say = Callable[[str], None]


class StoreError(RunError):
    """A store that cannot be read, or a damaged row of it."""


Damaged = Callable[[int, StoreError], object]
"""Told the number of a damaged row, and what is to be said of it."""


def refused(number: int, error: StoreError) -> None:
    """Take no damaged row."""
    raise error


def warn(text: str) -> None:
    """Say something where nobody listens in particular."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class Database:
    """The file of one run.

    Args:
        write: Open for writing, create the file where there is none, and bring an older schema up to date.
        say: Told of a full disk, once, and of its end.

    Raises:
        RequestError: It was stopped before anything was written to it.
        StoreError: The file is no store, lost rows, or was written by a later release.
    """

    def __init__(self, path: Path, *, write: bool = False, say: Say = warn) -> None:
        self.path = path
        self.rest: Callable[[float], None] = time.sleep
        self._say = say
        self._tally = Tally(path.parent)
        self._rows: Counter[str] = Counter()
        try:
            uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
            self._connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=10)
        except sqlite3.Error as error:
            raise self._unopened(error) from error
        try:
            self._prepare_to_write() if write else self._check_schema()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise self._unopened(error) from error
        except BaseException:
            self.close()
            raise

    def _prepare_to_write(self) -> None:
        # FULL: a commit is on the disk before anything follows from it.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        if self._schema == migrations.EMPTY:
            self._transact("layout", self._lay_out)
        self._check_schema()
        while self._schema < migrations.SCHEMA:
            self._transact("migration", self._step)
        self._rows.update({table: self._count(table) for table in TABLES})
        for table, least in self._tally.read().items():
            self.check_count(table, self._rows[table], least)

    def _lay_out(self, connection: sqlite3.Connection) -> None:
        for statement in files("autoloss.store").joinpath("schema.sql").read_text().split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {migrations.SCHEMA}")
        self._tally.write({})

    def _step(self, connection: sqlite3.Connection) -> None:
        found = self._schema
        migrations.STEPS[found](connection, self.path.parent)
        connection.execute(f"PRAGMA user_version = {found + 1}")

    @property
    def _schema(self) -> int:
        return self._connection.execute("PRAGMA user_version").fetchone()[0]

    def _check_schema(self) -> None:
        found = self._schema
        if found == migrations.EMPTY:
            # A file that lost its beginning looks as empty as one that never had any.
            for table, least in self._tally.read().items():
                self.check_count(table, 0, least)
            raise RequestError(
                f"The run in {self.path.parent} was stopped before it began; start it again in the same directory."
            )
        if found not in migrations.READ:
            raise StoreError(
                f"{self.path} was written by schema {found}; this release reads schema {migrations.SCHEMA} and older ones. "
                "Open it with the release that wrote it, or start a new run in another directory."
            )

    def close(self) -> None:
        self._connection.close()

    def commit(self, name: str, rows: Sequence[tuple[str, Row]], *, replace: bool = False) -> None:
        """Write rows, all or none; they are synced when this returns. A full disk is waited for, and nothing is lost meanwhile.

        Args:
            name: Of the transaction, as `crashing.POINTS` has it.
            rows: Table and row.

        Raises:
            StoreError: The file is damaged.
        """

        def write(connection: sqlite3.Connection) -> None:
            for table, row in rows:
                insert(connection, table, row, replace=replace)

        self._transact(name, write)
        for table, _ in rows:
            self._rows[table] = self._count(table) if replace else self._rows[table] + 1
        self._tally.write(self._rows)
        crash_point(f"{name}-counted")

    def _transact(self, name: str, write: Write) -> None:
        """Repeat a transaction until there is room for it."""
        waiting = False
        while True:
            try:
                self._try(name, write)
                break
            except sqlite3.DatabaseError as error:
                if _code(error) not in NO_ROOM:
                    raise self._named(error) from error
                if not waiting:
                    self._say(
                        f"{self.path} cannot be written: {error}. Make room on its disk: the run waits and loses nothing."
                    )
                waiting = True
            self.rest(RETRY_SECONDS)
        if waiting:
            self._say("There is room again; the run goes on.")

    def _try(self, name: str, write: Write) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            crash_point(f"{name}-begun")
            write(self._connection)
            crash_point(f"{name}-written")
            self._connection.execute("COMMIT")
        finally:
            # After some errors SQLite has rolled back already, after others it waits for us.
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
        crash_point(f"{name}-committed")

    def rows(self, table: str, order: str) -> Iterator[Row]:
        """Read a table.

        Raises:
            StoreError: A row is damaged, or rows are missing.
        """
        # Looked up first: rows that are appended meanwhile do no harm.
        least = self.written(table)
        found = 0
        for row in self.later(table, order, None, refused):
            found += 1
            yield row
        self.check_count(table, found, least)

    def later(self, table: str, order: str, first: int | None, damaged: Damaged) -> Iterator[dict[str, Any]]:
        """Read the rows of a table from a number on; damaged ones are told and left out.

        Args:
            order: Columns, of which the first is numbered; `rowid` in a table without one, which the rows then have too.
            first: None for all rows.

        Raises:
            StoreError: The file is damaged.
        """
        names, found = self._checked(table, order, "" if first is None else f"WHERE {order} >= {int(first)}", damaged)
        for number, *values in found:
            row = dict(zip(names, values, strict=True))
            yield row if order != "rowid" else {**row, order: number}

    def columns(
        self, table: str, order: str, first: int, wanted: Sequence[str], damaged: Damaged
    ) -> Iterator[tuple[Any, ...]]:
        """Read some columns of the rows from a number on; whole rows are checked, and damaged ones are told and left out.

        Args:
            wanted: At least two.

        Raises:
            StoreError: The file is damaged.
        """
        names, found = self._checked(table, order, f"WHERE {order} >= {int(first)}", damaged)
        names = (order, *names)
        for name in wanted:
            if name not in names:
                raise StoreError(f"{self.path} has no column {name!r} of {table}. Restore the file from a copy.")
        return map(itemgetter(*map(names.index, wanted)), found)

    def row(self, table: str, order: str, number: int) -> dict[str, Any] | None:
        """Read one row, or None where there is none.

        Raises:
            StoreError: It is damaged, or the file is.
        """
        names, found = self._checked(table, order, f"WHERE {order} = {int(number)}", refused)
        return next((dict(zip(names, values, strict=True)) for _, *values in found), None)

    def _checked(
        self, table: str, order: str, where: str, damaged: Damaged
    ) -> tuple[Sequence[str], Iterator[tuple[Any, ...]]]:
        """Return the names of a table's columns, and its rows with what they are ordered by in front."""
        template = Template({row["name"]: row["type"] for row in self.select(f"PRAGMA table_info({table})")})
        listed = ", ".join('"' + name.replace('"', '""') + '"' for name in template.names)
        first = order.partition(",")[0]
        return template.names, self._fitting(
            f"SELECT {first}, {listed} FROM {table} {where} ORDER BY {order}", template, table, order, damaged
        )

    def _fitting(
        self, query: str, template: Template, table: str, order: str, damaged: Damaged
    ) -> Iterator[tuple[Any, ...]]:
        fits = template.fits
        for row in self.select(query, as_tuples=True):
            if fits(row[1:]):
                yield row
            else:
                damaged(row[0], self._damaged(table, order, row[0]))

    def select(self, query: str, *, as_tuples: bool = False) -> Iterator[Any]:
        """Read the rows of a query, which have names unless they are to be tuples.

        Raises:
            StoreError: The file is damaged.
        """
        try:
            cursor = self._connection.cursor()
            cursor.row_factory = None if as_tuples else sqlite3.Row
            yield from cursor.execute(query)
        # The name of a damaged column need not be text.
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise StoreError(f"{self.path} cannot be read: {error}. Restore the file from a copy.") from error

    def written(self, table: str) -> int:
        """Return how many rows a table has at least, as they were counted when they were written."""
        return self._tally.read().get(table, 0)

    def _count(self, table: str) -> int:
        # An index may hold more than its damaged table.
        return self._connection.execute(f"SELECT count(*) FROM {table} NOT INDEXED").fetchone()[0]

    def check_count(self, table: str, found: int, least: int) -> None:
        """Hold what was found of a table to what was written.

        Raises:
            StoreError: It lost rows.
        """
        if found < least:
            raise StoreError(
                f"{self.path} holds {found} rows of {table}, and {least} were written: the end of the file or of its log "
                f"({self.path.name}-wal) is damaged or missing. Restore the whole folder from a copy; or delete {self._tally.path} "
                "to go on from what is left."
            )

    def _damaged(self, table: str, order: str, number: object) -> StoreError:
        return StoreError(
            f"{self.path}: the row of {table} with {order} {number!r} is damaged (its checksum does not fit). "
            "Restore the file from a copy."
        )

    def _unopened(self, error: Exception) -> StoreError:
        remedy = "Restore it from a copy, or start a new run in another directory."
        if _code(error) in NO_ROOM:
            remedy = "Make room on its disk and try again."
        return StoreError(f"{self.path} cannot be opened as a run: {error}. {remedy}")

    def _named(self, error: sqlite3.DatabaseError) -> Exception:
        """Return what a failed transaction is raised as."""
        if (_code(error) or 0) & PRIMARY not in DAMAGE:
            return error
        return StoreError(f"{self.path} cannot be written: {error}. Restore the file from a copy.")


def _code(error: Exception) -> int | None:
    return getattr(error, "sqlite_errorcode", None)
