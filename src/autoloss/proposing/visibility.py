"""Which outcomes a candidate depends on: a history is the same whoever trains, and however fast."""

from __future__ import annotations

from autoloss.proposing.records import Candidate
from autoloss.settings import Configuration


class ResolvedCount:
    """Counts the candidates, from the first without a gap, that have an outcome; outcomes may arrive in any order.

    >>> resolved = ResolvedCount()
    >>> resolved.add(1)
    >>> resolved.count
    0
    >>> resolved.add(0)
    >>> resolved.count
    2
    """

    def __init__(self) -> None:
        self.count = 0
        self._later: set[int] = set()

    def add(self, k: int) -> None:
        """Count candidate k, or keep it until those before it have come.

        Raises:
            ValueError: It has an outcome already.
        """
        if k < self.count or k in self._later:
            raise ValueError(f"Candidate {k} has an outcome already.")
        self._later.add(k)
        while self.count in self._later:
            self._later.remove(self.count)
            self.count += 1

    def includes(self, k: int) -> bool:
        """Say whether candidates 0 … k all have an outcome."""
        return self.count > k


class Visibility:
    """Candidate k sees what candidates up to k − lag came to, and those of them that were promoted up to k − promoted lag.

    A promoted candidate trains longer than others; were it seen as soon, workers would wait for it. Outcomes may be told in any
    order.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.lag = configuration.evolution.lag
        self.promoted_lag = max(self.lag, configuration.search.promoted_lag)
        self._first_share = configuration.search.rungs[0]
        self._promoted: set[int] = set()
        self._all = ResolvedCount()
        self._others = ResolvedCount()
        """As if promoted candidates had an outcome at once."""

    def add(self, candidate: Candidate) -> None:
        """Take in how a candidate is trained; one that is never added is taken for one that was not promoted."""
        if candidate.fidelity != self._first_share:
            self._promoted.add(candidate.id)
            self._others.add(candidate.id)

    def tell(self, k: int) -> None:
        """Take in that candidate k has an outcome."""
        self._all.add(k)
        if k not in self._promoted:
            self._others.add(k)

    def covers(self, k: int) -> bool:
        """Say whether all that candidate k sees has an outcome."""
        return self._others.includes(k - self.lag) and self._all.includes(k - self.promoted_lag)

    def sees(self, k: int, earlier: int) -> bool:
        """Say whether candidate k sees what an earlier one came to."""
        return earlier <= k - (self.promoted_lag if earlier in self._promoted else self.lag)
