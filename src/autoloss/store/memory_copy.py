"""What readers need of a run, in memory: rows that are new are checked, and SQL copies their shorter columns.

Rows are only ever appended, so a look costs what was added since the last one. A damaged row is left out and named.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any, final

from autoloss.proposing.jobs import Train
from autoloss.proposing.records import REASON_CHARACTERS, Origin, Outcome, State
from autoloss.store.database import KEY, KEYS, Database, advise
from autoloss.store.rows import StoreError, outcome_from_row, training_from_row

COLUMNS = {
    "training": f"candidate, loss, fidelity, state, score, also, step, substr(reason, 1, {REASON_CHARACTERS}), finished_at",
    "candidate": "id, parent, source, iif(source IS NULL, id, NULL), origin, kinds, loss, fidelity, born_at",
    "rejected": "candidate, branch, attempt, formula, reason",
}
"""Table → the columns that are copied, in the order of `views.sql`."""
ALLOWED = {
    "training": ("state", frozenset(state.value for state in State)),
    "candidate": ("origin", frozenset(origin.value for origin in Origin)),
}
"""Table → a column and the values that it may have."""
NEW = "rowid BETWEEN ? AND ? AND rowid NOT IN (SELECT value FROM json_each(?))"
LOSE = """
INSERT OR REPLACE INTO training (candidate) SELECT candidate FROM run.training
WHERE rowid IN (SELECT value FROM json_each(?)) AND typeof(candidate) = 'integer'
"""
"""A candidate whose training is damaged will have no outcome. What is damaged may be the number."""
FIND_ROOTS = """
UPDATE candidate SET root = (SELECT root FROM candidate AS s WHERE s.id = candidate.source)
WHERE root IS NULL AND id >= ? AND EXISTS (SELECT 1 FROM candidate AS s WHERE s.id = candidate.source AND s.root IS NOT NULL)
"""
"""The root of a twin or a copy is that of its source."""
ADD_COUNTS = f"""
INSERT INTO total SELECT key, sum(value) FROM (SELECT counts FROM run.candidate WHERE {NEW}), json_each(counts)
WHERE true GROUP BY key ON CONFLICT DO UPDATE SET count = count + excluded.count
"""
LAST_CHANGE = "SELECT max(time) FROM (SELECT born_at AS time FROM candidate UNION ALL SELECT finished_at FROM training)"


@dataclass(frozen=True, slots=True)
class _New:
    """New rows of a table.

    Args:
        last: Key of the last one.
        damaged: Keys of those that are damaged, as JSON.
    """

    last: int
    count: int
    damaged: str


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
        """Run a query.

        Raises:
            StoreError: What was copied cannot be read: a checksum says that a text was written so, not that it is JSON.
        """
        try:
            return self._memory.execute(query, values)
        except sqlite3.DatabaseError as error:
            raise StoreError(f"The run cannot be read: {error}. Restore its folder from a copy.") from error

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
            self._copy_all(database, new)
        # A column has another name, or its text is none.
        except (sqlite3.DatabaseError, ValueError) as error:
            raise StoreError(f"{database.path} cannot be read: {error}. {advise(error, database.path)}") from error
        self._next.update({table: rows.last + 1 for table, rows in new.items()})
        self._count += new["training"].count
        self.last_change = max(filter(None, [self.last_change, *self.column(LAST_CHANGE)]), default=None)
        for table, found in (("training", self._count), ("candidate", self._next["candidate"])):
            try:
                # What is missing before the end was named where it is.
                database.check_count(table, found, least[table])
            except StoreError as error:
                self.damaged[str(error)] = None

    def _check(self, database: Database, table: str) -> _New:
        """Check the new rows of a table, and keep trainings beside the search."""
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
                leave_out(row[-1], database.describe_damage(table, dict(zip(names, row, strict=True)), why))
        keys = sorted([*kept, *damaged]) if damaged else kept
        if table == "candidate":
            self._name_gaps(database.path, [first - 1, *keys])
        return _New(keys[-1] if keys else first - 1, len(keys), json.dumps(damaged))

    def _keep(self, row: Mapping[str, Any]) -> str | None:
        """Keep a training beside the search whole, for tables and curves; return why it cannot be one."""
        self.last_change = max(self.last_change or 0.0, row["finished_at"])
        try:
            self.trainings[Train(row["loss"], training_from_row(row))] = outcome_from_row(row)
        except StoreError as error:
            return str(error.__cause__ or error)
        return None

    def _name_gaps(self, path: Path, numbers: Sequence[int]) -> None:
        for before, number in pairwise(numbers):
            if number > before + 1:
                text = f"{path}: candidate {before + 1} is missing. Restore the file from a copy."
                self.damaged[text] = None

    def _copy_all(self, database: Database, new: Mapping[str, _New]) -> None:
        """Copy new rows, all or none."""
        self._memory.execute("ATTACH ? AS run", (database.uri,))
        try:
            self._memory.execute("BEGIN")
            for table, rows in new.items():
                self._copy(table, rows)
            self._memory.execute("COMMIT")
        finally:
            if self._memory.in_transaction:
                self._memory.execute("ROLLBACK")
            self._memory.execute("DETACH run")

    def _copy(self, table: str, new: _New) -> None:
        """Copy the new rows of a table but those that are damaged."""
        first, where = self._next[table], NEW
        if table == "training":
            self._memory.execute(LOSE, (new.damaged,))
            where += " AND candidate IS NOT NULL"
        values = (first, new.last, new.damaged)
        copy = f"INSERT OR REPLACE INTO {table} SELECT {COLUMNS[table]} FROM run.{table} NOT INDEXED WHERE {where}"
        self._memory.execute(copy, values)
        if table == "candidate":
            # Sources of sources are found by the next turn.
            while self._memory.execute(FIND_ROOTS, (first,)).rowcount:
                pass
            if self._thorough:
                self._memory.execute(ADD_COUNTS, values)
