"""Where a proposer finds parents: the seam for other populations than the paper's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from random import Random

from autoloss.proposing.records import Candidate, Outcome


class Archive(ABC):
    """Keeps what may become a parent, and draws parents from it.

    A proposer is handed an archive when it is made, and is its only caller: `add` once for every candidate, in any order, and
    `draw_parent(k, rng)` once candidates 0 … k − lag have been added. The parent is a function of k, the generator and the outcomes
    of candidates 0 … k − lag: equal in whatever order they were added, and whatever else was.
    """

    @abstractmethod
    def add(self, k: int, outcome: Outcome) -> None:
        """Take in what candidate k came to; one without a score never becomes a parent."""

    def observe(self, candidate: Candidate) -> None:
        """Take in how a candidate was made, before what it came to; by default nothing is learnt from that."""
        return

    @abstractmethod
    def draw_parent(self, k: int, rng: Random) -> int | None:
        """Draw the parent of candidate k from candidates 0 … k − lag, or return None where none of them has a score."""
