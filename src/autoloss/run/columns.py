"""A run's losses as columns of numbers: what a hundred thousand are ranked, counted and drawn by, in a few megabytes.

Formulas, keys and curves stay in the store; they are read for the few losses that are shown.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, final

from autoloss.search.records import Individual, Origin, State

NONE = -1
"""In place of a number or a place where there is none."""
TRAINED, OWN, FRESH = 1, 2, 4
"""Traits: its origin is a training; its outcome is its own; all its branches were drawn from nothing."""
CODES: Mapping[State, int] = {state: code for code, state in enumerate(State, start=1)}
"""States as bytes; 0 where there is no outcome yet."""
STATES: Mapping[int, State] = {code: state for state, code in CODES.items()}
Found = TypeVar("Found")


@final
class Columns:
    """Children in the order of their numbers, of which some may be missing; outcomes may come in any order.

    Attributes:
        numbers: Of the children.
    """

    def __init__(self) -> None:
        self.numbers = array("q")
        self._parents = array("q")
        self._sizes = array("q")
        # Where the child stands whose training decided; a source that is not known decides nothing.
        self._roots = array("q")
        self._traits = bytearray()
        self._states = bytearray()
        self._scores = array("d")
        # What was worked out, until another child or outcome comes.
        self._known: dict[str, Any] = {}
        self._is_news = False

    @classmethod
    def of(cls, history: Iterable[Individual]) -> Columns:
        made = cls()
        for found in history:
            child, outcome = found.child, found.outcome
            is_fresh = set(child.kinds.values()) == {"fresh"}
            made.add(child.id, child.parent, child.source, child.origin, is_fresh, child.loss)
            # A later copy may share what is shared here, and what it shares is the same.
            if child.source is None:
                made.tell(child.id, outcome.state, outcome.score)
        return made

    def add(
        self, number: int, parent: int | None, source: int | None, origin: Origin, is_fresh: bool, loss: str
    ) -> None:
        """Append a child; its number is higher than all before."""
        place = len(self.numbers)
        root = place if source is None else self.place(source)
        if root not in (place, NONE):
            root = self._roots[root]
        self.numbers.append(number)
        self._parents.append(NONE if parent is None else parent)
        # In prefix text each operator has one opening parenthesis.
        self._sizes.append(loss.count("("))
        self._roots.append(root)
        self._traits.append(
            (TRAINED if origin is Origin.TRAINED else 0) | (OWN if source is None else 0) | (FRESH if is_fresh else 0)
        )
        self._states.append(0)
        self._scores.append(math.nan)
        self._is_news = True

    def tell(self, number: int, state: State, score: float | None) -> None:
        """Record what a training came to; of a child that is missing it says nothing."""
        place = self.place(number)
        if place != NONE:
            self._states[place] = CODES[state]
            self._scores[place] = math.nan if score is None else score
            self._is_news = True

    def place(self, number: int) -> int:
        """Return where a child stands, or `NONE`."""
        # Nobody is missing before this one, in any run but a damaged one.
        if 0 <= number < len(self.numbers) and self.numbers[number] == number:
            return number
        place = bisect_left(self.numbers, number)
        return place if place < len(self.numbers) and self.numbers[place] == number else NONE

    def __contains__(self, number: int) -> bool:
        return self.place(number) != NONE

    def root(self, number: int) -> int:
        """Return the number of the child whose training decides, or `NONE`."""
        place = self.place(number)
        return NONE if place == NONE or self._roots[place] == NONE else self.numbers[self._roots[place]]

    def state(self, number: int) -> State | None:
        """Return what a child has come to, itself or by the one whose outcome it shares."""
        place = self.place(self.root(number))
        return None if place == NONE else STATES.get(self._states[place])

    def score(self, number: int) -> float | None:
        place = self.place(self.root(number))
        return None if place == NONE or math.isnan(self._scores[place]) else self._scores[place]

    def _once(self, name: str, work_out: Callable[[], Found]) -> Found:
        if self._is_news:
            self._known.clear()
            self._is_news = False
        if name not in self._known:
            self._known[name] = work_out()
        return self._known[name]

    @property
    def finished(self) -> Sequence[int]:
        """The numbers of the children with an outcome, their own or a shared one."""

        def work_out() -> Sequence[int]:
            found = zip(self.numbers, self._roots, strict=True)
            return array("q", (number for number, root in found if root != NONE and self._states[root]))

        return self._once("finished", work_out)

    @property
    def ranked(self) -> Sequence[int]:
        """The numbers of the trained losses with a score, the best first; twins and copies are not listed again."""

        def work_out() -> list[int]:
            scores = ((self._scores[root], self.numbers[place]) for place, root in self._having(TRAINED))
            return [number for _, number in sorted((-score, at) for score, at in scores if not math.isnan(score))]

        return self._once("ranked", work_out)

    def _having(self, trait: int) -> Iterable[tuple[int, int]]:
        """Return place and root of the finished that have a trait."""
        return (
            (place, root)
            for place, (root, traits) in enumerate(zip(self._roots, self._traits, strict=True))
            if traits & trait and root != NONE and self._states[root]
        )

    @property
    def scores(self) -> Sequence[float]:
        """The scores of the trainings, in the order of their losses."""

        def work_out() -> list[float]:
            return [score for _, root in self._having(OWN) if not math.isnan(score := self._scores[root])]

        return self._once("scores", work_out)

    @property
    def trained(self) -> Counter[State]:
        """Count what the losses came to that passed and were trained."""
        return Counter(STATES[self._states[root]] for _, root in self._having(TRAINED))

    @property
    def own(self) -> int:
        """The number of children with an outcome of their own."""
        return sum(1 for _ in self._having(OWN))

    @property
    def found(self) -> Counter[int]:
        """How often each loss was found: itself, its twins and its copies."""

        def work_out() -> Counter[int]:
            places = Counter(root for root in self._roots if root != NONE and self._states[root])
            return Counter({self.numbers[place]: count for place, count in places.items()})

        return self._once("found", work_out)

    @property
    def best_by_size(self) -> list[int]:
        """The numbers of the best loss of each size that is better than all smaller ones, the smallest first."""
        best: dict[int, int] = {}
        for number in self.ranked:
            best.setdefault(self._sizes[self.place(number)], number)
        kept: list[int] = []
        for _, number in sorted(best.items()):
            if not kept or self._scores[self.place(self.root(number))] > self._scores[self.place(self.root(kept[-1]))]:
                kept.append(number)
        return kept

    def offspring(self, number: int) -> list[int]:
        """Return the numbers of the children of a loss that something of it went into, in order."""
        columns = zip(self.numbers, self._parents, self._traits, strict=True)
        return [child for child, parent, traits in columns if parent == number and not traits & FRESH]
