"""Section 3.2, Evolution: where parents are found, and K candidates from nothing, then offspring of those that an archive draws."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from autoloss.proposing.mutation import Kind, draw_kind
from autoloss.proposing.proposer import Plan, Proposer
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


PARTNERS = 5
"""Draws of a second parent, of which one has to be another loss than the first."""


class Evolution(Proposer):
    """Draws a parent from an archive and, for each branch, whether it is copied, fresh or mutated, or a small step from it.

    Args:
        archive: Where parents are found; the paper's is `AgeingPopulation`.
    """

    def __init__(self, archive: Archive, configuration: Configuration) -> None:
        self._archive = archive
        self._settings = configuration.evolution
        self._offspring = configuration.offspring

    def needs_outcomes(self, k: int) -> bool:
        return k >= self._settings.initial

    def ask(self, k: int, visible: View) -> Plan:
        is_bred = k >= self._settings.initial
        parent = self._archive.draw_parent(visible, visible.generator("parent")) if is_bred else None
        if parent is None:
            return Plan(k, None, dict.fromkeys(visible.branches, Kind.FRESH))
        kinds = self._draw_kinds(visible)
        partner = self._draw_partner(visible, parent) if Kind.SUM in kinds.values() else None
        if partner is None:
            kinds = {branch: Kind.MUTATION if kind is Kind.SUM else kind for branch, kind in kinds.items()}
        return Plan(k, parent, kinds, partner=partner)

    def _draw_partner(self, visible: View, parent: int) -> int | None:
        """Draw a second parent that is another loss; None where a few draws find none."""
        drawn = (self._archive.draw_parent(visible, visible.generator("partner", number)) for number in range(PARTNERS))
        loss = visible.candidate(parent).loss
        return next((k for k in drawn if k is not None and visible.candidate(k).loss != loss), None)

    def _draw_kinds(self, visible: View) -> Mapping[str, Kind]:
        every = visible.branches
        changed = (visible.generator("branch").choice(every),) if self._settings.one_branch else every
        return {
            branch: draw_kind(self._offspring, visible.generator("kind", branch)) if branch in changed else Kind.COPY
            for branch in visible.branches
        }
