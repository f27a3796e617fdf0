"""What readers need of a run, in memory: rows that are new are checked, and SQL copies their shorter columns.

Rows are only ever appended, so a look costs what was added since the last one. A damaged row is left out and named.
"""

from __future__ import annotations

import json
import sqlite3
from importlib.resources import files
from typing import Any, final

from autoloss.errors import RequestError
from autoloss.search.jobs import Train
from autoloss.search.records import Outcome
from autoloss.store.database import Database
from autoloss.store.rows import StoreError, outcome_from_row, training_from_row

COLUMNS = {
    "training": "candidate, loss, state, score, also, step, reason, finished_at",
    "candidate": "id, parent, source, id, origin, kinds, loss, born_at",
    "rejected": "candidate, branch, attempt, formula, reason",
}
"""Table → the columns that are copied, in the order of `views.sql`. A candidate's root is its source's, or itself."""


@final
class MemoryCopy:
    """The rows of a run that were checked.

    Attributes:
        trainings: What the trainings beside the search came to.
        damaged: What could not be read, each row once, in words.
        last_change: When the newest candidate or training was written (Unix time), or None.

    Args:
        thorough: Also copy what was rejected and why, which tables of the best do not need.
    """

    def __init__(self, thorough: bool) -> None:
        self.trainings: dict[Train, Outcome] = {}
        self.damaged: dict[str, None] = {}
        self.last_change: float | None = None
        self._thorough = thorough
        self._next = {"training": 1, "candidate": 0, "rejected": 1}
        """Table → the key of the next row."""
        self._count = 0
        self._memory = sqlite3.connect(":memory:", uri=True, isolation_level=None, check_same_thread=False)
        self._memory.executescript(files("autoloss.store").joinpath("views.sql").read_text(encoding="utf-8"))

    @property
    def position(self) -> tuple[int, ...]:
        """How much was read; another one as soon as something was added."""
        return (*self._next.values(), len(self.damaged))

    def column(self, query: str, *values: object) -> list[Any]:
        """Return the one column of a query."""
        return [value for (value,) in self._memory.execute(query, values)]

    def pairs(self, query: str, *values: object) -> dict[Any, Any]:
        """Return the two columns of a query as keys and values."""
        return dict(self._memory.execute(query, values))

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a query by the names of their columns."""
        cursor = self._memory.execute(query, values)
        names = [name for name, *_ in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def extend(self, database: Database) -> None:
        """Add what is new.

        Raises:
            StoreError: The file is damaged.
        """
        # Looked up first: rows that are appended meanwhile do no harm.
        least = {table: database.written(table) for table in ("training", "candidate")}
        # Trainings first: a candidate that is appended in between then lacks its outcome, never the other way round.
        new = {table: self._check(database, table) for table in COLUMNS if table != "rejected" or self._thorough}
        self._memory.execute("ATTACH ? AS run", (database.uri,))
        try:
            for table, (last, damaged) in new.items():
                self._copy(table, last, damaged)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise StoreError(f"{database.path} cannot be read: {error}. Restore the file from a copy.") from error
        finally:
            self._memory.execute("DETACH run")
        self._read_beside(database, *new["training"])
        self._next.update({table: last + 1 for table, (last, _) in new.items()})
        times = (
            "SELECT max(time) FROM (SELECT born_at AS time FROM candidate UNION ALL SELECT finished_at FROM training)"
        )
        self.last_change = max(filter(None, [self.last_change, *self.column(times)]), default=None)
        for table, found in (("training", self._count), ("candidate", self._next["candidate"])):
            try:
                # What is missing before the end was named where it is.
                database.check_count(table, found, least[table])
            except StoreError as error:
                self.damaged[str(error)] = None

    def _check(self, database: Database, table: str) -> tuple[int, str]:
        """Check the new rows of a table; return the last key, and those of damaged rows as JSON."""
        last = self._next[table] - 1
        damaged: list[int] = []
        for key, error in database.check_rows(table, last + 1):
            if table == "candidate" and key > last + 1:
                text = f"{database.path}: candidate {last + 1} is missing. Restore the file from a copy."
                self.damaged[text] = None
            if table == "training":
                self._count += 1
            if error is not None:
                self.damaged[str(error)] = None
                damaged.append(key)
            last = key
        return last, json.dumps(damaged)

    def _copy(self, table: str, last: int, damaged: str) -> None:
        """Copy the new rows of a table but those that are damaged."""
        new = (self._next[table], last, damaged)
        where = "rowid BETWEEN ? AND ? AND rowid NOT IN (SELECT value FROM json_each(?))"
        if table == "training":
            where += " AND candidate IS NOT NULL"
            # These will never have an outcome. What is damaged may be the number.
            lost = "SELECT candidate FROM run.training WHERE rowid IN (SELECT value FROM json_each(?))"
            self._memory.execute(
                f"INSERT OR REPLACE INTO training (candidate) {lost} AND typeof(candidate) = 'integer'", (damaged,)
            )
        # A candidate that is promoted is trained again, longer: the later training replaces the earlier one.
        self._memory.execute(
            f"INSERT OR REPLACE INTO {table} SELECT {COLUMNS[table]} FROM run.{table} NOT INDEXED WHERE {where}", new
        )
        if table == "candidate" and self._thorough:
            self._memory.execute(
                "INSERT INTO total SELECT key, sum(value) FROM run.candidate, json_each(counts) "
                f"WHERE {where.replace('rowid', 'candidate.rowid')} GROUP BY key "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                new,
            )

    def _read_beside(self, database: Database, last: int, damaged: str) -> None:
        """Read the new trainings beside the search whole: tables and curves are made of them."""
        where = f"candidate IS NULL AND rowid BETWEEN {self._next['training']} AND {last}"
        where += f" AND rowid NOT IN ({damaged[1:-1]})"
        for row in database.read_rows("training", where):
            try:
                self.trainings[Train(row["loss"], training_from_row(row))] = outcome_from_row(row)
            except (ValueError, RequestError) as error:
                self.damaged[str(database.damage("training", row["rowid"], str(error)))] = None
            self.last_change = max(self.last_change or 0.0, row["finished_at"])
