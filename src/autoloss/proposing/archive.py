"""Section 3.2, Evolution: where parents are found; the paper's ageing population and its tournament, and the seam for others."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from autoloss.proposing.view import View
from autoloss.settings import Configuration


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
    """

    size: int
    tournament: float
    fidelity: float = 1.0

    @classmethod
    def of(cls, configuration: Configuration) -> AgeingPopulation:
        """Return the population that the settings describe."""
        settings = configuration.evolution
        return cls(size=settings.population, tournament=settings.tournament, fidelity=configuration.search.rungs[0])

    def members(self, visible: View) -> Sequence[int]:
        """Return the population that a candidate sees: the last P scored candidates."""
        return visible.scored(self.fidelity)[-self.size :]

    def draw_parent(self, visible: View, rng: Random) -> int | None:
        """Return the best of `max(1, ceil(T·n))` contestants drawn without replacement; ties at random."""
        members = self.members(visible)
        if not members:
            return None
        contestants = rng.sample(members, max(1, math.ceil(self.tournament * len(members))))
        values = [visible.value(k) for k in contestants]
        best = max(values)
        return rng.choice([one for one, value in zip(contestants, values, strict=True) if value == best])
