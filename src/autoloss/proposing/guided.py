"""Guided search: several passing candidates are drawn for each place, and the one is trained that a model of the scores prefers.

Candidates are planned as in the evolution. A Gaussian process learns the score at the first rung from the gradient of a loss: its
norm and direction where the network starts and where half of the predictions are right, as the signature of a candidate has them.
It follows White et al., BANANAS (AAAI 2021), in mutating the best and choosing by a model, with a Gaussian process in place of
their networks, since the observations are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoloss.proposing.archive import Archive
from autoloss.proposing.evolution import Evolution
from autoloss.proposing.jobs import Attempt
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.score_model import ScoreModel, Smoothness, describe_loss
from autoloss.proposing.view import View
from autoloss.settings import Configuration

LEAST_OBSERVED = 12
"""Scored candidates from which the model is used; before, the first attempt that passes is trained."""
MOST_OBSERVED = 300
"""The latest observations that the model is fitted to, which bounds its time."""
CHOSEN_EVERY = 12
"""Observations after which the smoothness of the model is chosen again: a choice takes several fits."""

CHANGES = {Kind.MUTATION, Kind.SUM, Kind.REFINEMENT}
"""Kinds of which several are drawn, so that the model can choose."""


class Guided(Proposer):
    """The paper's evolution, except that a mutation is the best of several by a model of the scores, for a share of the candidates.

    With the model for every mutation, losses found on cheap tasks failed more often with new training seeds (docs/results.md).
    """

    def __init__(self, archive: Archive, configuration: Configuration) -> None:
        self._evolution = Evolution(archive, configuration)
        self._pool = configuration.search.pool
        self._share = configuration.search.guided_share

    def needs_outcomes(self, k: int) -> bool:
        return self._evolution.needs_outcomes(k)

    def ask(self, k: int, visible: View) -> Plan:
        plan = self._evolution.ask(k, visible)
        # The share is spread evenly over the numbers, so that nothing has to be remembered.
        guided = math.ceil((k + 1) * self._share) > math.ceil(k * self._share)
        return replace(plan, pool=self._pool) if guided and not CHANGES.isdisjoint(plan.kinds.values()) else plan

    def choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]], visible: View
    ) -> Mapping[str, Attempt]:
        chosen = {branch: pool[0] for branch, pool in pools.items()}
        model = visible.memo(self, _Models).fit(visible)
        if model is None:
            return chosen
        for branch, pool in pools.items():
            # One branch after the other: with several, the others are as they were chosen so far, or as the parent has them.
            around = {**parent, **{name: attempt.signature for name, attempt in chosen.items()}}
            offered = ({**around, branch: attempt.signature} for attempt in pool)
            described = [describe_loss(signature, visible.branches) for signature in offered]
            chosen[branch] = pool[model.find_most_promising(described)]
        return chosen


class _Models:
    """The last model of a run, and the smoothness that was chosen for it."""

    def __init__(self) -> None:
        self._model: tuple[tuple[int, ...], ScoreModel] | None = None
        self._smoothness: tuple[int, Smoothness] | None = None

    def fit(self, visible: View) -> ScoreModel | None:
        """Return the model of all scores that are visible; None while there are too few."""
        observed = tuple(visible.scored(visible.configuration.search.rungs[0], repeated=False))
        if len(observed) < LEAST_OBSERVED:
            return None
        if self._model is None or self._model[0] != observed:
            self._model = observed, _make_model(visible, observed, self._choose_smoothness(visible, observed))
        return self._model[1]

    def _choose_smoothness(self, visible: View, observed: tuple[int, ...]) -> Smoothness:
        """Choose by a number of observations that is a multiple, so that a resumed search chooses alike."""
        count = len(observed) - len(observed) % CHOSEN_EVERY
        if self._smoothness is None or self._smoothness[0] != count:
            self._smoothness = count, _make_model(visible, observed[:count]).smoothness
        return self._smoothness[1]


def _make_model(visible: View, observed: Sequence[int], smoothness: Smoothness | None = None) -> ScoreModel:
    latest = observed[-MOST_OBSERVED:]
    return ScoreModel(visible.describe(latest), visible.scores(latest), smoothness)
