"""A run while it grows: each look reads what is new, and SQL views rank, count and join what was read.

Every row is checked when it is first read. Curves, keys and signatures are read from the file, and checked again, when they are
shown. No torch is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Candidate, Individual, Outcome, State
from autoloss.store.lock import owner_lives
from autoloss.store.memory_copy import MemoryCopy
from autoloss.store.rows import StoreError, read_figures
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import Store

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
        self.alive: bool | None = None
        self._settings: RunSettings | None = None
        self._thorough = thorough
        self._memory = MemoryCopy(thorough)
        self._operators: list[frozenset[str]] = []
        self._operator_sets: dict[frozenset[str], frozenset[str]] = {}
        self.look()

    def look(self) -> bool:
        """Read what is new, and say whether anything is."""
        before = (self._memory.position, self.alive, self._settings)
        with Store(self.directory) as store:
            self._settings = store.settings()
            if store.database.is_copy:
                # Rows of an older schema are numbered anew in each copy.
                self._memory = MemoryCopy(self._thorough)
            self._memory.extend(store.database)
        self.alive = owner_lives(self.directory)
        return before != (self._memory.position, self.alive, self._settings)

    @property
    def settings(self) -> RunSettings:
        """How the run was started."""
        assert self._settings is not None
        return self._settings

    @property
    def trainings(self) -> Mapping[Train, Outcome]:
        """What the trainings beside the search came to."""
        return self._memory.trainings

    @property
    def damaged(self) -> Sequence[str]:
        """What could not be read, each row once, in words."""
        return list(self._memory.damaged)

    @property
    def last_change(self) -> float | None:
        """When the newest candidate or training was written (Unix time), or None."""
        return self._memory.last_change

    @property
    def ranking(self) -> list[int]:
        """The candidates that were trained to a score, the best first; twins and copies are not listed again."""
        return self._memory.column("SELECT id FROM ranking")

    @property
    def best_by_size(self) -> list[int]:
        """The best candidate of each size that is better than all smaller ones, the smallest first."""
        return self._memory.column("SELECT id FROM best_by_size")

    @property
    def settled(self) -> list[int]:
        """The candidates with an outcome, in order."""
        return self._memory.column("SELECT id FROM settled ORDER BY id")

    @property
    def scores(self) -> list[float]:
        """The scores of the trainings of the search at the first rung, in the order of their candidates."""
        first = "fidelity = (SELECT min(fidelity) FROM trained)"
        return self._memory.column(f"SELECT score FROM trained WHERE score IS NOT NULL AND {first} ORDER BY id")

    @property
    def ended(self) -> list[dict[str, Any]]:
        """The trainings of the search that ended, in the order of their candidates: fidelity, state and score."""
        return self._memory.rows("SELECT fidelity, state, score FROM trained ORDER BY id")

    def trained(self, state: State | None = None) -> int:
        """Return how many candidates were trained to an end, or to this state."""
        if state is None:
            return self._memory.column("SELECT count(*) FROM trained")[0]
        return self._memory.column("SELECT count(*) FROM trained WHERE state = ?", state.value)[0]

    @property
    def count(self) -> int:
        """How many candidates are settled."""
        return self._memory.column("SELECT count(*) FROM settled")[0]

    @property
    def latest(self) -> int:
        """The number of the last settled candidate; 0 where there is none."""
        return self._memory.column("SELECT coalesce(max(id), 0) FROM settled")[0]

    @property
    def totals(self) -> dict[str, int]:
        """Sums of `Candidate.counts`: sampled, simulated, passed, reused, and rejections by the name of their reason."""
        return self._memory.pairs("SELECT name, count FROM total")

    @property
    def examples(self) -> list[dict[str, Any]]:
        """The first loss that was kept of those rejected for each reason: reason, candidate, branch and formula."""
        return self._memory.rows("SELECT * FROM example")

    @property
    def operators(self) -> Sequence[frozenset[str]]:
        """The names of the operators that each candidate holds, in the order of their numbers."""
        query = "SELECT loss FROM candidate ORDER BY id LIMIT -1 OFFSET ?"
        for (loss,) in self._memory.stream(query, len(self._operators)):
            found = frozenset(_CALL.findall(loss))
            self._operators.append(self._operator_sets.setdefault(found, found))
        return self._operators

    @property
    def running(self) -> list[dict[str, Any]]:
        """The candidates that are to be trained and have no outcome yet: id, loss, and born_at (Unix time)."""
        return self._memory.rows("SELECT * FROM running")

    @property
    def unscored(self) -> list[dict[str, Any]]:
        """Trainings of the search without a score by state and line of the reason: count; id, loss, fidelity, step of the first."""
        return self._memory.rows("SELECT * FROM unscored")

    @property
    def newest(self) -> int | None:
        """The number of the newest candidate, or None before there is one."""
        return self._memory.column("SELECT max(id) FROM candidate")[0]

    def further_metrics(self, count: int) -> list[str]:
        """Return the names of the metrics beside the score that so many of the best, and of the latest, measured."""
        best = self._memory.column("SELECT also FROM ranking LIMIT ?", count)
        latest = self._memory.column("SELECT also FROM settled ORDER BY id DESC LIMIT ?", count)
        return list(dict.fromkeys(name for also in [*best, *latest] for name in read_figures(also)))

    def losses(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return settled candidates: id, loss, fidelity, state, score, also (JSON), and size, the number of operators."""
        rows = self._memory.rows(
            "SELECT * FROM settled WHERE id IN (SELECT value FROM json_each(?))", json.dumps([*numbers])
        )
        found = {row["id"]: row for row in rows}
        return [found[number] for number in numbers if number in found]

    def times_found(self, numbers: Sequence[int]) -> dict[int, int]:
        """Return how often each loss was found: itself, its twins and its copies."""
        wanted = "SELECT value FROM json_each(?)"
        query = f"SELECT root, count(*) FROM candidate WHERE root IN ({wanted}) GROUP BY root"
        return self._memory.pairs(query, json.dumps([*numbers]))

    def offspring(self, number: int) -> list[dict[str, Any]]:
        """Return the candidates that something of a loss went into, in order: id, loss, fidelity, score, and whether promoted."""
        return self._memory.rows(
            f"SELECT id, loss, fidelity, {_SCORE}, kinds LIKE '%\"promoted\"%' AS promoted FROM candidate AS c "
            f"WHERE parent = ? AND {_KEPT}",
            number,
        )

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
        scores = self._memory.pairs(line, number)
        with Store(self.directory) as store:
            found = store.candidates_of(scores)
        return [(_require(found.get(one), self.directory, one), score) for one, score in scores.items()]

    def trained_loss(self, number: int) -> str | None:
        """Return the loss whose training decides the outcome of a candidate, or None where that is not known."""
        found = self._memory.column(
            "SELECT loss FROM candidate WHERE id = (SELECT root FROM candidate WHERE id = ?)", number
        )
        return found[0] if found else None

    def outcome(self, number: int) -> Outcome | None:
        """Return what a candidate came to, itself or by the one whose outcome it shares, or None before that.

        Raises:
            StoreError: A row is damaged.
        """
        roots = self._memory.column("SELECT root FROM settled WHERE id = ?", number)
        if not roots:
            return None
        with Store(self.directory) as store:
            return _require(store.outcomes_of(roots).get(roots[0]), self.directory, roots[0])

    def history(self) -> list[Individual]:
        """Return the candidates before the first without an outcome.

        Raises:
            StoreError: A row is damaged.
        """
        settled = self._memory.pairs("SELECT id, root FROM settled ORDER BY id")
        roots = [root for position, (number, root) in enumerate(settled.items()) if number == position]
        with Store(self.directory) as store:
            outcomes, candidates = store.outcomes(), list(store.candidates())
        return [Individual(candidates[number], outcomes[root]) for number, root in enumerate(roots)]


def _require(found: Any, directory: Path, number: int) -> Any:
    """Return a row, or raise a StoreError where it is missing."""
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
