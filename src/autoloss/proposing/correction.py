"""Scores of short trainings, corrected by what longer ones came to.

A loss that only learns fast leads where trainings are short, and so do all losses like it. What a promoted candidate came to at a
larger share of the schedule therefore changes the value of candidates whose gradients look alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autoloss.proposing.records import Candidate, Outcome
from autoloss.proposing.score_model import describe_signature
from autoloss.proposing.visibility import Visibility
from autoloss.settings import Configuration

LEAST_PROMOTED = 3
"""Scores at a larger share from which they count."""
MOST_PROMOTED = 200
"""The latest of these that count, which bounds the time."""
LATEST = 500
"""Candidates that are valued at least, the latest ones, or the population where it is larger; this bounds the time too."""
LENGTH = 0.5
"""Distance, as a multiple of the square root of the number of features, at which a neighbour still counts 0.6."""
RESERVE = 0.25
"""Weight of the score itself beside its neighbours: a candidate far from all that were promoted keeps its own."""
BOUND = 4.0
"""Of a feature, in units of its spread."""


class ScoreCorrection:
    """Knows the scores of a search at all rungs, and values its candidates by those at the first.

    The scores at the first rung become normal scores of their ranks. At each larger share, the values of the promoted candidates
    are exchanged among themselves so that they are in the order of their scores there, and the differences that this makes are
    passed on to all candidates, weighted by a Gaussian kernel of the distance between their gradients (Nadaraya and Watson, 1964).
    """

    def __init__(self, branches: Sequence[str], configuration: Configuration) -> None:
        self._branches = tuple(branches)
        self._rungs = configuration.search.rungs
        self._visibility = Visibility(configuration)
        self._latest = max(LATEST, configuration.evolution.population)
        self._features: dict[int, list[float]] = {}
        self._origins: dict[int, int] = {}
        """Promotion → the candidate of the first rung that it is."""
        self._scores: dict[float, dict[int, float]] = {rung: {} for rung in self._rungs}

    def add(self, candidate: Candidate) -> None:
        """Take in how a candidate was made."""
        signature = candidate.signature
        self._features[candidate.id] = [
            value for branch in self._branches for value in describe_signature(signature.get(branch, ()))
        ]
        if candidate.promoted and candidate.parent is not None:
            self._origins[candidate.id] = self._origins.get(candidate.parent, candidate.parent)

    def tell(self, k: int, outcome: Outcome) -> None:
        """Take in what a candidate came to."""
        if outcome.score is not None and outcome.fidelity in self._scores:
            self._scores[outcome.fidelity][k] = outcome.score

    def values(self, k: int) -> Mapping[int, float]:
        """Return the value of each of the latest candidates with a score at the first rung, as candidate k sees them.

        Higher is better.
        """
        last, last_promoted = k - self._visibility.lag, k - self._visibility.promoted_lag
        scores = self._scores[self._rungs[0]]
        numbers = sorted(k for k in scores if k <= last)[-self._latest :]
        values = _normal_scores([scores[k] for k in numbers])
        place = {k: at for at, k in enumerate(numbers)}
        kernel_rows: NDArray[np.float64] | None = None
        for rung in self._rungs[1:]:
            found = {
                self._origins.get(k, k): score for k, score in sorted(self._scores[rung].items()) if k <= last_promoted
            }
            promoted = [(place[k], score) for k, score in found.items() if k in place and k in self._features]
            promoted = promoted[-MOST_PROMOTED:]
            if len(promoted) < LEAST_PROMOTED:
                continue
            if kernel_rows is None:
                kernel_rows = _standardise([self._features.get(k, []) for k in numbers])
            at = np.array([where for where, _ in promoted])
            order = np.argsort(np.argsort([score for _, score in promoted], kind="stable"), kind="stable")
            change = np.sort(values[at])[order] - values[at]
            distance = _squared_distances(kernel_rows, kernel_rows[at])
            weight = np.exp(-distance / (2 * LENGTH**2 * max(1, kernel_rows.shape[1])))
            values = values + (weight * change).sum(axis=1) / (RESERVE + weight.sum(axis=1))
        # Rounded: the last bits may differ between two ways to add up.
        return {k: round(float(value), 9) for k, value in zip(numbers, values, strict=True)}


def _normal_scores(scores: Sequence[float]) -> NDArray[np.float64]:
    """Return the normal scores of the ranks; equal scores have equal ones."""
    from scipy.special import ndtri  # pyright: ignore[reportMissingTypeStubs]

    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    below, up_to = np.searchsorted(ordered, scores, "left"), np.searchsorted(ordered, scores, "right")
    return ndtri((below + 1 + up_to) / 2 / (len(scores) + 1))


def _squared_distances(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return them for each pair, without an array of three dimensions."""
    squares, other_squares = (rows**2).sum(axis=1), (others**2).sum(axis=1)
    # einsum, unlike a product of matrices, adds in one order for any number of threads.
    products = np.einsum("ik,jk->ij", rows, others)
    return np.maximum(squares[:, None] + other_squares[None, :] - 2 * products, 0.0)


def _standardise(features: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """Return features around their median in units of their interquartile range; one that hardly varies counts nothing."""
    length = max(map(len, features))
    rows = np.array([[*row, *[0.0] * (length - len(row))] for row in features], dtype=np.float64)
    low, centre, high = np.percentile(rows, [25, 50, 75], axis=0)
    spread = np.where(high - low > 1e-9, high - low, np.inf)
    return np.clip((rows - centre) / spread, -BOUND, BOUND)
