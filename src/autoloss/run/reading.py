"""A run while it grows: each look reads what is new, without what no table shows, and without disturbing the writer.

Rows are only ever appended, so a look costs what was added since the last one. Curves, keys and signatures are most of a
run's bytes and stay in the file. What is damaged is left out and named.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, final

from autoloss.run.jobs import Train
from autoloss.run.lock import owner_lives
from autoloss.run.records import Child, Individual, Origin, Outcome, State
from autoloss.run.results import Search, summary
from autoloss.run.store import Store, StoreError

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Running:
    """A loss that is to be trained and has no outcome yet.

    Args:
        since: When it was drawn (Unix time); its training began then, or when a worker was free.
    """

    child: Child
    since: float


@final
class Reading:
    """What is known of a run, look by look.

    Attributes:
        children: All children so far by number, without signatures, keys and counts.
        totals: Sampled, simulated, passed, reused and rejections by the name of their reason, over all children.
        damaged: What could not be read, each row once, in words.
        last_change: When the newest child, outcome or trial was written (Unix time), or None.
        alive: Whether the process that drives the run lives; None where that cannot be told.

    Args:
        directory: The run's folder.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: The file is no store, or its settings are damaged.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.children: dict[int, Child] = {}
        self.totals: Counter[str] = Counter()
        self.damaged: dict[str, None] = {}
        self.last_change: float | None = None
        self.alive: bool | None = None
        self._settings: Mapping[str, str] = _NOTHING
        self._born: dict[int, float] = {}
        self._outcomes: dict[int, Outcome] = {}
        self._trials: dict[Train, Outcome] = {}
        # Trained children without an outcome, in order; those whose outcome is damaged will never have one.
        self._pending: dict[int, None] = {}
        self._lost: set[int] = set()
        self._next_child = self._next_trial = 0
        self._shared: dict[str, Mapping[str, Any]] = {}
        self.look()

    def look(self) -> bool:
        """Read what is new, and say whether anything is."""
        before = self._state()
        with Store(self.directory) as store:
            self._settings = store.started()
            # Outcomes first: a child that is appended in between then lacks its outcome, never the other way round.
            self._read_outcomes(store)
            self._read_children(store)
            self._read_trials(store)
        self.alive = owner_lives(self.directory)
        return before != self._state()

    def _state(self) -> tuple[object, ...]:
        counts = (self._next_child, len(self._outcomes), self._next_trial, len(self.damaged))
        return (*counts, self.alive, self._settings)

    @property
    def search(self) -> Search:
        """The run so far. Its history is that of all children with an outcome; children that still train leave gaps."""
        outcomes: dict[int, Outcome] = {}
        history: list[Individual] = []
        for number, child in self.children.items():
            outcome = self._outcomes.get(number) if child.source is None else outcomes.get(child.source)
            if outcome is not None:
                outcomes[number] = outcome
                history.append(Individual(child, outcome))
        return summary(self.directory, self._settings, history, self._trials)

    @property
    def running(self) -> list[Running]:
        return [Running(self.children[number], self._born[number]) for number in self._pending]

    @property
    def trials(self) -> Mapping[Train, Outcome]:
        """Trainings beside the search, with their curves."""
        return self._trials

    def curve(self, individual: Individual) -> tuple[tuple[int, float], ...]:
        """Read the training curve behind an individual's outcome: its own, or that of the child whose outcome it shares."""
        with Store(self.directory) as store:
            found = store.outcome(self.root(individual.child).id)
        return () if found is None else found.curve

    def root(self, child: Child) -> Child:
        """Return the child whose training decided: itself, or the one whose outcome it shares."""
        while child.source is not None and child.source in self.children:
            child = self.children[child.source]
        return child

    def _read_outcomes(self, store: Store) -> None:
        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._lost.add(number)
            self._pending.pop(number, None)

        first = next(iter(self._pending), self._next_child)
        for row in store.later("outcome", "child", first, lost):
            if row["child"] not in self._outcomes:
                self._outcomes[row["child"]] = Outcome(
                    state=State(row["state"]),
                    score=row["score"],
                    also=json.loads(row["also"]),
                    step=row["step"],
                    reason=row["reason"],
                    seconds=row["seconds"],
                )
                self._pending.pop(row["child"], None)
                self.last_change = max(self.last_change or 0.0, row["finished_at"])

    def _read_children(self, store: Store) -> None:
        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._next_child = number + 1

        for row in store.later("child", "id", self._next_child, lost):
            number = row["id"]
            if number > self._next_child:
                self.damaged[f"{store.path}: child {self._next_child} is missing. Restore the file from a copy."] = None
            self.children[number] = Child(
                id=number,
                parent=row["parent"],
                kinds=self._once(row["kinds"]),
                attempts=self._once(row["attempts"]),
                loss=row["loss"],
                origin=Origin(row["origin"]),
                source=row["source"],
                signature=_NOTHING,
                scores={branch: tuple(scores) for branch, scores in json.loads(row["scores"]).items()},
                counts=_NOTHING,
            )
            self.totals.update(json.loads(row["counts"]))
            self._born[number] = row["born_at"]
            self._next_child = number + 1
            self.last_change = max(self.last_change or 0.0, row["born_at"])
            if row["source"] is None and number not in self._outcomes and number not in self._lost:
                self._pending[number] = None

    def _read_trials(self, store: Store) -> None:
        def lost(number: int, error: StoreError) -> None:
            self.damaged[str(error)] = None
            self._next_trial = number + 1

        for number, job, outcome, finished_at in store.later_trials(self._next_trial, lost):
            self._trials[job] = outcome
            self._next_trial = number + 1
            self.last_change = max(self.last_change or 0.0, finished_at)

    def _once(self, text: str) -> Mapping[str, Any]:
        """Return what JSON holds; equal texts share one value, since there are few."""
        if text not in self._shared:
            self._shared[text] = MappingProxyType(json.loads(text))
        return self._shared[text]


def glanced(directory: str | Path) -> Reading:
    """Read a run once, as far as it is.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: A row is damaged.
    """
    found = Reading(Path(directory))
    for problem in found.damaged:
        raise StoreError(problem)
    return found
