"""Groups of losses whose gradients are nearly equal.

Mutations of one good loss are mostly the same loss with other digits. Where each counted for itself they would soon be most of the
parents: their scores differ by chance, and the best of many is ahead of any that stands alone.
Searches that keep several kinds of solutions therefore compare within such a group first (Mahfoud, Niching Methods for Genetic
Algorithms, 1995; Mouret and Clune, Illuminating Search Spaces by Mapping Elites, 2015).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoloss.proposing.records import Candidate
from autoloss.proposing.score_model import describe_signature
from autoloss.settings import Configuration


class Niches:
    """Knows the niche of each candidate: the first candidate whose gradient is as near as a radius, or the candidate itself.

    Gradients are near where on each branch the features of `describe_signature` differ by less than the radius (root mean square):
    norms by that share, directions by that much.

    Args:
        radius: Above 0.
    """

    def __init__(self, branches: Sequence[str], radius: float) -> None:
        self._branches = tuple(branches)
        self._radius = radius
        self._of: dict[int, int] = {}
        self._centres: dict[tuple[int, ...], _Centres] = {}
        """Numbers of features of each branch → the niches with so many."""

    def add(self, candidate: Candidate) -> None:
        """Find the niche of a candidate; candidates are added in their order."""
        rows = [describe_signature(candidate.signature.get(branch, ())) for branch in self._branches]
        widths = tuple(map(len, rows))
        if not any(widths):
            self._of[candidate.id] = candidate.id
            return
        centres = self._centres.setdefault(widths, _Centres(widths))
        self._of[candidate.id] = centres.find(candidate.id, np.concatenate(rows), self._radius)

    def find(self, k: int) -> int:
        """Return the niche of a candidate, by the number of its first member; one that was not added is a niche of its own."""
        return self._of.get(k, k)


def make_niches(branches: Sequence[str], configuration: Configuration) -> Niches | None:
    """Return the niches of a search, None where each candidate counts for itself."""
    radius = configuration.search.niche
    return Niches(branches, radius) if radius > 0 else None


class _Centres:
    """The first members of niches, in rows of an array that grows."""

    def __init__(self, widths: Sequence[int]) -> None:
        self._starts = np.cumsum([0, *(width for width in widths if width)])[:-1]
        self._widths = np.array([width for width in widths if width])
        self._numbers: list[int] = []
        self._rows: NDArray[np.float64] = np.empty((16, sum(widths)))

    def find(self, number: int, row: NDArray[np.float64], radius: float) -> int:
        """Return the nearest centre, if that is within the radius; else the row becomes one."""
        count = len(self._numbers)
        if count:
            squares = np.add.reduceat((self._rows[:count] - row) ** 2, self._starts, axis=1) / self._widths
            distances = squares.max(axis=1)
            nearest = int(np.argmin(distances))
            if distances[nearest] <= radius**2:
                return self._numbers[nearest]
        if count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._rows[count] = row
        self._numbers.append(number)
        return number
