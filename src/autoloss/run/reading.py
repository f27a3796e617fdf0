"""A run while it grows: each look reads what is new, and keeps of it the numbers that a run is ranked, counted and drawn by.

Rows are only ever appended, so a look costs what was added since the last one. Every row is held to its checksum when it is
first read, and again when it is shown; what is damaged is left out and named.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from autoloss.run.columns import Columns
from autoloss.run.on_demand import Children, Individuals
from autoloss.run.results import Search, summary
from autoloss.search.jobs import Train
from autoloss.search.records import Candidate, Origin, Outcome, State
from autoloss.store.lock import owner_lives
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import Store, StoreError

_ORIGINS = {origin.value: origin for origin in Origin}
_STATES = {state.value: state for state in State}
_DECODED = json.JSONDecoder().raw_decode
"""JSON → (value, where it ends); a third of what `json.loads` takes for a short text."""
_CALL = re.compile(r"(\w+)\(")


@dataclass(frozen=True, slots=True)
class Running:
    """A loss that is to be trained and has no outcome yet.

    Args:
        since: When it was drawn (Unix time); its training began then, or when a worker was free.
    """

    child: Candidate
    since: float


@dataclass(frozen=True, slots=True)
class Unscored:
    """A training of the search without a score.

    Args:
        reason: The first line; what follows is a traceback, which differs from one training to the next.
    """

    id: int
    state: State
    reason: str
    step: int | None


@final
class Reading:
    """What is known of a run, look by look.

    Attributes:
        columns: All children so far, as numbers.
        children: All children so far by number.
        totals: Sampled, simulated, passed, reused and rejections by the name of their reason, over all children.
        operators: The names of the operators that each loss holds, in the order of their numbers.
        examples: Name of a reason → (child, branch, attempt, formula) of the first loss that was kept of those rejected for it.
        damaged: What could not be read, each row once, in words.
        last_change: When the newest child, outcome or trial was written (Unix time), or None.
        alive: Whether the process that drives the run lives; None where that cannot be told.

    Args:
        directory: The run's folder.
        thorough: Also gather totals, operators and examples, which tables of the best do not need.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: The file is no store, or its settings are damaged.
    """

    def __init__(self, directory: Path, *, thorough: bool = True) -> None:
        self.directory = directory
        self.columns = Columns()
        self.children = Children(directory, self.columns)
        self.totals: Counter[str] = Counter()
        self.operators: list[frozenset[str]] = []
        self.examples: dict[str, tuple[int, str, int, str]] = {}
        self.damaged: dict[str, None] = {}
        self.last_change: float | None = None
        self.alive: bool | None = None
        self._thorough = thorough
        self._settings: RunSettings | None = None
        self._trials: dict[Train, Outcome] = {}
        self._unscored: dict[int, Unscored] = {}
        # Trained children without an outcome, in order, each with the time of its birth.
        self._pending: dict[int, float] = {}
        # Outcomes that are damaged, by child: these will never have one.
        self._lost: set[int] = set()
        # Outcomes whose child is damaged or missing; they are read again and again while an earlier one is waited for.
        self._orphans: set[int] = set()
        self._told = self._next_child = self._next_trial = self._next_rejected = 0
        self._fresh: dict[str, bool] = {}
        self._sets: dict[frozenset[str], frozenset[str]] = {}
        self.look()

    def look(self) -> bool:
        """Read what is new, and say whether anything is."""
        before = self._state()
        with Store(self.directory) as store:
            self._settings = store.settings()
            least = {table: store.written(table) for table in ("child", "outcome")}
            # Outcomes first: a child that is appended in between then lacks its outcome, never the other way round.
            outcomes = self._read_outcomes(store)
            self._read_children(store)
            self._settle(outcomes)
            self._read_trials(store)
            if self._thorough:
                self._read_rejected(store)
            self._miss(store, least)
        self.alive = owner_lives(self.directory)
        return before != self._state()

    def _state(self) -> tuple[object, ...]:
        counts = (self._next_child, self._told, self._next_trial, len(self.damaged))
        return (*counts, self.alive, self._settings)

    @property
    def search(self) -> Search:
        """The run so far. Its history is that of all children with an outcome; children that still train leave gaps."""
        assert self._settings is not None
        history = Individuals(self.directory, self.children, self.columns)
        return summary(self.directory, self._settings, history, self._trials, columns=self.columns)

    @property
    def running(self) -> list[Running]:
        return [Running(self.children[number], since) for number, since in self._pending.items()]

    @property
    def trials(self) -> Mapping[Train, Outcome]:
        """Trainings beside the search, with their curves."""
        return self._trials

    @property
    def unscored(self) -> list[Unscored]:
        """The trainings of the search without a score, in the order of their losses."""
        return [self._unscored[number] for number in sorted(self._unscored)]

    def _read_outcomes(self, store: Store) -> list[tuple[int, State, float | None]]:
        """Return the outcomes that are not known yet; their children are read after them."""

        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._lost.add(number)

        found: list[tuple[int, State, float | None]] = []
        wanted = ("child", "state", "score", "step", "reason", "finished_at")
        first = next(iter(self._pending), self._next_child)
        for number, state, score, step, reason, finished_at in store.columns("outcome", "child", first, wanted, lost):
            if number in self._orphans or (number in self.columns and number not in self._pending):
                continue
            if state not in _STATES:
                lost(number, _meaningless(store, "outcome", number, "state", state))
                continue
            found.append((number, _STATES[state], score))
            if state != State.SCORED.value:
                self._unscored[number] = Unscored(number, _STATES[state], (reason.splitlines() or [""])[0], step)
            self.last_change = max(self.last_change or 0.0, finished_at)
        return found

    def _read_children(self, store: Store) -> None:
        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._next_child = number + 1

        wanted = ("id", "parent", "kinds", "loss", "origin", "source", "counts", "born_at")
        rows = store.columns("child", "id", self._next_child, wanted, lost)
        append, totals, latest = self.columns.add, self.totals, self.last_change or 0.0
        for number, parent, kinds, loss, origin, source, counts, born_at in rows:
            if number > self._next_child:
                self.damaged[f"{store.path}: child {self._next_child} is missing. Restore the file from a copy."] = None
            if origin not in _ORIGINS:
                lost(number, _meaningless(store, "child", number, "origin", origin))
                continue
            self._next_child = number + 1
            append(number, parent, source, _ORIGINS[origin], self._is_fresh(kinds), loss)
            if source is None and number not in self._lost:
                self._pending[number] = born_at
            if self._thorough:
                held = frozenset(_CALL.findall(loss))
                self.operators.append(self._sets.setdefault(held, held))
                for name, count in _DECODED(counts)[0].items():
                    totals[name] += count
            latest = max(latest, born_at)
        self.last_change = latest or None

    def _settle(self, outcomes: Sequence[tuple[int, State, float | None]]) -> None:
        for number, state, score in outcomes:
            self.columns.tell(number, state, score)
            self._pending.pop(number, None)
            if number not in self.columns:
                self._orphans.add(number)
        for number in self._lost:
            self._pending.pop(number, None)
        self._told += len(outcomes)

    def _read_trials(self, store: Store) -> None:
        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._next_trial = number + 1

        for number, job, outcome, finished_at in store.later_trials(self._next_trial, lost):
            self._trials[job] = outcome
            self._next_trial = number + 1
            self.last_change = max(self.last_change or 0.0, finished_at)

    def _read_rejected(self, store: Store) -> None:
        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._next_rejected = number + 1

        wanted = ("rowid", "child", "branch", "attempt", "formula", "reason")
        for number, child, branch, attempt, formula, reason in store.columns(
            "rejected", "rowid", self._next_rejected, wanted, lost
        ):
            example = (child, branch, attempt, formula)
            self.examples[reason] = min(example, self.examples.get(reason, example))
            self._next_rejected = number + 1

    def _miss(self, store: Store, least: Mapping[str, int]) -> None:
        """Name a table whose end is gone; what is missing before that was named where it is."""
        try:
            store.check_count("child", self._next_child, least["child"])
            store.check_count("outcome", self._told + len(self._lost), least["outcome"])
        except StoreError as error:
            self.damaged[str(error)] = None

    def _is_fresh(self, kinds: str) -> bool:
        """Say whether all branches were drawn from nothing; there are few different texts."""
        if kinds not in self._fresh:
            self._fresh[kinds] = set(json.loads(kinds).values()) == {"fresh"}
        return self._fresh[kinds]


def _meaningless(store: Store, table: str, number: int, column: str, value: str) -> StoreError:
    return StoreError(
        f"{store.path}: the row of {table} {number} is damaged (its {column} is {value!r}). Restore the file from a copy."
    )


def read_once(directory: str | Path, *, thorough: bool = False) -> Reading:
    """Read a run once, as far as it is.

    Args:
        thorough: As of a `Reading`.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: A row is damaged.
    """
    found = Reading(Path(directory), thorough=thorough)
    for problem in found.damaged:
        raise StoreError(problem)
    return found
