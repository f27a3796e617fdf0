"""Numbers as trees over the only constant of the space, 1."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt, log2

from autoloss.space.expression import CONSTANT, Expression, build, leaf

LARGEST = 6
"""A weight is a power of 2 from 1/64 to 64."""


def build_number(value: Fraction) -> Expression:
    """Return a number as a tree over the constant 1.

    >>> str(build_number(Fraction(1, 2)))
    'inv(add(1, 1))'
    """
    if value < 0:
        return build("neg", build_number(-value))
    if value == 0:
        return build("add", leaf(CONSTANT), build("neg", leaf(CONSTANT)))
    if value.numerator == 1 and value.denominator > 1:
        return build("inv", _build_integer(value.denominator))
    if value.denominator > 1:
        return build("mul", _build_integer(value.numerator), build("inv", _build_integer(value.denominator)))
    return _build_integer(value.numerator)


def add_texts(first: str, second: str, weight: float) -> str:
    """Return the text of the sum of two trees in prefix form, the second multiplied by a power of 2 near a weight.

    >>> add_texts("p", "y", 2.1)
    'add(p, mul(add(1, 1), y))'
    """
    number = _round_weight(weight)
    return f"add({first}, {second if number == 1 else f'mul({build_number(number)}, {second})'})"


def _build_integer(number: int) -> Expression:
    """Return a small tree for a positive integer: a square or a double if possible, else its predecessor plus 1."""
    if number == 1:
        return leaf(CONSTANT)
    root = isqrt(number)
    if root * root == number:
        return build("square", _build_integer(root))
    if number % 2 == 0 and number > 2:
        return build("mul", _build_integer(2), _build_integer(number // 2))
    return build("add", _build_integer(number - 1), leaf(CONSTANT))


def weigh(tree: Expression, weight: float) -> Expression:
    """Return a tree multiplied by the power of 2 that is nearest to a weight above 0, without its own factor.

    >>> from autoloss.space.parsing import parse
    >>> str(weigh(parse("p"), 0.6))
    'mul(inv(add(1, 1)), p)'
    """
    number = _round_weight(weight)
    return tree.scaled(1.0) if number == 1 else build("mul", build_number(number), tree.scaled(1.0))


def _round_weight(weight: float) -> Fraction:
    return Fraction(2) ** max(-LARGEST, min(LARGEST, round(log2(weight))))
