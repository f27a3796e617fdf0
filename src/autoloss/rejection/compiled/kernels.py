# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1 in compiled loops: each operator and its derivative over a contiguous range of a flat workspace.

Every loop reads and writes `workspace` at unsigned offsets, which LLVM vectorises. A result never overlaps an operand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from autoloss.rejection.compiled.functions import (
    OPTIONS,
    constant,
    decay,
    exponential,
    from_rank,
    hyperbolic_tangent,
    logarithm,
    to_rank,
)
from autoloss.space.operators import EPSILON

Loop = Callable[..., Any]

U = np.uint64


@njit(**OPTIONS)
def _inverse(x):
    return constant(x, 1) / (x + constant(x, EPSILON))


@njit(**OPTIONS)
def _sign(x):
    # As in torch, the sign of NaN is 0.
    zero, one = constant(x, 0), constant(x, 1)
    return (one if x > zero else zero) - (one if x < zero else zero)


@njit(**OPTIONS)
def _log(x):
    return _sign(x) * logarithm(abs(x) + constant(x, EPSILON))


@njit(**OPTIONS)
def _sqrt(x):
    return _sign(x) * np.sqrt(abs(x) + constant(x, EPSILON))


@njit(**OPTIONS)
def _log_slope(x):
    return abs(_sign(x)) / (abs(x) + constant(x, EPSILON))


@njit(**OPTIONS)
def _tanh_slope(result):
    return constant(result, 1) - result * result


@njit(**OPTIONS)
def _sqrt_slope(result):
    zero, half = constant(result, 0), constant(result, 0.5)
    return zero if result == zero else half / abs(result)


def _unary(function: Callable[[Any], Any]) -> Loop:
    @njit(**OPTIONS)
    def loop(workspace, to, a, count, factor):
        for i in range(count):
            workspace[to + i] = function(factor * workspace[a + i])

    return loop


absolute = _unary(abs)
inverse = _unary(_inverse)
signed_log = _unary(_log)
exp = _unary(exponential)
tanh = _unary(hyperbolic_tangent)
signed_sqrt = _unary(_sqrt)
sign = _unary(_sign)
log_slope = _unary(_log_slope)
tanh_slope = _unary(_tanh_slope)
sqrt_slope = _unary(_sqrt_slope)


@njit(**OPTIONS)
def multiply(workspace, to, a, b, count):
    """Write the product of two registers."""
    for i in range(count):
        workspace[to + i] = workspace[a + i] * workspace[b + i]


@njit(**OPTIONS)
def combine(workspace, to, a, b, count, factor, second):
    """Write `factor * a + second * b`."""
    for i in range(count):
        workspace[to + i] = factor * workspace[a + i] + second * workspace[b + i]


@njit(**OPTIONS)
def shift(workspace, to, a, count, factor, second):
    """Write `factor * a + second`."""
    for i in range(count):
        workspace[to + i] = factor * workspace[a + i] + second


@njit(**OPTIONS)
def fill(workspace, to, count, value):
    """Write a value to every element."""
    for i in range(count):
        workspace[to + i] = value


@njit(**OPTIONS)
def spread(workspace, to, a, channels, positions, by_channel, by_position):
    """Repeat a, one number per channel, per position, or a single one, over channels × positions."""
    for c in range(channels):
        row = to + c * positions
        if by_position:
            for i in range(positions):
                workspace[row + i] = workspace[a + i]
        else:
            fill(workspace, row, positions, workspace[a + c] if by_channel else workspace[a])


@njit(**{**OPTIONS, "fastmath": {"reassoc"}})
def sum_of(workspace, a, count):
    """Sum a range. Only the order of addition is free: a non-finite element gives a non-finite sum."""
    total = constant(workspace[a], 0)
    for i in range(count):
        total += workspace[a + i]
    return total


@njit(**{**OPTIONS, "fastmath": {"reassoc", "contract"}})
def inner_product(first, a, second, b, count):
    """Return the inner product of two rows."""
    total = constant(first[a], 0)
    for i in range(count):
        total += first[a + i] * second[b + i]
    return total


@njit(**{**OPTIONS, "fastmath": {"reassoc"}})
def masked_sum_of(workspace, a, mask, count):
    """Sum the elements that count, by selection, since 0·NaN would be NaN."""
    zero = constant(workspace[mask], 0)
    total = zero
    for i in range(count):
        total += workspace[a + i] if workspace[mask + i] != zero else zero
    return total


@njit(**OPTIONS)
def sum_channels(workspace, to, a, channels, positions):
    """Write the sum over the channels."""
    for i in range(positions):
        workspace[to + i] = workspace[a + i]
    for c in range(U(1), channels):
        row = a + c * positions
        for i in range(positions):
            workspace[to + i] += workspace[row + i]


@njit(**OPTIONS)
def sum_positions(workspace, to, a, channels, positions, begin):
    """Add the sum of a tile to that of each channel; `begin` is true for the first tile."""
    for c in range(channels):
        found = sum_of(workspace, a + c * positions, positions)
        workspace[to + c] = found if begin else workspace[to + c] + found


LEAST = 1e-8
"""Least sum of exponentials at a position. Above it, a p that underflows is below e⁻⁸⁵, which the operators distinguish from 0 only
by its sign."""


@njit(**OPTIONS)
def softmax(workspace, to, z, scratch, channels, positions):
    """Softmax over channels; `scratch` holds two numbers per position.

    Any shift of z gives the same result up to rounding, as long as no sum overflows or vanishes. One shift for the whole range
    saves most of the loops; where it is not enough, each position gets its own.
    """
    count = channels * positions
    high, whole = _largest(workspace, z, count), scratch
    _exponentiate(workspace, to, z, high, whole, U(0), positions, True)
    for c in range(U(1), channels):
        _exponentiate(workspace, to, z, high, whole, c * positions, positions, False)
    if not _all_above(workspace, whole, positions, constant(high, LEAST)):
        _softmax_each(workspace, to, z, scratch, channels, positions)
        return
    _divide(workspace, to, whole, channels, positions)


@njit(**OPTIONS)
def _exponentiate(workspace, to, z, high, whole, at, positions, begin):
    """Write the exponentials of a channel, and add them to `whole`."""
    for i in range(positions):
        e = decay(workspace[z + at + i] - high)
        workspace[to + at + i] = e
        workspace[whole + i] = e if begin else workspace[whole + i] + e


@njit(**OPTIONS)
def _largest(workspace, a, count):
    most = to_rank(workspace[a])
    for i in range(count):
        rank = to_rank(workspace[a + i])
        most = rank if rank > most else most
    return from_rank(most)


@njit(**OPTIONS)
def _all_above(workspace, a, count, least):
    found = np.int32(1)
    for i in range(count):
        found = np.int32(found & np.int32(workspace[a + i] > least))
    return found != 0


@njit(**OPTIONS)
def _divide(workspace, to, whole, channels, positions):
    for i in range(positions):
        workspace[whole + i] = constant(workspace[whole + i], 1) / workspace[whole + i]
    for c in range(channels):
        out = to + c * positions
        for i in range(positions):
            workspace[out + i] *= workspace[whole + i]


@njit(**OPTIONS)
def _softmax_each(workspace, to, z, scratch, channels, positions):
    """Softmax with each position's own largest z as its shift, as torch has it."""
    high, whole = scratch, scratch + positions
    for i in range(positions):
        workspace[high + i] = workspace[z + i]
        workspace[whole + i] = 0
    for c in range(U(1), channels):
        row = z + c * positions
        for i in range(positions):
            x, most = workspace[row + i], workspace[high + i]
            workspace[high + i] = x if x > most else most
    for c in range(channels):
        row, out = z + c * positions, to + c * positions
        for i in range(positions):
            e = decay(workspace[row + i] - workspace[high + i])
            workspace[out + i] = e
            workspace[whole + i] += e
    _divide(workspace, to, whole, channels, positions)


@njit(**OPTIONS)
def sigmoid(workspace, to, z, count):
    """Write 1 / (1 + exp(−z))."""
    for i in range(count):
        x = workspace[z + i]
        one = constant(x, 1)
        workspace[to + i] = one / (one + exponential(-x))


@njit(**OPTIONS)
def step(workspace, z, velocity, i, slope, momentum, rate):
    """Take one step of SGD with momentum; return whether the slope was not finite.

    Without momentum and rate, write the slope to `velocity` instead. With a rate alone, return whether z still moves: it does not
    where the slope is zero and the velocity, which decays from then on, is too small to change it. Twice the velocity in either
    direction is too small, so this step has not changed z either, and the slope at the new z is the same.

    Callers cast the union of results back to 32 bits: numba computes in 64, which halves the length of the vectors.
    """
    if rate is None:
        workspace[velocity + i] = slope
    elif momentum is None:
        x, far = workspace[z + i], constant(slope, 2) * rate * workspace[velocity + i]
        return np.int32((slope != constant(slope, 0)) | (x - far != x) | (x + far != x))
    else:
        v = momentum * workspace[velocity + i] + slope
        workspace[velocity + i] = v
        workspace[z + i] -= rate * v
    return np.int32(not (abs(slope) < constant(slope, np.inf)))


@njit(**OPTIONS)
def descend_softmax(workspace, z, velocity, p, slope, factor, scratch, channels, positions, first, momentum, rate):
    """Take a step of SGD along `factor` · `slope`, the derivative by p, through the softmax over channels.

    Args:
        scratch: One number per position.
        first: The first channel that is optimised; 1 when channel 0 is a constant logit 0.
    """
    for i in range(positions):
        workspace[scratch + i] = 0
    for c in range(channels):
        at = c * positions
        for i in range(positions):
            workspace[scratch + i] += factor * workspace[slope + at + i] * workspace[p + at + i]
    bad = np.int32(0)
    for c in range(first, channels):
        at = c * positions
        for i in range(positions):
            dz = (factor * workspace[slope + at + i] - workspace[scratch + i]) * workspace[p + at + i]
            bad = np.int32(bad | step(workspace, z, velocity, at + i, dz, momentum, rate))
    return bad != 0


@njit(**OPTIONS)
def descend_sigmoid(workspace, z, velocity, p, slope, factor, count, momentum, rate):
    """Take a step of SGD with momentum through a sigmoid; return whether a value became non-finite."""
    bad = np.int32(0)
    for i in range(count):
        q = workspace[p + i]
        dz = factor * workspace[slope + i] * (constant(q, 1) - q) * q
        bad = np.int32(bad | step(workspace, z, velocity, i, dz, momentum, rate))
    return bad != 0


@njit(**OPTIONS)
def descend_plain(workspace, z, velocity, slope, factor, count, momentum, rate):
    """Take a step of SGD with momentum on raw predictions; return whether a value became non-finite."""
    bad = np.int32(0)
    for i in range(count):
        bad = np.int32(bad | step(workspace, z, velocity, i, factor * workspace[slope + i], momentum, rate))
    return bad != 0


@njit(**OPTIONS)
def is_zero(workspace, a, count):
    """Return whether every element is 0."""
    found = np.int32(0)
    for i in range(count):
        found = np.int32(found | np.int32(workspace[a + i] != 0))
    return found == 0
