"""Interval arithmetic: the values that a node can take, from those of its operands.

Numbers drawn at random do not show that something holds everywhere; these bounds do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from autoloss.space.operators import EPSILON

AWAY = 1e-3
"""A value at least so far from zero feels nothing of ε, which is 1e-12: what they differ by is within the tolerance."""

LARGE = 1e30
"""Beyond this, single precision is near its end."""


@final
@dataclass(frozen=True, slots=True)
class Range:
    """All values from `low` to `high`, both included.

    Args:
        binary: Nothing between 0 and 1.
    """

    low: float = -math.inf
    high: float = math.inf
    binary: bool = False

    @property
    def is_away_from_zero(self) -> bool:
        """True if no value is nearer to zero than `AWAY`."""
        return self.low >= AWAY or self.high <= -AWAY

    @classmethod
    def from_bounds(cls, low: float | None, high: float | None, binary: bool) -> Range:
        """Read what `to_bounds` returned."""
        return cls(-math.inf if low is None else low, math.inf if high is None else high, binary)

    def to_bounds(self) -> tuple[float | None, float | None, bool]:
        """Return plain values that JSON can represent, None for infinity."""
        low, high = (end if math.isfinite(end) else None for end in (self.low, self.high))
        return low, high, self.binary

    def within(self, low: float, high: float) -> bool:
        """Return True if all values lie from `low` to `high`."""
        return low <= self.low and self.high <= high


REAL = Range()
POSITIVE = Range(0)
UNIT = Range(0, 1)
BINARY = Range(0, 1, binary=True)


def bound_sum(*parts: Range) -> Range:
    """Return the range of a sum."""
    low, high = sum(part.low for part in parts), sum(part.high for part in parts)
    # An overflow's ∞ − ∞ says nothing.
    return REAL if math.isnan(low) or math.isnan(high) else Range(low, high)


def bound_product(left: Range, right: Range) -> Range:
    """Return the range of a product."""
    pairs = [(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    # 0·∞ stands for 0 times values as large as you like.
    corners = [0.0 if math.isnan(a * b) else a * b for a, b in pairs]
    return Range(min(corners), max(corners), left.binary and right.binary)


def bound_power(base: Range, exponent: int) -> Range:
    """Return the range of a natural power."""
    ends = [_raise(base.low, exponent), _raise(base.high, exponent)]
    if exponent % 2 == 0 and base.low < 0 < base.high:
        ends.append(0.0)
    return Range(min(ends), max(ends), base.binary)


def _raise(base: float, exponent: int) -> float:
    try:
        return base**exponent
    except OverflowError:
        return math.inf if base > 0 or exponent % 2 == 0 else -math.inf


def _evaluate_exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def _bound_abs(inner: Range) -> Range:
    if inner.low >= 0:
        return inner
    ends = (abs(inner.low), abs(inner.high))
    return Range(0 if inner.high > 0 else min(ends), max(ends))


def _bound_inv(inner: Range) -> Range:
    if inner.low >= 0 or inner.high <= -AWAY:
        return Range(_evaluate_inv(inner.high), _evaluate_inv(inner.low))
    return REAL


def _evaluate_inv(value: float) -> float:
    return 1 / (value + EPSILON)


def _bound_log(inner: Range) -> Range:
    """Bound sign(x)·log(|x| + ε), which is 0 at 0 and falls from a large value just below 0 to −27.6 just above."""
    if inner.low < 0 and inner.high <= 0:
        mirrored = _bound_log(Range(-inner.high, -inner.low))
        return Range(-mirrored.high, -mirrored.low)
    if inner.low < 0:
        largest = max(_evaluate_log(max(-inner.low, inner.high)), -_evaluate_log(0))
        return Range(-largest, largest)
    high = _evaluate_log(inner.high)
    if inner.low > 0:
        return Range(_evaluate_log(inner.low), high)
    return Range(_evaluate_log(0), max(0.0, high))


def _evaluate_log(value: float) -> float:
    # log(1 + ε) is 0 in single precision, and no more than ε in double.
    return 0.0 if value == 1 else math.log(value + EPSILON)


def _evaluate_sqrt(value: float) -> float:
    return math.copysign(math.sqrt(abs(value) + EPSILON), value) if value else 0.0


BOUNDS: Mapping[str, Callable[[Range], Range]] = {
    "abs": _bound_abs,
    "inv": _bound_inv,
    "log": _bound_log,
    "exp": lambda inner: Range(_evaluate_exp(inner.low), _evaluate_exp(inner.high)),
    "tanh": lambda inner: Range(math.tanh(inner.low), math.tanh(inner.high)),
    "sqrt": lambda inner: Range(_evaluate_sqrt(inner.low), _evaluate_sqrt(inner.high), inner.binary),
    "mean_nhw": lambda inner: Range(inner.low, inner.high),
    "mean_c": lambda inner: Range(inner.low, inner.high),
    "max_pool": lambda inner: inner,
    "min_pool": lambda inner: inner,
}
