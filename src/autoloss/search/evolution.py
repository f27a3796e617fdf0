"""Section 3.2, Evolution: population, tournament and ageing, as ask and tell, with no I/O and no clock.

Child k sees the outcomes of the children up to k − lag and no others. How many workers there are and which of them is
faster then makes no difference to what is drawn.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from autoloss.search.chance import keyed
from autoloss.search.mutation import Kind, draw_kind, make
from autoloss.settings import EvolutionSettings, OffspringSettings
from autoloss.space.expression import Alphabet, Expression


@dataclass(frozen=True, slots=True)
class Plan:
    """How a child is to come about: its parent and, per branch, the kind of change.

    Args:
        parent: Index of the parent, or None for a child drawn from nothing.
    """

    child: int
    parent: int | None
    kinds: Mapping[str, Kind]


class Evolution:
    """Ask for the plan of a child, tell its outcome; outcomes may be told in any order."""

    def __init__(
        self, branches: Sequence[str], settings: EvolutionSettings, offspring: OffspringSettings, seed: int
    ) -> None:
        self._branches = tuple(branches)
        self._settings = settings
        self._offspring = offspring
        self._seed = seed
        self._told: dict[int, float | None] = {}
        self._resolved = 0
        # Children with a score among the first `_resolved`, in order.
        self._scored: list[int] = []

    @property
    def resolved(self) -> int:
        """The number of children, counted from the first without a gap, that have an outcome."""
        return self._resolved

    def tell(self, child: int, score: float | None) -> None:
        """Record an outcome: its score, or None for a child that never enters the population.

        Raises:
            ValueError: The score is not finite, or the child has an outcome already.
        """
        if child in self._told:
            raise ValueError(f"Child {child} has an outcome already.")
        if score is not None and not math.isfinite(score):
            raise ValueError(f"Child {child} has the score {score}; only finite scores can be selected from.")
        self._told[child] = score
        while self._resolved in self._told:
            if self._told[self._resolved] is not None:
                self._scored.append(self._resolved)
            self._resolved += 1

    def ready(self, child: int) -> bool:
        """Say whether all children up to child − lag have an outcome."""
        return self._resolved > child - self._settings.lag

    def population(self, child: int) -> Sequence[int]:
        """Return what a child's parent is drawn from: the last P scored children up to child − lag."""
        visible = bisect_right(self._scored, child - self._settings.lag)
        return self._scored[max(0, visible - self._settings.population) : visible]

    def plannable(self, child: int) -> bool:
        """Say whether the child's plan is known; a child drawn from nothing waits for nobody."""
        return child < self._settings.initial or self.ready(child)

    def ask(self, child: int) -> Plan:
        """Draw the parent and the kinds of a child that is `plannable`."""
        if child < len(self._settings.start):
            return Plan(child, None, dict.fromkeys(self._branches, Kind.GIVEN))
        population = () if child < self._settings.initial else self.population(child)
        if not population:
            return Plan(child, None, dict.fromkeys(self._branches, Kind.FRESH))
        parent = self._tournament(population, keyed(self._seed, "parent", child))
        if self._settings.one_branch:
            changed = keyed(self._seed, "branch", child).choice(self._branches)
        else:
            changed = None
        kinds = {
            branch: Kind.COPY
            if changed not in (None, branch)
            else draw_kind(self._offspring, keyed(self._seed, "kind", child, branch))
            for branch in self._branches
        }
        return Plan(child, parent, kinds)

    def _tournament(self, population: Sequence[int], rng: Random) -> int:
        """Return the best of `max(1, ceil(T·n))` contestants drawn without replacement; ties at random."""
        contestants = rng.sample(population, max(1, math.ceil(self._settings.tournament * len(population))))
        scores = {child: score for child in contestants if (score := self._told[child]) is not None}
        best = max(scores.values())
        return rng.choice([child for child, score in scores.items() if score == best])


def attempt(
    plan: Plan,
    branch: str,
    number: int,
    parent: Expression | None,
    alphabet: Alphabet,
    settings: EvolutionSettings,
    seed: int,
) -> Expression:
    """Draw one attempt at a branch of a child, under a generator of its own.

    Args:
        number: j ≥ 0; from `mutation_attempts` on a mutation has become a fresh tree.
        parent: The parent's tree of this branch, or the one to start from; None for a child drawn from nothing.
    """
    rng = keyed(seed, "attempt", plan.child, branch, number)
    kind = plan.kinds[branch]
    if parent is None or number >= {Kind.MUTATION: settings.mutation_attempts, Kind.GIVEN: 1}.get(kind, math.inf):
        kind = Kind.FRESH
    # A fresh tree ignores its parent.
    return make(kind, parent or Expression(("1",)), alphabet, settings.depth, rng)
