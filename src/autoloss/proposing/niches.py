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

from autoloss.proposing.view import View


class Niches:
    """The niche of each candidate: the first candidate whose gradient is as near as a radius, or the candidate itself.

    Gradients are near where on each branch the features of `describe_signature` differ by less than the radius (root mean square):
    norms by that share, directions by that much.

    Args:
        radius: Above 0.
    """

    def __init__(self, radius: float) -> None:
        self._radius = radius

    def find(self, visible: View, among: Sequence[int]) -> list[int]:
        """Return the niche of each of several visible candidates, by the number of its first member."""
        niches, centres = visible.memo(self, _begin)
        # In their order: a niche begins with its first member.
        for k in range(len(niches), max(among, default=-1) + 1):
            signature = visible.candidate(k).signature
            widths = tuple(len(signature.get(branch, ())) for branch in visible.branches)
            if any(widths) and widths not in centres:
                centres[widths] = _Centres(widths)
            [row] = visible.describe([k])
            niches.append(centres[widths].find(k, row, self._radius) if any(widths) else k)
        return [niches[k] for k in among]


def _begin() -> tuple[list[int], dict[tuple[int, ...], _Centres]]:
    """Return the niches of no candidates, and for each number of features of the branches the niches with so many."""
    return [], {}


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
