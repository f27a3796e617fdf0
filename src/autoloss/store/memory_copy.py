"""What readers need of a run, in memory: rows that are new are checked, and SQL copies their shorter columns.

Rows are only ever appended, so a look costs what was added since the last one. A damaged row is left out and named.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from importlib.resources import files
from itertools import pairwise
from typing import Any, final

from autoloss.errors import RequestError
from autoloss.search.jobs import Train
from autoloss.search.records import Origin, Outcome, State
from autoloss.store.database import KEY, KEYS, Database
from autoloss.store.rows import StoreError, outcome_from_row, training_from_row

COLUMNS = {
    "training": "candidate, loss, state, score, also, step, reason, finished_at",
    "candidate": "id, parent, source, iif(source IS NULL, id, NULL), origin, kinds, loss, born_at",
    "rejected": "candidate, branch, attempt, formula, reason",
}
"""Table → the columns that are copied, in the order of `views.sql`."""
ALLOWED = {
    "training": ("state", frozenset(state.value for state in State)),
    "candidate": ("origin", frozenset(origin.value for origin in Origin)),
}
"""Table → a column and the values that it may have."""
FIND_ROOTS = """
UPDATE candidate SET root = (SELECT root FROM candidate AS s WHERE s.id = candidate.source)
WHERE root IS NULL AND id >= ? AND EXISTS (SELECT 1 FROM candidate AS s WHERE s.id = candidate.source AND s.root IS NOT NULL)
"""
"""The root of a twin or a copy is that of its source."""


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
        self._answers: dict[tuple[str, tuple[object, ...]], list[Any]] = {}
        self._memory = sqlite3.connect(":memory:", uri=True, isolation_level=None, check_same_thread=False)
        self._memory.executescript(files("autoloss.store").joinpath("views.sql").read_text(encoding="utf-8"))

    @property
    def position(self) -> tuple[int, ...]:
        """How much was read; another one as soon as something was added."""
        return (*self._next.values(), len(self.damaged))

    def stream(self, query: str, *values: object) -> sqlite3.Cursor:
        """Run a query."""
        return self._memory.execute(query, values)

    def rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a query by the names of their columns; one that is repeated before the next look is not run again."""
        if (query, values) not in self._answers:
            cursor = self.stream(query, *values)
            names = [name for name, *_ in cursor.description]
            self._answers[query, values] = [dict(zip(names, row, strict=True)) for row in cursor]
        return self._answers[query, values]

    def column(self, query: str, *values: object) -> list[Any]:
        """Return the one column of a query, likewise."""
        if (query, values) not in self._answers:
            self._answers[query, values] = [value for (value,) in self.stream(query, *values)]
        return self._answers[query, values]

    def pairs(self, query: str, *values: object) -> dict[Any, Any]:
        """Return the two columns of a query as keys and values."""
        return dict(self.stream(query, *values).fetchall())

    def extend(self, database: Database) -> None:
        """Add what is new.

        Raises:
            StoreError: The file is damaged.
        """
        self._answers.clear()
        # Looked up first: rows that are appended meanwhile do no harm.
        least = {table: database.written(table) for table in ("training", "candidate")}
        try:
            # Trainings first: a candidate that is appended in between then lacks its outcome, never the other way round.
            new = {table: self._check(database, table) for table in COLUMNS if table != "rejected" or self._thorough}
            self._memory.execute("ATTACH ? AS run", (database.uri,))
            try:
                for table, (last, damaged) in new.items():
                    self._copy(table, last, damaged)
            finally:
                self._memory.execute("DETACH run")
        # A column has another name, or its text is none.
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StoreError(f"{database.path} cannot be read: {error}. Restore the file from a copy.") from error
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
        first = self._next[table]
        kept: list[int] = []
        damaged: list[int] = []

        def leave_out(key: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            damaged.append(key)

        names, rows = database.check_rows(table, f"{KEYS[table]} >= {first}", leave_out)
        column, values = ALLOWED.get(table, (KEY, None))
        place, candidate = names.index(column), names.index("candidate" if table == "training" else KEY)
        for row in rows:
            why = None
            if values is not None and row[place] not in values:
                why = f"its {column} is {row[place]!r}"
            elif row[candidate] is None:
                why = self._keep(dict(zip(names, row, strict=True)))
            if why is None:
                kept.append(row[-1])
            else:
                leave_out(row[-1], database.damage(table, row[-1], why))
        keys = sorted([*kept, *damaged]) if damaged else kept
        if table == "training":
            self._count += len(keys)
        for before, key in pairwise([first - 1, *keys] if table == "candidate" else []):
            if key > before + 1:
                missing = f"{database.path}: candidate {before + 1} is missing. Restore the file from a copy."
                self.damaged[missing] = None
        return keys[-1] if keys else first - 1, json.dumps(damaged)

    def _keep(self, row: Mapping[str, Any]) -> str | None:
        """Keep a training beside the search whole: tables and curves are made of it. Returns why it cannot be one."""
        self.last_change = max(self.last_change or 0.0, row["finished_at"])
        try:
            self.trainings[Train(row["loss"], training_from_row(row))] = outcome_from_row(row)
        except (ValueError, RequestError) as error:
            return str(error)
        return None

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
        while table == "candidate" and self._memory.execute(FIND_ROOTS, new[:1]).rowcount:
            # Sources of sources are found by the next turn.
            pass
        if table == "candidate" and self._thorough:
            self._memory.execute(
                "INSERT INTO total SELECT key, sum(value) FROM run.candidate, json_each(counts) "
                f"WHERE {where.replace('rowid', 'candidate.rowid')} GROUP BY key "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                new,
            )
