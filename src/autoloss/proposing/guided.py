"""Guided search: several passing candidates are drawn for each place, and the one is trained that a model of the scores prefers.

The children are those of the evolution. A Gaussian process learns the score at the first rung from the gradient of a loss: its
norm and direction where the network starts and where half of the predictions are right, as the signature of a candidate has them.
It follows White et al., BANANAS (AAAI 2021), in mutating the best and choosing by a model, with a Gaussian process in place of
their networks, since the observations are few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoloss.proposing.evolution import make_evolution
from autoloss.proposing.jobs import Attempt
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Candidate, Outcome
from autoloss.proposing.score_model import ScoreModel, Smoothness, describe_signature
from autoloss.settings import Configuration

LEAST_OBSERVED = 12
"""Scored candidates from which the model is used; before, the first attempt that passes is trained."""
MOST_OBSERVED = 300
"""The latest observations that the model is fitted to, which bounds its time."""
CHOSEN_EVERY = 12
"""Observations after which the smoothness of the model is chosen again: a choice takes several fits."""


class Guided(Proposer):
    """The paper's evolution, except that a mutation is the best of several by a model of the scores, for a share of the candidates.

    With the model for every mutation, what was found on cheap tasks failed more often with new training seeds (docs/results.md).
    """

    def __init__(self, branches: Sequence[str], configuration: Configuration) -> None:
        self._branches = tuple(branches)
        self._evolution = make_evolution(branches, configuration)
        self._pool = configuration.search.pool
        self._share = configuration.search.guided_share
        self._lag = configuration.evolution.lag
        self._fidelity = configuration.search.rungs[0]
        self._signatures: dict[int, Mapping[str, Sequence[str]]] = {}
        self._scores: dict[int, float] = {}
        self._model: tuple[tuple[int, ...], ScoreModel] | None = None
        self._smoothness: tuple[int, Smoothness] | None = None

    def plannable(self, k: int) -> bool:
        return self._evolution.plannable(k)

    def ask(self, k: int) -> Plan:
        plan = self._evolution.ask(k)
        pool = self._pool if Kind.MUTATION in plan.kinds.values() and self._is_guided(k) else 1
        return Plan(plan.candidate, plan.parent, plan.kinds, plan.fidelity, pool)

    def _is_guided(self, k: int) -> bool:
        """Spread the share evenly over the numbers, so that nothing has to be remembered."""
        return math.ceil((k + 1) * self._share) > math.ceil(k * self._share)

    def add(self, candidate: Candidate) -> None:
        self._evolution.add(candidate)
        # Twins and copies repeat an observation, with the same outcome.
        if candidate.source is None:
            self._signatures[candidate.id] = candidate.signature

    def tell(self, k: int, outcome: Outcome) -> None:
        self._evolution.tell(k, outcome)
        if k in self._signatures and outcome.score is not None and outcome.fidelity == self._fidelity:
            self._scores[k] = outcome.score

    def choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Attempt]:
        chosen = {branch: pool[0] for branch, pool in pools.items()}
        observed = tuple(sorted(k for k in self._scores if k <= plan.candidate - self._lag))
        if len(observed) < LEAST_OBSERVED:
            return chosen
        model = self._fit(observed)
        for branch, pool in pools.items():
            # One branch after the other: with several, the others are as they were chosen so far, or as the parent has them.
            around = {**parent, **{name: attempt.signature for name, attempt in chosen.items()}}
            described = [self._describe({**around, branch: attempt.signature}) for attempt in pool]
            chosen[branch] = pool[model.find_most_promising(described)]
        return chosen

    def _fit(self, observed: tuple[int, ...]) -> ScoreModel:
        if self._model is None or self._model[0] != observed:
            self._model = observed, self._make_model(observed, self._choose_smoothness(observed))
        return self._model[1]

    def _choose_smoothness(self, observed: tuple[int, ...]) -> Smoothness:
        """Choose by a number of observations that is a multiple, so that a resumed search chooses alike."""
        count = len(observed) - len(observed) % CHOSEN_EVERY
        if self._smoothness is None or self._smoothness[0] != count:
            self._smoothness = count, self._make_model(observed[:count]).smoothness
        return self._smoothness[1]

    def _make_model(self, observed: tuple[int, ...], smoothness: Smoothness | None = None) -> ScoreModel:
        latest = observed[-MOST_OBSERVED:]
        described = [self._describe(self._signatures[k]) for k in latest]
        return ScoreModel(described, [self._scores[k] for k in latest], smoothness)

    def _describe(self, signature: Mapping[str, Sequence[str]]) -> list[float]:
        return [value for branch in self._branches for value in describe_signature(signature.get(branch, ()))]
