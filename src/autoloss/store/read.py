"""A run while it grows: each look reads what is new, and SQL views rank, count and join what was read.

Rows are only ever appended, so a look costs what was added since the last one. Every row is checked when it is first read, and
one that is damaged is left out and named. What tables show is kept in memory; curves, keys and signatures are read from the file
and checked again when they are shown. No torch is imported.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, final

from autoloss.errors import RequestError
from autoloss.search.jobs import Train
from autoloss.search.records import Candidate, Individual, Origin, Outcome, State
from autoloss.store.database import Database
from autoloss.store.lock import owner_lives
from autoloss.store.rows import StoreError, outcome_from_row, training_from_row
from autoloss.store.store import Store

_CANDIDATE = ("id", "parent", "source", "origin", "kinds", "loss", "counts", "born_at")
_KEY = ("seed", "split", "schedule", "fidelity", "learning_rate", "scale")
_OUTCOME = ("state", "score", "also", "step", "reason", "curve", "seconds", "finished_at")
_TRAINING = ("rowid", "candidate", "loss", *_OUTCOME, *_KEY)
_REJECTED = ("rowid", "candidate", "branch", "attempt", "formula", "reason")
_ORIGINS = frozenset(origin.value for origin in Origin)
_STATES = frozenset(state.value for state in State)
_CALL = re.compile(r"(\w+)\(")
_SCORE = "(SELECT score FROM settled WHERE settled.id = c.id) AS score"
_KEPT = "EXISTS (SELECT 1 FROM json_each(c.kinds) WHERE value <> 'fresh')"
"""Something of the parent went into candidate c."""


@final
class Reader:
    """What is known of a run, look by look.

    Numbers are those of candidates. A candidate is settled when it has an outcome, its own or a shared one; candidates that are
    still in training may lie between those that are settled.

    Attributes:
        settings: The settings of the run.
        trainings: What the trainings beside the search came to.
        damaged: What could not be read, each row once, in words.
        last_change: When the newest candidate or training was written (Unix time), or None.
        alive: Whether the process that drives the run lives; None where that cannot be told.

    Args:
        directory: The run's folder.
        thorough: Also read what was rejected and why, which tables of the best do not need.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: The file is no store, or its settings are damaged.
    """

    def __init__(self, directory: Path, *, thorough: bool = True) -> None:
        self.directory = directory
        self.settings: Mapping[str, str] = {}
        self.alive: bool | None = None
        self._thorough = thorough
        self._begin()
        self.look()

    def _begin(self) -> None:
        self.trainings: dict[Train, Outcome] = {}
        self.damaged: dict[str, None] = {}
        self.last_change: float | None = None
        self._next_candidate = self._last_training = self._last_rejected = self._training_count = 0
        self._operators: list[frozenset[str]] = []
        self._next_operators = 0
        self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._memory.executescript(files("autoloss.store").joinpath("views.sql").read_text(encoding="utf-8"))

    def look(self) -> bool:
        """Read what is new, and say whether anything is."""
        before = self._state()
        with Store(self.directory) as store:
            self.settings = store.started()
            if store.database.is_copy:
                # Rows of an older schema are numbered anew with each copy.
                self._begin()
            self._memory.execute("BEGIN")
            try:
                self._read(store.database)
            finally:
                self._memory.execute("COMMIT")
        self.alive = owner_lives(self.directory)
        return before != self._state()

    def _state(self) -> tuple[object, ...]:
        counts = (self._next_candidate, self._training_count, self._last_rejected, len(self.damaged))
        return (*counts, self.alive, self.settings)

    def _read(self, database: Database) -> None:
        # Looked up first: rows that are appended meanwhile do no harm.
        least = {table: database.written(table) for table in ("candidate", "training")}
        first = self._next_candidate
        # Trainings first: a candidate that is appended in between then lacks its outcome, never the other way round.
        add_training = "INSERT OR REPLACE INTO training VALUES (?, ?, ?, ?, ?, ?, ?)"
        self._memory.executemany(add_training, self._new_trainings(database))
        root = "iif(?3 IS NULL, ?1, (SELECT root FROM candidate WHERE id = ?3))"
        add_candidate = f"INSERT INTO candidate VALUES (?1, ?2, ?3, {root}, ?4, ?5, ?6, ?7, ?8)"
        self._memory.executemany(add_candidate, self._new_candidates(database))
        if self._thorough:
            self._memory.executemany("INSERT INTO rejected VALUES (?, ?, ?, ?, ?)", self._new_rejected(database))
            self._memory.execute(
                "INSERT INTO total SELECT key, sum(value) FROM candidate, json_each(counts) WHERE candidate.id >= ? GROUP BY key "
                "ON CONFLICT DO UPDATE SET count = count + excluded.count",
                (first,),
            )
        for table, found in (("candidate", self._next_candidate), ("training", self._training_count)):
            try:
                # What is missing before the end was named where it is.
                database.check_count(table, found, least[table])
            except StoreError as error:
                self.damaged[str(error)] = None

    def _new_trainings(self, database: Database) -> Iterator[tuple[Any, ...]]:
        """Yield the new trainings of the search, and keep those beside it."""

        def leave_out(row: tuple[Any, ...], error: StoreError) -> None:
            self._last_training = row[0]
            self._training_count += 1
            self.damaged[str(error)] = None
            if isinstance(row[1], int):
                self._memory.execute("INSERT OR REPLACE INTO training (candidate) VALUES (?)", (row[1],))

        where = f"rowid > {self._last_training}"
        for row in database.read_columns("training", _TRAINING, where, leave_out):
            number, candidate, loss, state, score, also, step, reason, *_, finished_at = row[: 3 + len(_OUTCOME)]
            if state not in _STATES:
                leave_out(row, database.damage("training", number, f"its state is {state!r}"))
                continue
            if candidate is None:
                try:
                    self._keep(dict(zip(_TRAINING, row, strict=True)))
                except (ValueError, RequestError) as error:
                    leave_out(row, database.damage("training", number, str(error)))
                    continue
            self._last_training = number
            self._training_count += 1
            self.last_change = max(self.last_change or 0.0, finished_at)
            if candidate is not None:
                yield candidate, loss, state, score, also, step, reason

    def _keep(self, row: Mapping[str, Any]) -> None:
        self.trainings[Train(row["loss"], training_from_row(row))] = outcome_from_row(row)

    def _new_candidates(self, database: Database) -> Iterator[tuple[Any, ...]]:
        def leave_out(row: tuple[Any, ...], error: StoreError) -> None:
            self._next_candidate = row[0] + 1
            self.damaged[str(error)] = None

        for row in database.read_columns("candidate", _CANDIDATE, f"id >= {self._next_candidate}", leave_out):
            number, origin, born_at = row[0], row[3], row[-1]
            if number > self._next_candidate:
                text = f"{database.path}: candidate {self._next_candidate} is missing. Restore the file from a copy."
                self.damaged[text] = None
            if origin not in _ORIGINS:
                leave_out(row, database.damage("candidate", number, f"its origin is {origin!r}"))
                continue
            self._next_candidate = number + 1
            self.last_change = max(self.last_change or 0.0, born_at)
            yield row

    def _new_rejected(self, database: Database) -> Iterator[tuple[Any, ...]]:
        def leave_out(row: tuple[Any, ...], error: StoreError) -> None:
            self._last_rejected = row[0]
            self.damaged[str(error)] = None

        for row in database.read_columns("rejected", _REJECTED, f"rowid > {self._last_rejected}", leave_out):
            self._last_rejected = row[0]
            yield row[1:]

    def _rows(self, query: str, *values: object) -> list[dict[str, Any]]:
        cursor = self._memory.execute(query, values)
        names = [name for name, *_ in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def _pairs(self, query: str, *values: object) -> dict[Any, Any]:
        return dict(self._memory.execute(query, values))

    def _column(self, query: str, *values: object) -> list[Any]:
        return [value for (value,) in self._memory.execute(query, values)]

    @property
    def ranking(self) -> list[int]:
        """The candidates that were trained to a score, the best first; twins and copies are not listed again."""
        return self._column("SELECT id FROM ranking")

    @property
    def best_by_size(self) -> list[int]:
        """The best candidate of each size that is better than all smaller ones, the smallest first."""
        return self._column("SELECT id FROM best_by_size")

    @property
    def settled(self) -> list[int]:
        """The candidates with an outcome, in order."""
        return self._column("SELECT id FROM settled ORDER BY id")

    @property
    def scores(self) -> list[float]:
        """The scores of the trainings of the search, in the order of their candidates."""
        return self._column("SELECT score FROM trained WHERE score IS NOT NULL ORDER BY id")

    @property
    def states(self) -> dict[State, int]:
        """How many trainings of the search came to what."""
        counts = self._pairs("SELECT state, count(*) FROM trained GROUP BY state")
        return {State(state): count for state, count in counts.items()}

    @property
    def count(self) -> int:
        """How many candidates are settled."""
        return self._column("SELECT count(*) FROM settled")[0]

    @property
    def latest(self) -> int:
        """The number of the last settled candidate; 0 where there is none."""
        return self._column("SELECT coalesce(max(id), 0) FROM settled")[0]

    @property
    def totals(self) -> dict[str, int]:
        """Sums of `Candidate.counts`: sampled, simulated, passed, reused, and rejections by the name of their reason."""
        return self._pairs("SELECT name, count FROM total")

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The first loss that was kept of those rejected for each reason: reason, candidate, branch and formula."""
        return self._rows("SELECT * FROM example")

    @property
    def operators(self) -> Sequence[frozenset[str]]:
        """The names of the operators that each candidate holds, in the order of their numbers."""
        sets: dict[frozenset[str], frozenset[str]] = {}
        query = "SELECT id, loss FROM candidate WHERE id >= ? ORDER BY id"
        for number, loss in self._memory.execute(query, (self._next_operators,)):
            found = frozenset(_CALL.findall(loss))
            self._operators.append(sets.setdefault(found, found))
            self._next_operators = number + 1
        return self._operators

    @property
    def running(self) -> list[dict[str, Any]]:
        """The candidates that are to be trained and have no outcome yet: id, loss, and born_at (Unix time)."""
        return self._rows("SELECT * FROM running")

    @property
    def unscored(self) -> list[dict[str, Any]]:
        """Trainings of the search without a score by state and line of the reason: count, and id, loss and step of the first."""
        return self._rows("SELECT * FROM unscored")

    @property
    def newest(self) -> int | None:
        """The number of the newest candidate, or None before there is one."""
        return self._column("SELECT max(id) FROM candidate")[0]

    def further_metrics(self, count: int) -> list[str]:
        """Return the names of the metrics beside the score that so many of the best, and of the latest, measured."""
        best = self._column("SELECT also FROM ranking LIMIT ?", count)
        latest = self._column("SELECT also FROM settled ORDER BY id DESC LIMIT ?", count)
        return list(dict.fromkeys(name for also in [*best, *latest] for name in json.loads(also)))

    def losses(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return settled candidates: id, loss, state, score, also (JSON), and size, the number of operators."""
        rows = self._rows("SELECT * FROM settled WHERE id IN (SELECT value FROM json_each(?))", json.dumps([*numbers]))
        found = {row["id"]: row for row in rows}
        return [found[number] for number in numbers if number in found]

    def times_found(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return how often each loss was found: itself, its twins and its copies."""
        wanted = "SELECT value FROM json_each(?)"
        query = f"SELECT root, count(*) FROM candidate WHERE root IN ({wanted}) GROUP BY root"
        return self._pairs(query, json.dumps([*numbers]))

    def offspring(self, number: int) -> list[dict[str, Any]]:
        """Return id, loss and score of the candidates that something of a loss went into, in order."""
        return self._rows(f"SELECT id, loss, {_SCORE} FROM candidate AS c WHERE parent = ? AND {_KEPT}", number)

    def lineage(self, number: int) -> list[tuple[Candidate, float | None]]:
        """Return a loss and its ancestors with their scores, itself first; one that is damaged ends the line.

        Raises:
            StoreError: A row is damaged.
        """
        line = (
            "WITH RECURSIVE line (id, parent, kinds) AS (SELECT id, parent, kinds FROM candidate WHERE id = ? "
            "UNION ALL SELECT p.id, p.parent, p.kinds FROM line AS c JOIN candidate AS p ON p.id = c.parent "
            f"WHERE p.id < c.id AND {_KEPT}) SELECT id, {_SCORE} FROM line AS c ORDER BY id DESC"
        )
        scores = self._pairs(line, number)
        with Store(self.directory) as store:
            found = store.candidates_of(scores)
        return [(_present(found.get(one), self.directory, one), score) for one, score in scores.items()]

    def trained_loss(self, number: int) -> str | None:
        """Return the loss whose training decides the outcome of a candidate, or None where that is not known."""
        found = self._column("SELECT loss FROM candidate WHERE id = (SELECT root FROM candidate WHERE id = ?)", number)
        return found[0] if found else None

    def outcome(self, number: int) -> Outcome | None:
        """Return what a candidate came to, itself or by the one whose outcome it shares, or None before that.

        Raises:
            StoreError: A row is damaged.
        """
        roots = self._column("SELECT root FROM settled WHERE id = ?", number)
        if not roots:
            return None
        with Store(self.directory) as store:
            return _present(store.outcomes_of(roots).get(roots[0]), self.directory, roots[0])

    def history(self) -> list[Individual]:
        """Return the candidates before the first without an outcome.

        Raises:
            StoreError: A row is damaged.
        """
        settled = self._pairs("SELECT id, root FROM settled ORDER BY id")
        roots = [root for position, (number, root) in enumerate(settled.items()) if number == position]
        with Store(self.directory) as store:
            outcomes, candidates = store.outcomes(), list(store.candidates())
        return [Individual(candidates[number], outcomes[root]) for number, root in enumerate(roots)]


def _present(found: Any, directory: Path, number: int) -> Any:
    if found is None:
        raise StoreError(f"A row of candidate {number} in {directory} is missing. Restore the file from a copy.")
    return found


def read_once(directory: str | Path, *, thorough: bool = False) -> Reader:
    """Read a run once, as far as it is.

    Args:
        thorough: As of a `Reader`.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: A row is damaged.
    """
    found = Reader(Path(directory), thorough=thorough)
    for problem in found.damaged:
        raise StoreError(problem)
    return found
