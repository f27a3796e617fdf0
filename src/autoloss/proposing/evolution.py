"""Section 3.2, Evolution: where parents are found, and K candidates from nothing, then offspring of those that an archive draws.

In the guided search, several passing candidates are drawn for each place, and the one is trained that a model of the scores
prefers: a Gaussian process learns the score at the first rung from the gradient of a loss, its norm and direction where the network
starts and where half of the predictions are right, as the signature of a candidate has them. It follows White et al., BANANAS
(AAAI 2021), in mutating the best and choosing by a model, with a Gaussian process in place of their networks, since the
observations are few.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from autoloss.proposing.memory import Memory
from autoloss.proposing.mutation import Kind, draw_kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Attempt
from autoloss.proposing.score_model import ScoreModel, Smoothness, describe_loss
from autoloss.proposing.view import View
from autoloss.settings import Configuration
from autoloss.space.loss_text import split_branches


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


LEAST_OBSERVED = 12
"""Scored candidates from which the model is used; before, the first attempt that passes is trained."""
MOST_OBSERVED = 300
"""The latest observations that the model is fitted to, which bounds its time."""
CHOSEN_EVERY = 12
"""Observations after which the smoothness of the model is chosen again: a choice takes several fits."""
CAUTION = 0.5
"""Weight of the model beside what the memory expects: its scores are of short trainings. bench/finding/prior.py compares."""
FIRST_POOLS = 3
"""Factor on `search.pool` for the first candidates: a tree drawn from nothing is mostly a bad loss, and the memory tells which."""

CHANGES = {Kind.MUTATION, Kind.SUM, Kind.REFINEMENT}
"""Kinds of which several are drawn, so that the model can choose."""


class Guided(Proposer):
    """The paper's evolution, except that a mutation is the best of several by a model of the scores, for a share of the candidates.

    With the model for every mutation, losses found on cheap tasks failed more often with new training seeds (docs/measurements.md).
    A memory of earlier tasks orders trees drawn from nothing too, and is what the model expects where it has seen nothing yet.
    """

    def __init__(self, archive: Archive, configuration: Configuration, memory: Memory | None = None) -> None:
        self._evolution = Evolution(archive, configuration)
        self._pool = configuration.search.pool
        self._share = configuration.search.guided_share
        self._initial = configuration.evolution.initial
        self._memory = memory

    def needs_outcomes(self, k: int) -> bool:
        return self._evolution.needs_outcomes(k)

    def ask(self, k: int, visible: View) -> Plan:
        plan = self._evolution.ask(k, visible)
        kinds = {kind for branch, kind in plan.kinds.items() if self._memory and self._memory.knows(branch)}
        if Kind.FRESH in kinds:
            return replace(plan, pool=self._pool * (FIRST_POOLS if k < self._initial else 1))
        # The share is spread evenly over the numbers, so that nothing has to be remembered.
        guided = math.ceil((k + 1) * self._share) > math.ceil(k * self._share)
        return replace(plan, pool=self._pool) if guided and not CHANGES.isdisjoint(plan.kinds.values()) else plan

    def choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]], visible: View
    ) -> Mapping[str, Attempt]:
        chosen = {branch: pool[0] for branch, pool in pools.items()}
        models = visible.memo(self, lambda: _Models(self._memory)).fit(visible)
        for branch, pool in pools.items():
            bounds = models.expect(branch, [attempt.formula for attempt in pool])
            if models.own is not None:
                # One branch after the other: with several, the others are as they were chosen so far, or as the parent has them.
                around = {**parent, **{name: attempt.signature for name, attempt in chosen.items()}}
                offered = ({**around, branch: attempt.signature} for attempt in pool)
                search = visible.configuration.search
                described = [describe_loss(signature, visible.branches, search) for signature in offered]
                bounds += CAUTION * models.own.find_bounds(described)
            # Rounded: the last bits may differ between two ways to add up.
            chosen[branch] = pool[int(np.argmax(np.round(bounds, 9)))]
        return chosen


class _Models:
    """The last model of a run's own scores with the smoothness that was chosen for it, and what the memory expects.

    Attributes:
        own: None while there are too few scores.
    """

    def __init__(self, memory: Memory | None) -> None:
        self.own: ScoreModel | None = None
        self._memory = memory
        self._observed: tuple[int, ...] | None = None
        self._smoothness: tuple[int, Smoothness] | None = None
        self._weights: dict[str, NDArray[np.float64]] = {}
        """Branch → weight of each forest, for the branches that the memory knows."""

    def fit(self, visible: View) -> _Models:
        """Return the models of all scores that are visible."""
        observed = tuple(visible.scored(visible.configuration.search.rungs[0], repeated=False))
        if self._observed != observed:
            self._observed = observed
            latest = observed[-MOST_OBSERVED:]
            for branch in visible.branches:
                if self._memory is not None and self._memory.knows(branch):
                    formulas, scores = _list_formulas(visible, branch, latest), visible.scores(latest)
                    self._weights[branch] = self._memory.weigh(branch, formulas, scores)
            self.own = None
            if len(observed) >= LEAST_OBSERVED:
                # By a number of observations that is a multiple, so that a resumed search chooses alike.
                count = len(observed) - len(observed) % CHOSEN_EVERY
                if self._smoothness is None or self._smoothness[0] != count:
                    self._smoothness = count, self._make_model(visible, observed[:count]).smoothness
                self.own = self._make_model(visible, observed, self._smoothness[1])
        return self

    def expect(self, branch: str, formulas: Sequence[str]) -> NDArray[np.float64]:
        """Return what the memory expects of losses on one branch; 0 where it knows nothing."""
        if self._memory is None or branch not in self._weights:
            return np.zeros(len(formulas))
        # Not a product of matrices: its order of additions depends on the library's threads.
        return (self._memory.predict(branch, formulas) * self._weights[branch]).sum(axis=1) / len(self._weights)

    def _make_model(self, visible: View, observed: Sequence[int], smoothness: Smoothness | None = None) -> ScoreModel:
        latest = observed[-MOST_OBSERVED:]
        expected = sum(self.expect(branch, _list_formulas(visible, branch, latest)) for branch in self._weights)
        return ScoreModel(visible.describe(latest), visible.scores(latest), smoothness, expected)


def _list_formulas(visible: View, branch: str, among: Sequence[int]) -> list[str]:
    return [split_branches(visible.candidate(k).loss)[branch] for k in among]
