"""What a history knows of losses by their gradients: verdicts under direction-aware keys, and twins by signature (Section 3.2)."""

from __future__ import annotations


class Verdicts:
    """What is known under the direction-aware keys of one branch: equal keys share the protocol's verdict.

    Keys are remembered in the order in which they came, so that a copy elsewhere is brought up to date by the tail.
    """

    def __init__(self) -> None:
        self._passed: dict[bytes, bool] = {}
        self._order = bytearray()

    def __getitem__(self, key: bytes) -> bool:
        """Say whether what had this key passed; KeyError when nothing had."""
        return self._passed[key]

    def __len__(self) -> int:
        return len(self._passed)

    def __contains__(self, key: bytes) -> bool:
        return key in self._passed

    def record(self, key: bytes, passed: bool) -> None:
        if key not in self._passed:
            self._order += key
        self._passed[key] = passed

    def latest(self, count: int) -> tuple[int, bytes]:
        """Return the last keys, eight bytes each, oldest first, and how many bytes of older ones there are."""
        before = max(0, len(self._order) - 8 * count)
        return before, bytes(self._order[before:])


class Signatures:
    """Who was first with a signature, and what came of it: later children with the same are its twins.

    A child whose training failed for reasons of the machine is forgotten, as soon as later children may know of it.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._first: dict[str, int] = {}
        self._diverged: set[int] = set()
        self._failed: set[int] = set()

    def record(self, child: int, signature: str) -> None:
        """Remember a child that is to be trained."""
        self._first[signature] = child

    def tell(self, child: int, *, diverged: bool = False, failed: bool = False) -> None:
        """Remember that a child's training came to no score."""
        if diverged:
            self._diverged.add(child)
        if failed:
            self._failed.add(child)

    def twin(self, child: int, signature: str) -> int | None:
        """Return the earlier child whose outcome this one shares, finished or still running."""
        first = self._first.get(signature)
        if first is None or (first <= child - self._lag and first in self._failed):
            return None
        return first

    def diverges(self, child: int, signature: str) -> bool:
        """Say whether a child may already know that this signature diverges in training."""
        first = self._first.get(signature)
        return first is not None and first <= child - self._lag and first in self._diverged
