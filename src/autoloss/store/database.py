"""One SQLite file with checksummed rows: opened by its one writer or by readers, damage named, a full disk waited for."""

from __future__ import annotations

import hashlib
import os
import shlex
import sqlite3
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError, RunError

SCHEMA = 11
"""Number of the tables in schema.sql, written to `PRAGMA user_version`; it changes with them."""
EMPTY = 0
"""Number of a file in which nothing was written yet."""
CHECKSUM = "checksum"
NUMBER = "number"
"""Name of the row's number beside its columns."""
RETRY_SECONDS = 5.0
"""Seconds between two tries to write to a full disk."""
LOG_PAGES = 100
"""The log is copied into the file when it is so long: a lost log takes some tens of transactions with it, never the run."""
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
"""Seconds to wait for a lock of another program before saying so: when the file is opened, and in each transaction."""
PRIMARY = 0xFF
"""The part of an extended error code that names its kind."""

Row = Mapping[str, Any]
Write = Callable[[sqlite3.Connection], object]
Say = Callable[[str], None]


class StoreError(RunError):
    """A store that cannot be read, or a damaged row of it."""


class SchemaError(RequestError):
    """A store of another release."""


def warn(text: str) -> None:
    """Issue a warning; the default when no callback is given."""
    warnings.warn(text, RuntimeWarning, stacklevel=2)


def ignore(*told: object) -> None:
    """Do nothing; the default of a callback that only informs."""


def insert(connection: sqlite3.Connection, table: str, row: Row, *, replace: bool = False) -> None:
    """Write a row with its checksum."""
    names = [name for _, name, *_ in connection.execute(f"PRAGMA main.table_info({table})") if name != CHECKSUM]
    values = [row[name] for name in names]
    verb, marks = "REPLACE" if replace else "INSERT", ", ".join("?" * (len(values) + 1))
    connection.execute(f"{verb} INTO main.{table} VALUES ({marks})", (*values, checksum(values)))


def checksum(values: Iterable[Any]) -> str:
    """Return sixteen hexadecimal digits of a row's values, in the order of its columns."""
    # SQLite stores -0.0 as 0.
    kept = tuple(value + 0.0 if isinstance(value, float) else value for value in values)
    return hashlib.blake2b(repr(kept).encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Database:
    """The file of one run.

    Attributes:
        connection: The connection to it, for queries.
        rest: Called with the seconds to wait while nothing can be written.

    Args:
        write: Open for writing, and create the file where there is none.
        say: Called when the disk is full or another program locks the file, once, and when that is over.
    """

    def __init__(self, path: Path, *, write: bool = False, say: Say = warn) -> None:
        self.path = path
        self.rest: Callable[[float], None] = time.sleep
        self._say = say
        self._write = write
        uri = f"{path.absolute().as_uri()}?mode={'rwc' if write else 'ro'}"
        with self.naming_errors("opened as a run"):
            self.connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, timeout=OPENING_SECONDS, check_same_thread=False
            )
            self.close = weakref.finalize(self, self.connection.close)
            try:
                self.connection.execute("PRAGMA temp_store = MEMORY")
                self._prepare_to_write() if write else None
                self._check()
                kept = [path, path.with_name(f"{path.name}-wal")] if write else [path]
                self._places = {file: os.stat(file) for file in kept}
            except BaseException:
                self.close()
                raise

    def _prepare_to_write(self) -> None:
        is_new = self._read_schema() == EMPTY
        # FULL: a commit is on the disk before anything follows from it.
        for setting in ("journal_mode = WAL", "synchronous = FULL", f"wal_autocheckpoint = {LOG_PAGES}"):
            self.connection.execute(f"PRAGMA {setting}")
        if is_new:
            self._transact(_create_tables)
        self.connection.execute(f"PRAGMA busy_timeout = {1000 * BUSY_SECONDS:.0f}")

    def _read_schema(self) -> int:
        # Tables first: a writer that makes them meanwhile sets their number with them.
        tables = self.connection.execute("SELECT name FROM sqlite_master").fetchone()
        (found,) = self.connection.execute("PRAGMA user_version").fetchone()
        if tables and found == EMPTY:
            raise StoreError(f"{self.path} holds the tables of another program. Name another directory.")
        return found

    def _check(self) -> None:
        found = self._read_schema()
        if found == EMPTY:
            raise before_it_began(self.path)
        if found != SCHEMA:
            raise SchemaError(
                f"{self.path} was written by schema {found}; this release reads schema {SCHEMA}. "
                "Open it with the release that wrote it, or start a new run in another directory."
            )
        (wrong,) = self.connection.execute("PRAGMA integrity_check(1)").fetchone()
        if wrong != "ok":
            raise StoreError(f"{self.path} is damaged: {wrong.splitlines()[-1]}. Restore the file from a copy.")

    @property
    def in_place(self) -> bool:
        """True if the file, and the log of a writer, are still where they were opened."""
        try:
            return all(os.path.samestat(os.stat(file), place) for file, place in self._places.items())
        except OSError:
            return False

    def append(self, rows: Sequence[tuple[str, Row]], *, replace: bool = False) -> None:
        """Write rows, all or none; they are synced when this returns. A full disk is waited for, and nothing is lost meanwhile.

        Raises:
            StoreError: The file is damaged, or is no longer where it was.
        """
        if not self.in_place:
            raise StoreError(
                f"{self.path} or its log was moved, replaced or deleted while the run wrote to it. What was finished is where it "
                "was moved to: resume it there."
            )

        def write(connection: sqlite3.Connection) -> None:
            for table, row in rows:
                insert(connection, table, row, replace=replace)

        self._transact(write)

    def _transact(self, write: Write) -> None:
        """Repeat a transaction until there is room for it, and nobody else writes."""
        over = ""
        while True:
            try:
                self._try(write)
                break
            except sqlite3.DatabaseError as error:
                cause = _passing_cause(error)
                if not self._write or isinstance(error, sqlite3.IntegrityError):
                    # A mistake of the code that calls.
                    raise
                if cause is None:
                    raise StoreError(f"{self.path} cannot be written: {error}. {_advise(error, self.path)}") from error
                if not over:
                    self._say(f"{self.path} cannot be written: {error}. {cause}: the run waits and loses nothing.")
                over = "There is room again" if _code(error) in NO_ROOM else "It is no longer locked"
            self.rest(RETRY_SECONDS)
        if over:
            self._say(f"{over}; the run goes on.")

    def _try(self, write: Write) -> None:
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            write(self.connection)
            self.connection.execute("COMMIT")
        finally:
            # After some errors SQLite has rolled back already, after others it waits for us.
            if self.connection.in_transaction:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")

    def read(
        self, table: str, where: str = "TRUE", damaged: Callable[[int, StoreError], object] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Read rows in the order of their numbers, each compared with its checksum.

        Args:
            damaged: Called with the number of each damaged row, which is left out, and with the error that names it.
        """
        with self.naming_errors("read"):
            query = f"SELECT rowid AS {NUMBER}, * FROM main.{table} WHERE {where} ORDER BY rowid"
            cursor = self.connection.execute(query)
            names = [name for name, *_ in cursor.description]
            for values in cursor:
                row = dict(zip(names, values, strict=True))
                if checksum(values[1:-1]) == row[CHECKSUM]:
                    yield row
                    continue
                error = self.describe_damage(table, row, "its checksum does not fit")
                if damaged is None:
                    raise error
                damaged(row[NUMBER], error)

    def describe_damage(self, table: str, row: Row, why: str) -> StoreError:
        """Return the error that names a damaged row and, where it can be read, its candidate."""
        candidate = row.get("candidate")
        owner = f" It belongs to candidate {candidate}." if isinstance(candidate, int) else ""
        place = f"{self.path}: row {row[NUMBER]} of {table}"
        return StoreError(f"{place} is damaged ({why}).{owner} Restore the file from a copy.")

    @contextmanager
    def naming_errors(self, what: str) -> Iterator[None]:
        """Turn errors of SQLite into a `StoreError` that names the file: it cannot be `what`."""
        try:
            yield
        except RequestError:
            raise
        # A damaged column may have another name, or one that is no text.
        except (sqlite3.Error, ValueError, KeyError) as error:
            if _code(error) == sqlite3.SQLITE_READONLY_ROLLBACK:
                # SQLite has such a journal only while it makes the file; the next writer rolls it back.
                raise before_it_began(self.path) from error
            raise StoreError(f"{self.path} cannot be {what}: {error}. {_advise(error, self.path)}") from error


def _create_tables(connection: sqlite3.Connection) -> None:
    for statement in read_script("schema.sql").split(";\n"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {SCHEMA}")


def read_script(name: str) -> str:
    """Return a file of SQL statements that the package holds."""
    return files("autoloss.store").joinpath(name).read_text(encoding="utf-8")


def before_it_began(path: Path) -> RequestError:
    """Return the error that says of a run's file that nothing was written to it yet."""
    return RequestError(f"The run in {path.parent} was stopped before it began; start it again.")


def resume_command(directory: Path) -> str:
    """Return the command that goes on with a run, as it is typed in a shell.

    >>> resume_command(Path("my runs"))
    "autoloss resume 'my runs'"
    """
    return shlex.join(["autoloss", "resume", str(directory)])


def _advise(error: Exception, path: Path) -> str:
    """Return what to do about a statement that failed."""
    if (cause := _passing_cause(error)) is not None:
        return f"{cause} and try again."
    if _code(error) & PRIMARY in REFUSED:
        return f"Let this user write to {path.parent} and its files, and go on with: {resume_command(path.parent)}"
    return "Restore the file from a copy, or start a new run in another directory."


def _passing_cause(error: Exception) -> str | None:
    """Return what to do about an error that passes without any harm to the run, None for another one."""
    if _code(error) in NO_ROOM:
        return "Make room on its disk"
    return "Another program has locked it: close that program" if _code(error) & PRIMARY in LOCKED else None


def _code(error: Exception) -> int:
    return getattr(error, "sqlite_errorcode", 0)
