# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Leaves that are no activation of the prediction, in compiled loops, and steps of SGD through them (Section 3.1).

The areas i, u and e of boxes take thirty small operations in plain autograd. Of pairs of items, a score stands in many: the
derivatives of all are collected before the step. `space/boxes.py` and `space/pairs.py` remain the definitions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from autoloss.rejection.compiled.functions import INLINED, OPTIONS, constant, exponential
from autoloss.rejection.compiled.kernels import U, sigmoid, step
from autoloss.space.boxes import CLAMP

AREAS = 3
"""i, u and e, one channel each."""
REFERENCE, TARGET, DEVIATIONS, UNIT, GIVEN = 0, 4, 8, 12, 13
"""Rows of the fixed inputs of each box: reference box, target box, deviations of the deltas, unit of its areas; number of rows."""


@njit(**INLINED)
def _predict_axis(w, z, given, axis, i, count):
    """Return begin and end of a predicted box along an axis, half its length, and the shift per unit of delta."""
    low, high = w[given + axis * count + i], w[given + (axis + U(2)) * count + i]
    deviations = given + (U(DEVIATIONS) + axis) * count + i
    size = high - low
    two, clamp = constant(size, 2), constant(size, CLAMP)
    growth = w[z + (axis + U(2)) * count + i] * w[deviations + U(2) * count]
    half = exponential(growth if growth < clamp else clamp) * size / two
    centre = low + size / two + w[z + axis * count + i] * w[deviations] * size
    return centre - half, centre + half, half, size * w[deviations]


@njit(**INLINED)
def _target_axis(w, given, axis, i, count):
    target = given + (U(TARGET) + axis) * count + i
    return w[target], w[target + U(2) * count]


@njit(**INLINED)
def _measure_overlap(first, last, low, high):
    """Return the overlap of two intervals, and the length of the shortest interval that contains both; NaN stays NaN."""
    inner = (high if last > high else last) - (low if first < low else first)
    return inner, (last if last > high else high) - (first if first < low else low)


@njit(**INLINED)
def _clip_below_zero(x):
    zero = constant(x, 0)
    return zero if x < zero else x


@njit(**OPTIONS)
def measure_boxes(w, z, i_to, u_to, e_to, given, count):
    """Compute the areas of a tile of boxes."""
    for i in range(count):
        left, right, _, _ = _predict_axis(w, z, given, U(0), i, count)
        top, bottom, _, _ = _predict_axis(w, z, given, U(1), i, count)
        target_left, target_right = _target_axis(w, given, U(0), i, count)
        target_top, target_bottom = _target_axis(w, given, U(1), i, count)
        across, around_x = _measure_overlap(left, right, target_left, target_right)
        along, around_y = _measure_overlap(top, bottom, target_top, target_bottom)
        common = _clip_below_zero(across) * _clip_below_zero(along)
        unit = w[given + U(UNIT) * count + i]
        own = (right - left) * (bottom - top)
        w[i_to + i] = common / unit
        w[u_to + i] = (own + (target_right - target_left) * (target_bottom - target_top) - common) / unit
        w[e_to + i] = around_x * around_y / unit


@njit(**INLINED)
def _weigh_bounds(first, last, low, high):
    """Return, for end and begin, 1 where the prediction bounds the overlap, 1/2 where it equals the target, else 0."""
    zero, half, one = constant(first, 0), constant(first, 0.5), constant(first, 1)
    end = one if last < high else (zero if last > high else half)
    return end, one if first > low else (zero if first < low else half)


@njit(**INLINED)
def _descend_axis(w, z, velocity, given, i, count, slopes, along_axis, momentum, rate):
    """Step on the two deltas of an axis.

    Args:
        slopes: Derivatives of the loss by overlap, own area and enclosing area.
        along_axis: The axis; lengths of predicted box, overlap and enclosing box along the other axis; half the predicted length
            and the shift per unit of delta; the two results of `_weigh_bounds` for this axis, and its overlap.
    """
    axis, own, along, around, half, shift, (end, begin, inner) = along_axis
    zero, one, two = constant(end, 0), constant(end, 1), constant(end, 2)
    by_overlap = slopes[0] * _clip_below_zero(along) if inner >= zero else zero
    by_around = slopes[2] * around
    by_centre = (by_overlap - by_around) * (end - begin)
    by_half = by_overlap * (end + begin) + by_around * (two - end - begin) + two * slopes[1] * own
    deviation = w[given + (U(DEVIATIONS + 2) + axis) * count + i]
    growth = w[z + (axis + U(2)) * count + i] * deviation
    grows = one if growth <= constant(end, CLAMP) else zero
    bad = step(w, z, velocity, axis * count + i, by_centre * shift, momentum, rate)
    return bad | step(w, z, velocity, (axis + U(2)) * count + i, grows * by_half * half * deviation, momentum, rate)


@njit(**OPTIONS)
def descend_boxes(w, z, velocity, given, di, du, de, factors, count, momentum, rate):
    """Take a step of SGD along the derivatives by i, u and e, each times its factor."""
    bad = np.int32(0)
    for i in range(count):
        left, right, half_width, shift_x = _predict_axis(w, z, given, U(0), i, count)
        top, bottom, half_height, shift_y = _predict_axis(w, z, given, U(1), i, count)
        target_left, target_right = _target_axis(w, given, U(0), i, count)
        target_top, target_bottom = _target_axis(w, given, U(1), i, count)
        across, around_x = _measure_overlap(left, right, target_left, target_right)
        along, around_y = _measure_overlap(top, bottom, target_top, target_bottom)
        unit = w[given + U(UNIT) * count + i]
        by_u = factors[1] * w[du + i] / unit
        slopes = (factors[0] * w[di + i] / unit - by_u, by_u, factors[2] * w[de + i] / unit)
        right_bounds, left_bounds = _weigh_bounds(left, right, target_left, target_right)
        bottom_bounds, top_bounds = _weigh_bounds(top, bottom, target_top, target_bottom)
        x, y = (right_bounds, left_bounds, across), (bottom_bounds, top_bounds, along)
        width, height = right - left, bottom - top
        horizontal = (U(0), height, along, around_y, half_width, shift_x, x)
        bad |= _descend_axis(w, z, velocity, given, i, count, slopes, horizontal, momentum, rate)
        vertical = (U(1), width, across, around_x, half_height, shift_y, y)
        bad |= _descend_axis(w, z, velocity, given, i, count, slopes, vertical, momentum, rate)
    return bad != 0


@njit(**OPTIONS)
def measure_pairs(w, z, p, items, begin, count, is_probability):
    """Compute p of the `count` pairs from number `begin` on: a probability, or the difference of scores itself."""
    for i in range(count):
        w[p + i] = w[z + items[U(0), begin + i]] - w[z + items[U(1), begin + i]]
    if is_probability:
        sigmoid(w, p, p, count)


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
