"""Section 3.2, Evolution: where parents are found; the paper's ageing population and its tournament, and the seam for others."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from autoloss.proposing.correction import correct_scores
from autoloss.proposing.niches import Niches
from autoloss.proposing.view import View
from autoloss.settings import Configuration

Drawn = TypeVar("Drawn")
FindScores = Callable[[Sequence[int]], list[float]]


class Archive(ABC):
    """Draws parents from the visible candidates: a population, a hall of fame, a Pareto front.

    A proposer is its only caller. The parent is a function of the view and of the generator alone: what an archive keeps between
    calls is a memo of the view (`View.memo`).

    >>> import autoloss
    >>> class BestEver(autoloss.Archive):
    ...     def draw_parent(self, visible, rng):
    ...         scored = visible.scored(fidelity=1.0)
    ...         return max(scored, key=lambda k: visible.outcome(k).score, default=None)
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01, "search.rungs": "1"}
    >>> found = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, archive=BestEver())
    >>> found.configuration.search.proposer
    'guided with object BestEver'
    """

    @abstractmethod
    def draw_parent(self, visible: View, rng: Random) -> int | None:
        """Draw the parent of candidate `visible.k` from the candidates that it sees; None where none has a score."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AgeingPopulation(Archive):
    """The last P scored candidates; a parent is the best of a random share T of them.

    Args:
        size: P.
        tournament: T, in (0, 1].
        fidelity: Share of the schedule at which scores are compared; outcomes at others are left out.
        corrected: Compare scores of short trainings as corrected by those of longer ones (`correct_scores`).
        niches: With them, a share T of the niches is drawn, and each competes with the best of a share T of its members.
    """

    size: int
    tournament: float
    fidelity: float = 1.0
    corrected: bool = False
    niches: Niches | None = None

    @classmethod
    def of(cls, configuration: Configuration) -> AgeingPopulation:
        """Return the population that the settings describe."""
        settings, search = configuration.evolution, configuration.search
        return cls(
            size=settings.population,
            tournament=settings.tournament,
            fidelity=search.rungs[0],
            corrected=len(search.rungs) > 1,
            niches=Niches(search.niche) if search.niche > 0 else None,
        )

    def members(self, visible: View) -> Sequence[int]:
        """Return the population that a candidate sees: the last P scored candidates."""
        return visible.scored(self.fidelity)[-self.size :]

    def draw_parent(self, visible: View, rng: Random) -> int | None:
        """Return the best of `max(1, ceil(T·n))` contestants drawn without replacement; ties at random."""
        members = self.members(visible)
        if not members:
            return None
        # Only contestants are looked up: a tournament is a small share of a population of thousands.
        find_scores = _look_up(correct_scores(visible)) if self.corrected else visible.scores
        if self.niches is not None:
            niches: dict[int, list[int]] = {}
            for member, niche in zip(members, self.niches.find(visible, members), strict=True):
                niches.setdefault(niche, []).append(member)
            drawn = self._draw_share(list(niches.values()), rng)
            members = [_find_best(self._draw_share(niche, rng), find_scores, rng) for niche in drawn]
            return _find_best(members, find_scores, rng)
        return _find_best(self._draw_share(members, rng), find_scores, rng)

    def _draw_share(self, among: Sequence[Drawn], rng: Random) -> list[Drawn]:
        return rng.sample(among, max(1, math.ceil(self.tournament * len(among))))


def _look_up(scores: Mapping[int, float]) -> FindScores:
    return lambda among: [scores[k] for k in among]


def _find_best(contestants: Sequence[int], find_scores: FindScores, rng: Random) -> int:
    scores = find_scores(contestants)
    best = max(scores)
    return rng.choice([one for one, score in zip(contestants, scores, strict=True) if score == best])
