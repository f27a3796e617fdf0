"""Section 3.2, Evolution: where parents are found; the paper's ageing population and its tournament, and the seam for others."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

from autoloss.proposing.correction import ScoreCorrection
from autoloss.proposing.niches import Niches
from autoloss.proposing.records import Candidate, Outcome

Drawn = TypeVar("Drawn")


class Archive(ABC):
    """Keeps what may become a parent, and draws parents from it.

    A proposer is handed an archive when it is made, and is its only caller: `add` once for every candidate, in any order, and
    `draw_parent(k, rng)` once candidates 0 … k − lag have been added. The parent is a function of k, the generator and the outcomes
    of candidates 0 … k − lag: equal in whatever order they were added, and whatever else was.
    """

    @abstractmethod
    def add(self, k: int, outcome: Outcome) -> None:
        """Take in what candidate k came to; one without a score never becomes a parent."""

    def observe(self, candidate: Candidate) -> None:
        """Take in how a candidate was made, before what it came to; by default nothing is learnt from that."""
        return

    @abstractmethod
    def draw_parent(self, k: int, rng: Random) -> int | None:
        """Draw the parent of candidate k from candidates 0 … k − lag, or return None where none of them has a score."""


class AgeingPopulation(Archive):
    """Holds the last P scored candidates; a parent is the best of a random share T of them.

    Args:
        size: P.
        tournament: T, in (0, 1].
        lag: Candidate k sees candidates 0 … k − lag.
        fidelity: Share of the schedule at which scores are compared; outcomes at others are left out.
        correction: Corrects these scores by those at larger shares; without it they are compared as they are.
        niches: With them, a share T of the niches is drawn, and each competes with the best of a share T of its members.
    """

    def __init__(
        self,
        *,
        size: int,
        tournament: float,
        lag: int,
        fidelity: float = 1.0,
        correction: ScoreCorrection | None = None,
        niches: Niches | None = None,
    ) -> None:
        self._size = size
        self._tournament = tournament
        self._lag = lag
        self._fidelity = fidelity
        self._correction = correction
        self._niches = niches
        self._scores: dict[int, float] = {}
        self._scored: list[int] = []
        """The candidates with a score, in their order."""

    def observe(self, candidate: Candidate) -> None:
        if self._correction is not None:
            self._correction.add(candidate)
        if self._niches is not None:
            self._niches.add(candidate)

    def add(self, k: int, outcome: Outcome) -> None:
        if self._correction is not None:
            self._correction.tell(k, outcome)
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
        scores = self._scores if self._correction is None else self._correction.values(k)
        if self._niches is not None:
            niches: dict[int, list[int]] = {}
            for member in members:
                niches.setdefault(self._niches.find(member), []).append(member)
            drawn = self._draw_share(list(niches.values()), rng)
            members = [_find_best(self._draw_share(niche, rng), scores, rng) for niche in drawn]
            return _find_best(members, scores, rng)
        return _find_best(self._draw_share(members, rng), scores, rng)

    def _draw_share(self, among: Sequence[Drawn], rng: Random) -> list[Drawn]:
        return rng.sample(among, max(1, math.ceil(self._tournament * len(among))))


def _find_best(contestants: Sequence[int], scores: Mapping[int, float], rng: Random) -> int:
    best = max(scores[contestant] for contestant in contestants)
    return rng.choice([contestant for contestant in contestants if scores[contestant] == best])
