"""Cheap trainings first: candidates are trained at a small share of the schedule, and the best of them at larger ones.

Successive halving in the asynchronous form of ASHA (Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020),
with one difference: ASHA promotes by what has arrived, here a promotion follows from the outcomes that candidate k sees alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloss.proposing.correction import ScoreCorrection
from autoloss.proposing.jobs import Attempt
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Candidate, Outcome
from autoloss.proposing.visibility import Visibility
from autoloss.settings import Configuration


class Promotion(Proposer):
    """Plans a promotion where one is due, and asks another proposer for all other candidates.

    Of the candidates that were trained and have a score at a rung, the share `search.promote` is trained at the next, the best
    first; scores at the first rung are corrected by those at larger shares, and the latest of them compete (`ScoreCorrection`).
    Twins and copies are the same loss, and not promoted beside it. A promotion is a candidate of its own, whose parent is the one
    that is promoted; the larger share is looked at first.

    Args:
        proposer: Plans at the first rung.
    """

    def __init__(self, proposer: Proposer, branches: Sequence[str], configuration: Configuration) -> None:
        self._proposer = proposer
        self._branches = tuple(branches)
        self._rungs = configuration.search.rungs
        self._share = configuration.search.promote
        self._initial = configuration.evolution.initial
        self._visibility = Visibility(configuration)
        self._outcomes: dict[int, Outcome] = {}
        """Those that no decision has seen yet."""
        self._repeated: set[int] = set()
        """Candidates that share the outcome of another."""
        self._decided: list[tuple[int, int] | None] = []
        """Candidate → (the one that it promotes, to which rung), None for others."""
        self._waiting: list[dict[int, float]] = [{} for _ in self._rungs]
        """For each rung, candidate → score of those that are not promoted."""
        self._correction = ScoreCorrection(branches, configuration)
        self._scored = [0] * len(self._rungs)
        self._promoted = [0] * len(self._rungs)

    def plannable(self, k: int) -> bool:
        known = k < self._initial or self._visibility.covers(k)
        return known and self._proposer.plannable(k)

    def ask(self, k: int) -> Plan:
        promotion = self._find_promotion(k)
        if promotion is None:
            return self._proposer.ask(k)
        parent, rung = promotion
        return Plan(k, parent, dict.fromkeys(self._branches, Kind.PROMOTION), self._rungs[rung])

    def tell(self, k: int, outcome: Outcome) -> None:
        self._visibility.tell(k)
        self._outcomes[k] = outcome
        self._correction.tell(k, outcome)
        self._proposer.tell(k, outcome)

    def add(self, candidate: Candidate) -> None:
        self._visibility.add(candidate)
        if candidate.source is not None:
            self._repeated.add(candidate.id)
        self._correction.add(candidate)
        self._proposer.add(candidate)

    def choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Attempt]:
        return self._proposer.choose(plan, pools, parent)

    def _find_promotion(self, k: int) -> tuple[int, int] | None:
        """Return what candidate k promotes; those before it are decided first, also where a resumed run never asks for them."""
        if k < self._initial:
            return None
        while (deciding := len(self._decided)) <= k:
            for lag, promoted in ((self._visibility.lag, False), (self._visibility.promoted_lag, True)):
                seen = deciding - lag
                if seen >= 0 and (self._decided[seen] is not None) == promoted:
                    self._see(seen)
            self._decided.append(self._decide(deciding) if deciding >= self._initial else None)
        return self._decided[k]

    def _see(self, k: int) -> None:
        outcome = self._outcomes.pop(k)
        if outcome.score is not None and outcome.fidelity in self._rungs and k not in self._repeated:
            rung = self._rungs.index(outcome.fidelity)
            self._scored[rung] += 1
            self._waiting[rung][k] = outcome.score

    def _decide(self, k: int) -> tuple[int, int] | None:
        """Return what candidate k promotes, to which rung, or None where no promotion is due."""
        for rung in reversed(range(len(self._rungs) - 1)):
            waiting = self._waiting[rung]
            if self._promoted[rung] + 1 <= self._share * self._scored[rung] and waiting:
                scores = waiting if rung else self._correction.values(k)
                if not rung:
                    # The correction values the latest alone, and what has dropped out of these never comes back.
                    waiting = self._waiting[0] = {one: score for one, score in waiting.items() if one in scores}
                if not waiting:
                    continue
                self._promoted[rung] += 1
                best = max(waiting, key=lambda one: (scores[one], -one))
                del waiting[best]
                return best, rung + 1
        return None
