"""The memory of losses by their gradients (Section 3.2): verdicts by direction-aware key, candidates by signature."""

from __future__ import annotations

from itertools import islice

from autoloss.proposing.records import State
from autoloss.proposing.view import Ledger

KEY_BYTES = 8


class VerdictCache(dict[bytes, bool]):
    """Direction-aware key → whether the losses with it passed the rejection protocol on one branch.

    They are kept in the order in which they came, so that a copy elsewhere is brought up to date by the latest ones.
    """

    def record_all(self, keys: bytes, passed: bool) -> bytes | None:
        """Record several keys, eight bytes each; returns the first that was there before."""
        repeated = None
        for start in range(0, len(keys), KEY_BYTES):
            key = keys[start : start + KEY_BYTES]
            if repeated is None and key in self:
                repeated = key
            self.setdefault(key, passed)
        return repeated

    def latest(self, count: int) -> dict[bytes, bool]:
        """Return the last `count` verdicts."""
        return dict(islice(reversed(self.items()), count))


class SignatureIndex:
    """The first candidate with each signature; later ones with the same are its twins.

    Args:
        ledger: The outcomes of candidates, and who may know them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._first: dict[str, int] = {}

    def record(self, candidate: int, signature: str) -> None:
        """Remember a candidate that is to be trained."""
        self._first[signature] = candidate

    def find_twin(self, candidate: int, signature: str) -> int | None:
        """Return the earlier candidate whose outcome this one shares, finished or still running; None for a new signature.

        A candidate whose training failed is no twin to those that may know of it: the loss was not at fault for sure.
        """
        return None if self._find_state(candidate, signature) is State.FAILED else self._first.get(signature)

    def is_known_to_diverge(self, candidate: int, signature: str) -> bool:
        """Return True if a candidate may know that the training of a loss with this signature diverges."""
        return self._find_state(candidate, signature) is State.DIVERGED

    def _find_state(self, candidate: int, signature: str) -> State | None:
        """Return how the first training of a loss ended, as far as a candidate may know."""
        first = self._first.get(signature)
        if first is None or first not in self._ledger.outcomes or not self._ledger.sees(candidate, first):
            return None
        return self._ledger.outcomes[first].state
