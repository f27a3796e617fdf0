"""Scores of short trainings, corrected by those of longer ones.

A loss that only learns fast leads where trainings are short, and so do all losses like it. The score of a promoted candidate at a
larger share of the schedule therefore changes the value of candidates whose gradients look alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autoloss.proposing.score_model import find_normal_scores
from autoloss.proposing.view import View

LEAST_PROMOTED = 3
"""Number of scores at a larger share from which on these are used."""
MOST_PROMOTED = 200
"""Number of the latest of these that are used, which bounds the time."""
LATEST = 500
"""Number of the latest candidates that are valued; the population where it is larger. It bounds the time too."""
LENGTH = 0.5
"""Distance, as a multiple of the square root of the number of features, at which a neighbour still counts 0.6."""
RESERVE = 0.25
"""Weight of the score itself beside its neighbours: a candidate far from all that were promoted keeps its own."""
BOUND = 4.0
"""Largest absolute value of a feature, in units of its spread."""


def correct_scores(visible: View) -> Mapping[int, float]:
    """Return the value of each of the latest candidates with a score at the first rung, as a candidate sees them.

    The scores at the first rung become normal scores of their ranks; of losses that noise cannot tell apart the simpler one is
    ahead (`search.resolution`). At each larger share, the values of the promoted candidates
    are exchanged among themselves so that they are in the order of their scores there, and the differences that this makes are
    passed on to all candidates, weighted by a Gaussian kernel of the distance between their gradients (Nadaraya and Watson, 1964).

    Returns:
        Candidate → value; higher is better.
    """
    rungs = visible.configuration.search.rungs
    numbers = visible.scored(rungs[0])[-max(LATEST, visible.configuration.evolution.population) :]
    values = find_normal_scores(_prefer_simple(visible, numbers))
    place = {k: at for at, k in enumerate(numbers)}
    rows: NDArray[np.float64] | None = None
    for rung in rungs[1:]:
        scored = visible.scored(rung)
        scores = {_find_origin(visible, k): score for k, score in zip(scored, visible.scores(scored), strict=True)}
        promoted = [(place[k], score) for k, score in scores.items() if k in place][-MOST_PROMOTED:]
        if len(promoted) < LEAST_PROMOTED:
            continue
        if rows is None:
            rows = _standardise(visible.describe(numbers))
        at = np.array([where for where, _ in promoted])
        order = np.argsort(np.argsort([score for _, score in promoted], kind="stable"), kind="stable")
        change = np.sort(values[at])[order] - values[at]
        weight = np.exp(-_squared_distances(rows, rows[at]) / (2 * LENGTH**2 * max(1, rows.shape[1])))
        values = values + (weight * change).sum(axis=1) / (RESERVE + weight.sum(axis=1))
    # Rounded: the last bits may differ between two ways to add up.
    return {k: round(float(value), 9) for k, value in zip(numbers, values, strict=True)}


def _prefer_simple(visible: View, numbers: Sequence[int]) -> list[float]:
    """Return scores in steps of what noise leaves open, less a little for each operator."""
    step, scores = visible.configuration.search.resolution, visible.scores(numbers)
    if not step:
        return scores
    # In prefix text each operator has one opening parenthesis.
    operators = [visible.candidate(k).loss.count("(") for k in numbers]
    return [math.floor(score / step) - 1e-6 * count for score, count in zip(scores, operators, strict=True)]


def _find_origin(visible: View, k: int) -> int:
    """Return the candidate of the first rung that a promoted one is."""
    while (candidate := visible.candidate(k)).promoted and candidate.parent is not None:
        k = candidate.parent
    return k


def _squared_distances(rows: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return them for each pair, without an array of three dimensions."""
    squares, other_squares = (rows**2).sum(axis=1), (others**2).sum(axis=1)
    # einsum, unlike a product of matrices, adds in one order for any number of threads.
    products = np.einsum("ik,jk->ij", rows, others)
    return np.maximum(squares[:, None] + other_squares[None, :] - 2 * products, 0.0)


def _standardise(features: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return features around their median in units of their interquartile range; one that hardly varies counts nothing."""
    length = max(map(len, features))
    rows = np.array([row if len(row) == length else np.pad(row, (0, length - len(row))) for row in features])
    low, centre, high = np.percentile(rows, [25, 50, 75], axis=0)
    spread = np.where(high - low > 1e-9, high - low, np.inf)
    return np.clip((rows - centre) / spread, -BOUND, BOUND)
