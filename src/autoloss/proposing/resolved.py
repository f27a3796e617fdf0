"""How far a history is known without a gap."""

from __future__ import annotations


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
