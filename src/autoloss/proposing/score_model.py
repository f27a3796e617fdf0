# pyright: basic
"""A model of what losses score: a Gaussian process over what their gradients look like."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloss.settings import SearchSettings

Features = Sequence[Sequence[float] | NDArray[np.float64]]
Smoothness = tuple[float, float]
"""The assumed dependence of scores on the features: the distance over which scores stay alike, as a multiple of the square root of
the number of features; and the variance of the scores around the model, where scores have variance 1."""
LENGTHS = (0.5, 1.0, 2.0)
NOISES = (0.03, 0.3)
"""The values of both that are tried."""
OPTIMISM = 1.0
"""Standard deviations that are added to the mean where losses are chosen: the upper confidence bound of Srinivas et al. (2010)."""
PARTS = 4
"""A signature of a search at the standard loss's scale has norms and products, at the start and at partly right predictions."""
BOUND = 6.0
"""Largest absolute value of a feature, in standard deviations: an exploding gradient is as far away as any other."""


def describe_signature(signature: Sequence[str], *, direction: bool = False) -> list[float]:
    """Return the features of a loss on one branch: logarithms of norms, and products divided by their norms.

    Args:
        direction: Whether the signature holds such quotients alone (`search.direction`). They are brought to a mean square of 1:
            the product of a unit vector with a random one is as small as there are many numbers, and changes by that share of an
            angle.

    >>> [round(value, 2) for value in describe_signature(["1e0", "5e-1", "1e-1", "-1e-1"])]
    [0.0, 0.5, -2.3, -1.0]
    """
    values = [float(text) for text in signature]
    if direction:
        size = math.sqrt(sum(value * value for value in values) / max(1, len(values)))
        return [_divide(value, size) for value in values]
    if len(values) % PARTS:
        return [_log(value) for value in values]
    count = len(values) // PARTS
    start, products, later, later_products = (values[part * count : (part + 1) * count] for part in range(PARTS))
    return [
        *map(_log, start),
        *(_divide(product, norm) for product, norm in zip(products, start, strict=True)),
        *map(_log, later),
        *(_divide(product, norm) for product, norm in zip(later_products, later, strict=True)),
    ]


def describe_loss(
    signature: Mapping[str, Sequence[str]], branches: Sequence[str], search: SearchSettings
) -> NDArray[np.float64]:
    """Return the features of a loss on all branches, one after the other; a branch without a signature has none."""
    direction = search.direction and search.scale
    found = (describe_signature(signature.get(branch, ()), direction=direction) for branch in branches)
    return np.array([value for features in found for value in features])


def _log(value: float) -> float:
    return math.log(min(max(value, 1e-30), 1e30)) if math.isfinite(value) else math.log(1e30)


def _divide(product: float, norm: float) -> float:
    quotient = product / norm if norm else 0.0
    return quotient if math.isfinite(quotient) else 0.0


def find_normal_scores(scores: Sequence[float]) -> NDArray[np.float64]:
    """Return the normal scores of the ranks; equal scores have equal ones."""
    from scipy.special import ndtri
    from scipy.stats import rankdata

    return ndtri(rankdata(scores) / (len(scores) + 1))


class ScoreModel:
    """A Gaussian process with a Matérn kernel, fitted to the ranks of scores.

    Ranks: scores of losses that train nothing differ by orders of magnitude less than those of the others.

    Args:
        features: One row per loss, all of one length.
        scores: Higher is better.
        smoothness: By default the one of a small grid under which the scores are most likely, which takes one fit for each.
        expected: What a prior says of the losses, in the unit of normal scores; the process is fitted to what differs from it.
    """

    def __init__(
        self,
        features: Features,
        scores: Sequence[float],
        smoothness: Smoothness | None = None,
        expected: NDArray[np.float64] | float = 0.0,
    ) -> None:
        rows = np.asarray(features, dtype=np.float64)
        self._centre = rows.mean(axis=0)
        spread = rows.std(axis=0)
        # A feature that all losses share says nothing.
        self._width = np.where(spread > 1e-9, spread, np.inf)
        targets = find_normal_scores(scores) - expected
        targets -= targets.mean()
        self._unit = max(targets.std(), 1e-9)
        self.smoothness, self._process = _fit_process(
            self._standardise(rows),
            targets / self._unit,
            [*product(LENGTHS, NOISES)] if smoothness is None else [smoothness],
        )

    def _standardise(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip((rows - self._centre) / self._width, -BOUND, BOUND)

    def predict(self, features: Features) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the normal scores of losses, less what a prior says of them."""
        rows = self._standardise(np.asarray(features, dtype=np.float64))
        with _libraries().limit(limits=1):
            mean, deviation = self._process.predict(rows, return_std=True)
        return self._unit * mean, self._unit * deviation

    def find_bounds(self, features: Features) -> NDArray[np.float64]:
        """Return the upper confidence bounds of losses, less what a prior says of them."""
        mean, deviation = self.predict(features)
        return mean + OPTIMISM * deviation


def _fit_process(
    rows: NDArray[np.float64], targets: NDArray[np.float64], choices: Sequence[Smoothness]
) -> tuple[Smoothness, Any]:
    """Fit one process for each choice, and return the one under which the scores are most likely."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    found: list[tuple[Smoothness, Any]] = []
    unit = math.sqrt(rows.shape[1])
    # One thread: the order of additions, and so the last bits, do not depend on the number of cores.
    with _libraries().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for length, noise in choices:
            kernel = Matern(length * unit, nu=2.5) + WhiteKernel(noise)
            process = GaussianProcessRegressor(kernel, optimizer=None, alpha=1e-8)  # pyright: ignore[reportArgumentType]
            found.append(((length, noise), process.fit(rows, targets)))
    return max(found, key=lambda each: round(each[1].log_marginal_likelihood_value_, 9))


@cache
def _libraries() -> Any:
    """Return what limits the threads of the libraries of linear algebra; finding these takes several milliseconds."""
    from sklearn import gaussian_process  # noqa: F401 - it loads them
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
