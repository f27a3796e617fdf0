"""What a candidate may know of earlier ones; it does not depend on the number or the speed of the workers."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autoloss.proposing.chance import derive_generator
from autoloss.proposing.records import Candidate, Outcome
from autoloss.proposing.score_model import describe_loss
from autoloss.settings import Configuration

Value = TypeVar("Value")


class Ledger:
    """The candidates of a run in their order, and their outcomes, which arrive in any order.

    Candidate k sees the outcomes of candidates up to k − lag, and of those that are trained at a larger share of the schedule than
    the first up to k − promoted lag: they train longer, and were they seen as soon, workers would wait for them.

    Args:
        branches: Their names, in the task's order.
    """

    def __init__(self, branches: Sequence[str], configuration: Configuration) -> None:
        self.branches = tuple(branches)
        self.configuration = configuration
        self.candidates: list[Candidate] = []
        self.outcomes: dict[int, Outcome] = {}
        self.lag = configuration.evolution.lag
        self.promoted_lag = max(self.lag, configuration.search.promoted_lag)
        self.resolved = 0
        """Number of candidates, from the first without a gap, that have an outcome."""
        self.scored: defaultdict[float, list[int]] = defaultdict(list)
        """Share of the schedule → candidates with a score, in their order."""
        self.again: dict[int, int] = {}
        """Candidate → the first that it is as trained again at the same share, and has a score there."""
        self.memos: dict[object, Any] = {}
        self._others_resolved = 0
        """The same number, as if promoted candidates had an outcome at once."""

    def add(self, candidate: Candidate) -> None:
        """Append the next candidate."""
        self.candidates.append(candidate)
        self._count_resolved()

    def tell(self, k: int, outcome: Outcome) -> None:
        """Record the outcome of candidate k.

        Raises:
            ValueError: It has one already.
        """
        if k in self.outcomes:
            raise ValueError(f"Candidate {k} has an outcome already.")
        self.outcomes[k] = outcome
        if outcome.score is not None:
            insort(self.scored[outcome.fidelity], k)
            candidate = self.candidates[k]
            parent = candidate.parent if candidate.promoted else None
            if parent is not None and self.candidates[parent].fidelity == candidate.fidelity:
                self.again[parent] = min(k, self.again.get(parent, k))
        self._count_resolved()

    def _count_resolved(self) -> None:
        while self.resolved in self.outcomes:
            self.resolved += 1
        while (k := self._others_resolved) < len(self.candidates) and (k in self.outcomes or self.is_promoted(k)):
            self._others_resolved += 1

    def is_promoted(self, k: int) -> bool:
        """Return True if a candidate is trained at a larger share of the schedule than the first."""
        return self.candidates[k].fidelity != self.configuration.search.rungs[0]

    def sees(self, k: int, earlier: int) -> bool:
        """Return True if candidate k may know the outcome of an earlier one."""
        return earlier <= k - (self.promoted_lag if self.is_promoted(earlier) else self.lag)

    def covers(self, k: int) -> bool:
        """Return True if everything that candidate k may know is available."""
        return self._others_resolved > k - self.lag and self.resolved > k - self.promoted_lag


class View:
    """The candidates and outcomes that candidate k may know, and no others; it never changes.

    Attributes:
        k: The candidate that is planned.
        branches: The names of the task's branches, in its order.
        configuration: All settings of the run.
        count: Candidates 0 … count − 1 are visible. Of those that were promoted to a larger share of the schedule the latest have
            no outcome yet (`search.promoted_lag`).
    """

    def __init__(self, ledger: Ledger, k: int) -> None:
        self.k = k
        self.branches = ledger.branches
        self.configuration = ledger.configuration
        self.count = max(0, k - ledger.lag + 1) if ledger.covers(k) else 0
        self._ledger = ledger

    def candidate(self, k: int) -> Candidate:
        """Return how an earlier candidate was made.

        Raises:
            LookupError: It is not visible.
        """
        if not 0 <= k < self.count:
            raise LookupError(f"Candidate {self.k} does not see candidate {k}: it sees {self.count}.")
        return self._ledger.candidates[k]

    def outcome(self, k: int) -> Outcome | None:
        """Return the outcome of an earlier candidate; None where that is not visible yet."""
        self.candidate(k)
        return self._ledger.outcomes[k] if self._ledger.sees(self.k, k) else None

    def scored(self, fidelity: float, *, repeated: bool = True) -> Sequence[int]:
        """Return the visible candidates with a score at a share of the schedule, in their order.

        Of one that was trained again at that share only the latest counts: the score by which it was chosen is too high.

        Args:
            repeated: Include twins and copies, which repeat the outcome of another.
        """
        first = fidelity == self.configuration.search.rungs[0]
        last = self.count - 1 if first else min(self.count - 1, self.k - self._ledger.promoted_lag)
        found, again = self._ledger.scored.get(fidelity, []), self._ledger.again
        found = found[: bisect_right(found, last)]
        if not repeated:
            candidates = self._ledger.candidates
            found = [k for k in found if candidates[k].source is None]
        return [k for k in found if again.get(k, self.k) > last] if again else found

    def scores(self, among: Sequence[int]) -> list[float]:
        """Return the scores of visible candidates that have one."""
        outcomes = self._ledger.outcomes
        return [score for k in among if (score := outcomes[k].score) is not None]

    def value(self, k: int) -> float:
        """Return the score of a visible candidate as it is compared with others.

        It is rounded down to steps of `search.resolution`, within which the loss with fewer operators is ahead; without such a
        setting it is the score.
        """
        [score] = self.scores([k])
        step = self.configuration.search.resolution
        # In prefix text each operator has one opening parenthesis.
        return math.floor(score / step) - 1e-6 * self.candidate(k).loss.count("(") if step else score

    def describe(self, among: Sequence[int]) -> list[NDArray[np.float64]]:
        """Return the features of the gradients of visible candidates, a row for each: logarithms of norms, and directions.

        A row has as many features as the candidate's signature has numbers, branch by branch.
        """
        search = self.configuration.search
        return [describe_loss(self.candidate(k).signature, self.branches, search) for k in among]

    def generator(self, purpose: str, *parts: int | str) -> Random:
        """Return the generator of one decision about candidate k; equal arguments give equal draws."""
        return derive_generator(self.configuration.seed, purpose, self.k, *parts)

    def memo(self, owner: object, make: Callable[[], Value]) -> Value:
        """Return what a proposer or an archive keeps for this run; it may only hold what follows from earlier views.

        Args:
            owner: Who keeps it; compared by identity.
            make: Makes it at the first call.
        """
        memos = self._ledger.memos
        if owner not in memos:
            memos[owner] = make()
        return memos[owner]
