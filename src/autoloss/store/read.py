"""A run while it grows: each look checks the rows that are new, and SQL views of the file rank, count and join them.

A look shows the run as it was then, whatever is appended later; no transaction stays open in between. No torch is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from autoloss.proposing.records import Candidate, Individual, Origin, Outcome, State, Train
from autoloss.store.database import NUMBER, Row, read_script
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import Pool, Store, StoreError, outcome_from_row, owner_lives, read_figures, training_from_row

MOST_ROWS = 2**63 - 1
"""The largest integer of SQLite."""
TABLES = ("candidate", "training", "rejected")
ALLOWED = {
    "candidate": ("origin", frozenset(origin.value for origin in Origin)),
    "training": ("state", frozenset(state.value for state in State)),
}
"""Table → a column and the values that it may have."""
_CALL = re.compile(r"(\w+)\(")
_SCORE = "(SELECT score FROM settled WHERE settled.id = c.id) AS score"
_KEPT = "EXISTS (SELECT 1 FROM json_each(c.kinds) WHERE value <> 'fresh')"
"""Something of the parent went into candidate c."""


@final
class Reader:
    """The state of a run as of the last look at its store.

    Numbers are those of candidates. A candidate is settled when it has an outcome, its own or a shared one; candidates that are
    still in training may lie between those that are settled.

    Attributes:
        settings: How the run was started.
        damaged: Messages that name the damaged rows, each once.
        alive: Whether the process that drives the run lives; None where that cannot be told.

    Args:
        directory: The run's folder.
        thorough: Also read the rejected formulas and their reasons, which tables of the best do not need.
    """

    def __init__(self, directory: Path, *, thorough: bool = True) -> None:
        self.directory = directory
        self.alive: bool | None = None
        self._tables = TABLES if thorough else TABLES[:2]
        self._operators: list[frozenset[str]] = []
        self._operator_sets: dict[frozenset[str], frozenset[str]] = {}
        self._answers: dict[object, Any] = {}
        self._open()
        self.look()

    def _open(self) -> None:
        self._store = Store(self.directory)
        self.settings: RunSettings = self._store.settings()
        self._seen = {"candidate": -1, "training": 0, "rejected": 0}
        self.damaged: dict[str, None] = {}
        self._connection = self._store.database.connection
        self._connection.create_aggregate("pool", 6, Pool)  # pyright: ignore[reportArgumentType] - it may return text
        self._connection.executescript(read_script("views.sql"))

    def look(self) -> bool:
        """Read what is new, and say whether anything is."""
        before = (dict(self._seen), len(self.damaged), self.alive, self.settings)
        if not self._store.database.in_place:
            self._open()
        self._answers.clear()
        database = self._store.database
        with database.naming_errors("read"):
            # All tables as they are at one moment.
            self._connection.execute("BEGIN")
            try:
                self.settings = self._store.settings()
                for table in self._tables:
                    self._check(table)
                self._connection.executemany("REPLACE INTO seen VALUES (?, ?)", self._seen.items())
            finally:
                self._connection.execute("COMMIT")
        self.alive = owner_lives(self.directory)
        return before != (self._seen, len(self.damaged), self.alive, self.settings)

    def _check(self, table: str) -> None:
        """Check the new rows of a table."""
        damaged: list[tuple[str, int]] = []

        def leave_out(number: int, error: StoreError) -> None:
            self._note_gap(table, number)
            self.damaged[str(error)] = None
            damaged.append((table, number))

        database = self._store.database
        for row in database.read(table, f"rowid > {self._seen[table]}", leave_out):
            self._note_gap(table, row[NUMBER])
            if (why := _find_fault(table, row)) is not None:
                leave_out(row[NUMBER], database.describe_damage(table, row, why))
        self._connection.executemany("INSERT INTO damaged VALUES (?, ?)", damaged)

    def _note_gap(self, table: str, number: int) -> None:
        if number > self._seen[table] + 1:
            missing = f"{table} {self._seen[table] + 1} is missing"
            self.damaged[f"{self._store.path}: {missing}. Restore the file from a copy."] = None
        self._seen[table] = number

    def _select(self, query: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a query by the names of their columns; one that is repeated before the next look is not run again."""
        if (query, values) not in self._answers:
            with self._store.database.naming_errors("read"):
                cursor = self._connection.execute(query, values)
                names = [name for name, *_ in cursor.description]
                self._answers[query, values] = [dict(zip(names, row, strict=True)) for row in cursor]
        return self._answers[query, values]

    def _column(self, query: str, *values: object) -> list[Any]:
        """Return the one column of a query, likewise."""
        return [next(iter(row.values())) for row in self._select(query, *values)]

    def _pairs(self, query: str, *values: object) -> dict[Any, Any]:
        """Return the two columns of a query as keys and values, likewise."""
        return dict(tuple(row.values()) for row in self._select(query, *values))

    @property
    def trainings(self) -> Mapping[Train, Outcome]:
        """The outcomes of the trainings beside the search."""
        if "trainings" not in self._answers:
            where = f"rowid <= {self._seen['training']} AND rowid NOT IN (SELECT number FROM damaged WHERE name = 'training')"
            self._answers["trainings"] = self._store.trainings(where)
        return self._answers["trainings"]

    @property
    def last_change(self) -> float | None:
        """Unix time at which the newest candidate or training was written; None without any."""
        times = "SELECT born_at AS time FROM candidate UNION ALL SELECT finished_at FROM training"
        return self._column(f"SELECT max(time) FROM ({times})")[0]

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
        """The scores of the trainings of the search at the first rung, in the order of their candidates."""
        first = "fidelity = (SELECT min(fidelity) FROM trained)"
        return self._column(f"SELECT score FROM trained WHERE score IS NOT NULL AND {first} ORDER BY id")

    @property
    def ended(self) -> list[dict[str, Any]]:
        """The candidates that were trained to an end, in order: fidelity, state and score."""
        return self._select("SELECT fidelity, state, score FROM trained ORDER BY id")

    def trained(self, state: State | None = None) -> int:
        """Return how many candidates were trained to an end, or to this state."""
        return sum(state in (None, State(row["state"])) for row in self.ended)

    @property
    def totals(self) -> dict[str, int]:
        """Sums of `Candidate.counts`: sampled, simulated, passed, reused, and rejections by the name of their reason."""
        return self._pairs("SELECT name, count FROM total")

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The first loss that was kept of those rejected for each reason: reason, candidate, branch and formula."""
        return self._select("SELECT * FROM example")

    @property
    def operators(self) -> Sequence[frozenset[str]]:
        """The names of the operators that each candidate holds, in the order of their numbers."""
        for loss in self._column("SELECT loss FROM candidate ORDER BY id LIMIT -1 OFFSET ?", len(self._operators)):
            found = frozenset(_CALL.findall(loss))
            self._operators.append(self._operator_sets.setdefault(found, found))
        return self._operators

    @property
    def running(self) -> list[dict[str, Any]]:
        """The candidates that are to be trained and have no outcome yet: id, loss, fidelity, and born_at (Unix time)."""
        return self._select("SELECT * FROM running")

    @property
    def unscored(self) -> list[dict[str, Any]]:
        """Trainings without a score by state and line of the reason: count; loss, fidelity and step of the first.

        Groups of candidates have the id of the first, others its seed and split.
        """
        return self._select("SELECT * FROM unscored")

    @property
    def newest(self) -> int | None:
        """The number of the newest candidate, or None before there is one."""
        return self._column("SELECT max(id) FROM candidate")[0]

    def further_metrics(self, count: int) -> list[str]:
        """Return the names of the metrics beside the score that so many of the best, and of the latest, measured."""
        best = self._column("SELECT also FROM ranking LIMIT ?", count)
        latest = self._column("SELECT also FROM settled ORDER BY id DESC LIMIT ?", count)
        return list(dict.fromkeys(name for also in [*best, *latest] for name in read_figures(also)))

    def losses(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return settled candidates as dictionaries.

        Their keys are id, loss, fidelity, state, score, its standard deviation over count trainings, also (JSON), and size, the
        number of operators.
        """
        query = "SELECT * FROM settled WHERE id IN (SELECT value FROM json_each(?))"
        found = {row["id"]: row for row in self._select(query, json.dumps([*numbers]))}
        return [found[number] for number in numbers if number in found]

    def times_found(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return how often each loss was found: itself, its twins and its copies."""
        wanted = "SELECT value FROM json_each(?)"
        query = f"SELECT root, count(*) FROM candidate WHERE root IN ({wanted}) GROUP BY root"
        return self._pairs(query, json.dumps([*numbers]))

    def offspring(self, number: int) -> list[dict[str, Any]]:
        """Return the candidates that something of a loss went into, in order: id, loss, fidelity, score, and whether promoted."""
        return self._select(
            f"SELECT id, loss, fidelity, {_SCORE}, kinds LIKE '%\"promoted\"%' AS promoted FROM candidate AS c "
            f"WHERE parent = ? AND {_KEPT} ORDER BY id",
            number,
        )

    def lineage(self, number: int) -> list[tuple[Candidate, float | None]]:
        """Return a loss and its ancestors with their scores, itself first; one that is damaged ends the line."""
        line = (
            "WITH RECURSIVE line (id, parent, kinds) AS (SELECT id, parent, kinds FROM candidate WHERE id = ? "
            "UNION ALL SELECT p.id, p.parent, p.kinds FROM line AS c JOIN candidate AS p ON p.id = c.parent "
            f"WHERE p.id < c.id AND {_KEPT}) SELECT id, {_SCORE} FROM line AS c ORDER BY id DESC"
        )
        scores = self._pairs(line, min(number, MOST_ROWS))
        found = {one.id: one for one in self._store.candidates(f"id IN ({', '.join(map(str, scores))})")}
        return [(found[one], score) for one, score in scores.items()]

    def trained_loss(self, number: int) -> str | None:
        """Return the loss whose training decides the outcome of a candidate, or None where that is not known."""
        query = "SELECT loss FROM candidate WHERE id = (SELECT root FROM candidate WHERE id = ?)"
        return next(iter(self._column(query, number)), None)

    def outcome(self, number: int) -> Outcome | None:
        """Return the outcome of a candidate or of its twin; None while it trains."""
        roots = self._column("SELECT root FROM settled WHERE id = ?", number)
        return self._store.outcomes(f"candidate = {roots[0]}")[roots[0]] if roots else None

    def history(self) -> list[Individual]:
        """Return the candidates before the first without an outcome."""
        settled = self._pairs("SELECT id, root FROM settled ORDER BY id")
        roots = [root for position, (number, root) in enumerate(settled.items()) if number == position]
        outcomes = self._store.outcomes(f"rowid <= {self._seen['training']}")
        candidates = self._store.candidates(f"id < {len(roots)}")
        return [Individual(candidate, outcomes[root]) for candidate, root in zip(candidates, roots, strict=True)]


def _find_fault(table: str, row: Row) -> str | None:
    """Return why a row with a valid checksum holds invalid values, or None."""
    column, values = ALLOWED.get(table, (NUMBER, ()))
    if values and row[column] not in values:
        return f"its {column} is {row[column]!r}"
    if table == "training" and row["candidate"] is None:
        try:
            training_from_row(row)
            outcome_from_row(row)
        except StoreError as error:
            return str(error.__cause__ or error)
    return None


def read_once(directory: str | Path, *, thorough: bool = False) -> Reader:
    """Read a run once, as far as it is."""
    found = Reader(Path(directory), thorough=thorough)
    for problem in found.damaged:
        raise StoreError(problem)
    return found
