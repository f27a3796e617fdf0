"""One SQLite file with checksummed rows: opened by its one writer or by readers, damage named, a full disk waited for."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError
from autoloss.store import migrations
from autoloss.store.crash_points import crash_point
from autoloss.store.migrations import read_schema
from autoloss.store.rows import Row, StoreError, Template, insert
from autoloss.store.tally import Tally

KEYS = {"setting": "name", "candidate": "id", "training": "rowid", "rejected": "rowid"}
"""Table → the column that its rows are ordered by and named by."""
KEY = "key"
"""Name of the key beside the columns of a row."""
RETRY_SECONDS = 5.0
"""How long a full disk is left alone before the next try."""
NO_ROOM = (
    sqlite3.SQLITE_FULL,
    # A quota, or a limit on the size of files, is reported as a failed write.
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
"""Another program writes to the file, or keeps others from it."""
REFUSED = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN)
OPENING_SECONDS, BUSY_SECONDS = 10.0, 1.0
"""How long a lock of another program is waited for before that is said: when the file is opened, and in each transaction."""
PRIMARY = 0xFF
"""The part of an extended error code that names its kind."""

Write = Callable[[sqlite3.Connection], None]
Say = Callable[[str], None]


def warn(text: str) -> None:
    """Issue a warning; the default when no callback is given."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


class Database:
    """The file of one run.

    Attributes:
        uri: Where the rows are, for another connection.
        is_copy: Whether rows are read from a copy in this release's schema, since the file has an older one.

    Args:
        write: Open for writing, create the file where there is none, and bring an older schema up to date.
        say: Called when the disk is full or another program locks the file, once, and when that is over.

    Raises:
        RequestError: It was stopped before anything was written to it.
        StoreError: The file is no store, lost rows, or was written by a later release.
    """

    def __init__(self, path: Path, *, write: bool = False, say: Say = warn) -> None:
        self.path = path
        self.uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
        self.is_copy = False
        self.rest: Callable[[float], None] = time.sleep
        self._say = say
        self._write = write
        self._place: os.stat_result | None = None
        self._tally = Tally(path.parent)
        self._rows: Counter[str] = Counter()
        try:
            self._connection = sqlite3.connect(self.uri, uri=True, isolation_level=None, timeout=OPENING_SECONDS)
        except sqlite3.Error as error:
            raise self._opening_error(error) from error
        try:
            self._prepare_to_write() if write else self._prepare_to_read()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self.close()
            raise self._opening_error(error) from error
        except BaseException:
            self.close()
            raise

    def _prepare_to_write(self) -> None:
        # FULL: a commit is on the disk before anything follows from it.
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        if read_schema(self._connection) == migrations.EMPTY:
            self._transact("layout", self._create_tables)
        self._check_schema()
        while read_schema(self._connection) < migrations.SCHEMA:
            self._transact("migration", lambda connection: migrations.step_up(connection, self.path.parent))
        self._connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")
        self._place = os.stat(self.path)
        self._rows.update({table: self._count(table) for table in KEYS})
        for table in KEYS:
            self.check_count(table, self._rows[table], self.written(table))

    def _prepare_to_read(self) -> None:
        self._check_schema()
        if read_schema(self._connection) < migrations.SCHEMA:
            # The file stays as it is; the copy in memory ends with its last connection.
            self.uri = f"file:autoloss-{secrets.token_hex(8)}?mode=memory&cache=shared"
            copy = sqlite3.connect(self.uri, uri=True, isolation_level=None)
            self._connection.backup(copy)
            self._connection.close()
            self._connection, self.is_copy = copy, True
            copy.execute("BEGIN")
            while read_schema(copy) < migrations.SCHEMA:
                migrations.step_up(copy, None)
            copy.execute("COMMIT")

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        migrations.create_tables(connection)
        connection.execute(f"PRAGMA user_version = {migrations.SCHEMA}")
        self._tally.write({})

    def _check_schema(self) -> None:
        found = read_schema(self._connection)
        if found == migrations.EMPTY:
            # A file that lost its beginning looks as empty as one that never had any.
            for table in KEYS:
                self.check_count(table, 0, self.written(table))
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
            name: Of the transaction, as `crash_points.POINTS` has it.
            rows: Table and row.

        Raises:
            StoreError: The file is damaged.
        """

        self._check_place()

        def write(connection: sqlite3.Connection) -> None:
            for table, row in rows:
                insert(connection, table, row, replace=replace)

        self._transact(name, write)
        for table, _ in rows:
            self._rows[table] = self._count(table) if replace else self._rows[table] + 1
        self._tally.write(self._rows)
        crash_point(f"{name}-counted")

    def _check_place(self) -> None:
        """Refuse to write to a file that nobody would find."""
        with suppress(OSError):
            if self._place is None or os.path.samestat(os.stat(self.path), self._place):
                return
        raise StoreError(
            f"{self.path} was moved, replaced or deleted while the run wrote to it. What was finished is where it was moved to: "
            "resume it there."
        )

    def _transact(self, name: str, write: Write) -> None:
        """Repeat a transaction until there is room for it, and nobody else writes."""
        over = ""
        while True:
            try:
                self._try(name, write)
                break
            except sqlite3.DatabaseError as error:
                cause = _passing_cause(error)
                if not self._write or isinstance(error, sqlite3.IntegrityError):
                    # A mistake of the code that calls.
                    raise
                if cause is None:
                    raise StoreError(f"{self.path} cannot be written: {error}. {advise(error, self.path)}") from error
                if not over:
                    self._say(f"{self.path} cannot be written: {error}. {cause}: the run waits and loses nothing.")
                over = "There is room again" if _code(error) in NO_ROOM else "It is no longer locked"
            self.rest(RETRY_SECONDS)
        if over:
            self._say(f"{over}; the run goes on.")

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

    def read_all(self, table: str) -> Iterator[dict[str, Any]]:
        """Read a table in the order of its key.

        Raises:
            StoreError: A row is damaged, or rows are missing.
        """
        # Looked up first: rows that are appended meanwhile do no harm.
        least = self.written(table)
        found = 0
        for row in self.read_rows(table):
            found += 1
            yield row
        self.check_count(table, found, least)

    def read_rows(self, table: str, where: str = "TRUE") -> Iterator[dict[str, Any]]:
        """Read rows of a table in the order of its key.

        Raises:
            StoreError: A row is damaged, or the file is.
        """

        def refuse(key: Any, error: StoreError) -> None:
            raise error

        names, rows = self.check_rows(table, where, refuse)
        for row in rows:
            yield dict(zip(names, row, strict=True))

    def check_rows(
        self, table: str, where: str, damaged: Callable[[Any, StoreError], object]
    ) -> tuple[Sequence[str], Iterator[tuple[Any, ...]]]:
        """Read rows of a table in the order of its key.

        Args:
            damaged: Called with the key of each damaged row, which is left out, and with the error that names it.

        Returns:
            The names of the columns, `KEY` the last; and the rows.

        Raises:
            StoreError: The file is damaged; also while the rows are read.
        """

        def check() -> Iterator[tuple[Any, ...]]:
            with self._reading():
                yield from template.check(rows, refuse)

        def refuse(row: tuple[Any, ...]) -> None:
            damaged(row[-1], self.describe_damage(table, dict(zip(names, row, strict=True))))

        with self._reading():
            template, rows = self._select(table, where)
        names = (*template.names, KEY)
        return names, check()

    def _select(self, table: str, where: str) -> tuple[Template, Iterable[tuple[Any, ...]]]:
        """Return what checks the rows of a table, and the rows, each followed by its key."""
        described = self._connection.execute(f"PRAGMA table_info({table})").fetchall()
        template = Template({name: declared for _, name, declared, *_ in described})
        columns = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in template.names)
        key = KEYS[table]
        # A damaged index may hide rows of a table that is whole.
        query = f"SELECT {columns}, {key} FROM {table} NOT INDEXED WHERE {where} ORDER BY {key}"
        return template, self._connection.execute(query)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        # A damaged column may have another name, or one that is no text.
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StoreError(f"{self.path} cannot be read: {error}. {advise(error, self.path)}") from error

    def written(self, table: str) -> int:
        """Return how many rows a table has at least, as they were counted when they were written."""
        return migrations.count_by_table(self._tally.read())[table]

    def _count(self, table: str) -> int:
        # An index may hold more than its damaged table.
        return self._connection.execute(f"SELECT count(*) FROM {table} NOT INDEXED").fetchone()[0]

    def check_count(self, table: str, found: int, least: int) -> None:
        """Compare what was found of a table with what was written.

        Raises:
            StoreError: It lost rows.
        """
        if found < least:
            raise StoreError(
                f"{self.path} holds {found} rows of {table}, and {least} were written: the end of the file or of its log "
                f"({self.path.name}-wal) is damaged or missing. Restore the whole folder from a copy; or delete {self._tally.path} "
                "to go on from what is left."
            )

    def describe_damage(self, table: str, row: Mapping[str, Any], why: str = "its checksum does not fit") -> StoreError:
        """Return the error that names a damaged row and, where it can be read, its candidate.

        Args:
            row: By the names of its columns, and its key as `KEY`.
        """
        candidate = row.get("candidate")
        owner = f" It belongs to candidate {candidate}." if isinstance(candidate, int) else ""
        return StoreError(
            f"{self.path}: the row of {table} with {KEYS[table]} {row[KEY]!r} is damaged ({why}).{owner} "
            "Restore the file from a copy."
        )

    def _opening_error(self, error: Exception) -> StoreError:
        return StoreError(f"{self.path} cannot be opened as a run: {error}. {advise(error, self.path)}")


def advise(error: Exception, path: Path) -> str:
    """Return what to do about a statement that failed."""
    if (cause := _passing_cause(error)) is not None:
        return f"{cause} and try again."
    if _kind(error) in REFUSED:
        return f"Let this user write to {path.parent} and its files, and go on with: autoloss resume {path.parent}"
    return "Restore the file from a copy, or start a new run in another directory."


def _passing_cause(error: Exception) -> str | None:
    """Return what to do about an error that passes without any harm to the run, None for another one."""
    if _code(error) in NO_ROOM:
        return "Make room on its disk"
    if _kind(error) in LOCKED:
        return "Another program has it locked: end what that program does with it"
    return None


def _code(error: Exception) -> int | None:
    return getattr(error, "sqlite_errorcode", None)


def _kind(error: Exception) -> int | None:
    code = _code(error)
    return None if code is None else code & PRIMARY
