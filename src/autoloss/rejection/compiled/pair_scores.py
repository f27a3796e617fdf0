# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""The leaf p of pairs of items in compiled loops, and a step of SGD on the scores of the items through it.

A score stands in many pairs: the derivatives of all of them are collected before the step. `space/pairs.py` remains the definition.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from autoloss.rejection.compiled.functions import OPTIONS, constant, exponential
from autoloss.rejection.compiled.kernels import U, step


@njit(**OPTIONS)
def measure_pairs(w, z, p, items, begin, count, is_probability):
    """Compute p of the `count` pairs from number `begin` on: a probability, or the difference of scores itself."""
    for i in range(count):
        w[p + i] = w[z + items[U(0), begin + i]] - w[z + items[U(1), begin + i]]
    if is_probability:
        for i in range(count):
            x = w[p + i]
            one = constant(x, 1)
            w[p + i] = one / (one + exponential(-x))


@njit(**OPTIONS)
def collect_slopes(w, gradient, p, slope, factor, items, begin, count, is_probability):
    """Add `factor` · `slope`, the derivative by p, of a tile of pairs to the derivatives by the scores."""
    for i in range(count):
        by_difference = factor * w[slope + i]
        if is_probability:
            q = w[p + i]
            by_difference *= (constant(q, 1) - q) * q
        w[gradient + items[U(0), begin + i]] += by_difference
        w[gradient + items[U(1), begin + i]] -= by_difference


@njit(**OPTIONS)
def descend_scores(w, z, velocity, gradient, count, momentum, rate):
    """Take a step of SGD on all scores; return whether the gradient was not finite. Or do the other things of `kernels.step`."""
    bad = np.int32(0)
    for i in range(count):
        bad = np.int32(bad | step(w, z, velocity, i, w[gradient + i], momentum, rate))
    return bad != 0
