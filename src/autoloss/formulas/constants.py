"""Constant parts of a formula as one number: exact where it is rational and small, else with the formula it is the value of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

import torch

from autoloss.formulas.terms import Term, apply, negated, number, power, total
from autoloss.space.parsing import MAXIMUM_NUMBER

ROUND = 1e-11
"""So near, relative to itself, a floating-point number is a simple fraction; ε displaces numbers by less."""
SIMPLE = 16
"""The largest denominator of such a fraction."""


def folded(term: Term) -> Term | None:
    """Return the number that a node above numbers is, or None where it is not finite."""
    value = _exact(term)
    if value is None:
        value = _computed(term)
    if isinstance(value, Fraction) and max(abs(value.numerator), value.denominator) > MAXIMUM_NUMBER:
        value = float(value) if abs(value) < Fraction(10) ** 300 else math.inf
    return number(value, _name(term)) if math.isfinite(value) else None


def added(numbers: Sequence[Term]) -> Term | None:
    return numbers[0] if len(numbers) == 1 else folded(total(*numbers))


def multiplied(numbers: Sequence[Term]) -> Term | None:
    return numbers[0] if len(numbers) == 1 else folded(Term("product", tuple(numbers)))


def raised(base: Term, exponent: int) -> Term | None:
    return folded(power(base, exponent)) if exponent > 1 else base


def absolute(value: Term) -> Term:
    return negated(value) if value.value < 0 else value


def _exact(term: Term) -> Fraction | None:
    values = [part.value for part in term.parts if isinstance(part.value, Fraction)]
    if len(values) < len(term.parts):
        return None
    match term.head:
        case "sum":
            return sum(values, start=Fraction(0))
        case "product":
            return math.prod(values, start=Fraction(1))
        case "power":
            return values[0] ** term.exponent
        case _:
            return _exact_call(term, values[0])


def _exact_call(term: Term, value: Fraction) -> Fraction | None:
    assert term.operator is not None
    match term.operator.name:
        case "abs":
            return abs(value)
        case "inv" if value:
            return 1 / value
        case "max_pool" | "min_pool" | "mean_nhw" | "mean_c":
            return value
        case "sqrt":
            return _exact_root(value)
        case _:
            return None


def _exact_root(value: Fraction) -> Fraction | None:
    above, below = isqrt(abs(value.numerator)), isqrt(value.denominator)
    if (above * above, below * below) != (abs(value.numerator), value.denominator):
        return None
    return Fraction(above if value >= 0 else -above, below)


def _computed(term: Term) -> Fraction | float:
    """Compute with the operators themselves, in double precision."""
    like = torch.zeros(1, 1, 1, 1, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        found = float(apply(term, [torch.full_like(like, float(part.value)) for part in term.parts], like))
    if not math.isfinite(found):
        return found
    simple = Fraction(found).limit_denominator(SIMPLE)
    near_zero = not simple and abs(found) <= ROUND
    return simple if near_zero or abs(found - simple) <= ROUND * abs(simple) else found


def _name(term: Term) -> str:
    names = [part.name or str(part.value) for part in term.parts]
    match term.head:
        case "sum" | "product":
            operator = "add" if term.head == "sum" else "mul"
            name = names[-1]
            for other in reversed(names[:-1]):
                name = f"{operator}({other}, {name})"
            return name
        case "power":
            return _power_name(names[0], term.exponent)
        case _:
            assert term.operator is not None
            return f"{term.operator.name}({names[0]})"


def _power_name(name: str, exponent: int) -> str:
    if exponent == 1:
        return name
    half = f"square({_power_name(name, exponent // 2)})"
    return half if exponent % 2 == 0 else f"mul({half}, {name})"
