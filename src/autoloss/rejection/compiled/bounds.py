"""Interval bounds of a tree's value, by which the compiled engine leaves out a value that is finite whatever happens.

The steps of the protocol need the gradient only; the value only tells whether it is finite. After a softmax or a sigmoid p lies
in [0, 1], so for most trees that is known beforehand, and the value and all that only it needs are never computed. A p that is
NaN is found by the gradient, which is a multiple of p.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloss.rejection.compiled.tape import Instruction, Op, Scaled
from autoloss.space.ranges import BOUNDS, LARGE, Range, bound_product, bound_sum

PROBABILITY = Range(0.0, 1.01)
"""Range of p after an activation; rounding may take it above 1."""
ROUNDING = 1e-5
"""Relative widening of each result. It covers rounding in single precision and the polynomials of `functions.py`."""
SUM_ROUNDING = 0.1
"""The same for sums of many numbers."""
SMALLEST = 1e-37
"""Smaller numbers may be 0 in single precision."""
_OPERATORS = {op: op.name.lower() for op in (Op.ABS, Op.INV, Op.LOG, Op.EXP, Op.TANH, Op.SQRT)} | {Op.POOL: "max_pool"}
"""Unary instruction → the operator of Table 1."""


def is_bounded(instructions: Sequence[Instruction], leaves: Mapping[int, Range], elements: int) -> bool:
    """Check that no result of the instructions can be infinite, NaN, or larger than `LARGE`, in either precision.

    Args:
        instructions: Those of a tree's value, in order, its sum included.
        leaves: Register → bounds of its elements.
        elements: Number of elements of the largest register.
    """
    bounds = dict(leaves)
    for one in instructions:
        if not _is_alike(one.factor) or not _is_alike(one.second):
            return False
        found = _bound(one, bounds, elements)
        if not found.within(-LARGE, LARGE):
            return False
        bounds[one.to] = _widen(found)
    return True


def _is_alike(constant: Scaled) -> bool:
    """Check that a constant is bounded, and the same in both precisions up to rounding."""
    return abs(constant.single) <= LARGE and abs(constant.single - constant.double) <= ROUNDING * abs(constant.double)


def _bound(one: Instruction, bounds: Mapping[int, Range], elements: int) -> Range:
    constant = Range(one.second.double, one.second.double)
    if one.op is Op.FILL:
        return constant
    a, b = (bounds[register] if register is not None else Range(0.0, 0.0) for register in (one.a, one.b))
    scaled = _scale(a, one.factor)
    match one.op:
        case Op.SPREAD:
            return a
        case Op.MULTIPLY:
            found = bound_product(a, b)
            return Range(0.0, found.high) if one.a == one.b else found
        case Op.COMBINE:
            return bound_sum(_widen(scaled), _widen(_scale(b, one.second)))
        case Op.SHIFT:
            return bound_sum(_widen(scaled), _widen(constant))
        case Op.SUM_CHANNELS | Op.SUM_POSITIONS | Op.TOTAL | Op.MASKED_TOTAL:
            count = (1 + SUM_ROUNDING) * elements
            return Range(min(0.0, count * scaled.low), max(0.0, count * scaled.high))
        case _:
            return BOUNDS[_OPERATORS[one.op]](scaled)


def _scale(a: Range, factor: Scaled) -> Range:
    return bound_product(a, Range(factor.double, factor.double))


def _widen(a: Range) -> Range:
    """Return the range with rounding errors; a range of one sign keeps that sign, or reaches 0."""
    low, high = a.low - ROUNDING * abs(a.low), a.high + ROUNDING * abs(a.high)
    return Range(0.0 if 0 < low < SMALLEST else low, 0.0 if -SMALLEST < high < 0 else high)
