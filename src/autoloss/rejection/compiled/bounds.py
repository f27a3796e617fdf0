"""Interval bounds of a tree's value, by which the compiled engine leaves out a value that is finite whatever happens.

The steps of the protocol need the gradient only; the value only tells whether it is finite. After a softmax or a sigmoid p lies
in [0, 1], so for most trees that is known beforehand, and the value and all that only it needs are never computed. A p that is
NaN is found by the gradient, which is a multiple of p.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from autoloss.rejection.compiled.tape import Instruction, Op, Scaled
from autoloss.space.operators import EPSILON

Interval = tuple[float, float]

PROBABILITY: Interval = (0.0, 1.01)
"""Of p after an activation; rounding may take it above 1."""
LARGEST = 1e30
"""Absolute value up to which a number counts as bounded, far below the largest one in single precision."""
NEGATIVE = -1e-6
"""Largest negative number whose inverse counts as bounded."""
ROUNDING = 1e-5
"""Relative widening of each result. It covers rounding in single precision and the polynomials of `functions.py`."""
SUM_ROUNDING = 0.1
"""The same for sums of many numbers."""


def is_bounded(instructions: Sequence[Instruction], leaves: Mapping[int, Interval], elements: int) -> bool:
    """Check that no result of the instructions can be infinite, NaN, or larger than `LARGEST`, in either precision.

    Args:
        instructions: Those of a tree's value, in order, its sum included.
        leaves: Register → bounds of its elements.
        elements: Number of elements of the largest register.
    """
    bounds = dict(leaves)
    for one in instructions:
        if not _is_alike(one.factor) or not _is_alike(one.second):
            return False
        low, high = _bound(one, bounds, elements)
        if not -LARGEST <= low <= high <= LARGEST:
            return False
        bounds[one.to] = low - ROUNDING * abs(low), high + ROUNDING * abs(high)
    return True


def _is_alike(constant: Scaled) -> bool:
    """Check that a constant is bounded, and the same in both precisions up to rounding."""
    return abs(constant.single) <= LARGEST and abs(constant.single - constant.double) <= ROUNDING * abs(constant.double)


def _bound(one: Instruction, bounds: Mapping[int, Interval], elements: int) -> Interval:
    constant = one.second.double, one.second.double
    if one.op is Op.FILL:
        return constant
    a, b = (bounds[register] if register is not None else (0.0, 0.0) for register in (one.a, one.b))
    match one.op:
        case Op.SPREAD:
            return a
        case Op.MULTIPLY:
            products = [x * y for x in a for y in b]
            return (0.0 if one.a == one.b else min(products)), max(products)
        case Op.COMBINE:
            return _add(_scale(a, one.factor), _scale(b, one.second))
        case Op.SHIFT:
            return _add(_scale(a, one.factor), constant)
        case Op.SUM_CHANNELS | Op.SUM_POSITIONS:
            return _sum(a, elements)
        case Op.TOTAL | Op.MASKED_TOTAL:
            return _sum(_scale(a, one.factor), elements)
        case _:
            return _UNARY[one.op](_scale(a, one.factor))


def _scale(a: Interval, factor: Scaled) -> Interval:
    ends = a[0] * factor.double, a[1] * factor.double
    return min(ends), max(ends)


def _add(a: Interval, b: Interval) -> Interval:
    """Add bounds. What cancels keeps the rounding errors of its terms, except that a sum of one sign keeps that sign."""
    error = ROUNDING * max(*map(abs, a), *map(abs, b))
    low, high = a[0] + b[0], a[1] + b[1]
    return (low if min(a[0], b[0]) >= 0 else low - error), (high if max(a[1], b[1]) <= 0 else high + error)


def _sum(a: Interval, count: int) -> Interval:
    most = (1 + SUM_ROUNDING) * count * max(map(abs, a))
    return (0.0 if a[0] >= 0 else -most), (0.0 if a[1] <= 0 else most)


def _magnitude(a: Interval) -> Interval:
    return (0.0 if a[0] <= 0 <= a[1] else min(map(abs, a))), max(map(abs, a))


def _invert(a: Interval) -> Interval:
    if a[0] >= 0:
        return 0.0, 1 / (a[0] + EPSILON)
    return (1 / (a[1] + EPSILON), 0.0) if a[1] <= NEGATIVE else (-math.inf, math.inf)


def _sign_times(function: Callable[[float], float]) -> Callable[[Interval], Interval]:
    """Return the bounds of sign(x) · function(|x| + ε), for a growing function; at 0 it is 0."""

    def bound(a: Interval) -> Interval:
        low, high = (function(size + EPSILON) for size in _magnitude(a))
        if a[0] >= 0:
            return min(0.0, low), max(0.0, high)
        if a[1] <= 0:
            return min(0.0, -high), max(0.0, -low)
        most = max(abs(low), abs(high))
        return -most, most

    return bound


_UNARY: Mapping[Op, Callable[[Interval], Interval]] = {
    Op.ABS: _magnitude,
    Op.INV: _invert,
    Op.LOG: _sign_times(math.log),
    Op.SQRT: _sign_times(math.sqrt),
    Op.EXP: lambda a: (0.0, math.exp(min(a[1], 100.0))),
    Op.TANH: lambda a: (math.tanh(a[0]), math.tanh(a[1])),
    Op.POOL: lambda a: a,
}
