"""Section 3.2, Evolution: the population of the most recent losses, from which old ones drop out, and its tournament."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from random import Random

from autoloss.search.archive import Archive
from autoloss.search.records import Outcome


class AgeingPopulation(Archive):
    """Holds the last P scored candidates; a parent is the best of a random share T of them.

    Args:
        size: P.
        tournament: T, in (0, 1].
        lag: Candidate k sees candidates 0 … k − lag.
        fidelity: Share of the schedule at which scores are compared; outcomes at others are left out.
    """

    def __init__(self, *, size: int, tournament: float, lag: int, fidelity: float = 1.0) -> None:
        self._size = size
        self._tournament = tournament
        self._lag = lag
        self._fidelity = fidelity
        self._scores: dict[int, float] = {}
        self._scored: list[int] = []
        """The candidates with a score, in their order."""

    def add(self, k: int, outcome: Outcome) -> None:
        if outcome.score is not None and outcome.fidelity == self._fidelity:
            self._scores[k] = outcome.score
            insort(self._scored, k)

    def members(self, k: int) -> Sequence[int]:
        """Return the population that candidate k sees: the last P scored candidates up to k − lag."""
        visible = bisect_right(self._scored, k - self._lag)
        return self._scored[max(0, visible - self._size) : visible]

    def draw_parent(self, k: int, rng: Random) -> int | None:
        """Return the best of `max(1, ceil(T·n))` contestants drawn without replacement; ties at random."""
        members = self.members(k)
        if not members:
            return None
        contestants = rng.sample(members, max(1, math.ceil(self._tournament * len(members))))
        best = max(self._scores[contestant] for contestant in contestants)
        return rng.choice([contestant for contestant in contestants if self._scores[contestant] == best])
