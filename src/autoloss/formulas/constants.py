"""Constant parts of a formula as one number: exact where it is rational and small, else with the formula it is the value of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce

import torch

from autoloss.formulas.terms import Term, evaluate_node, number
from autoloss.space.parsing import MAXIMUM_NUMBER

ROUND = 1e-11
"""Relative distance within which a floating-point number is taken for a simple fraction; ε displaces numbers by less."""
SIMPLE = 16
"""The largest denominator of such a fraction."""
_OPERATORS = {"sum": "add", "product": "mul"}
"""Head of a term → the operator of Table 1 that its parts are joined by."""


def fold_constants(term: Term) -> Term | None:
    """Return the number that a node above numbers is, or None where it is not finite; a number itself."""
    if term.head == "number":
        return term
    exact = _evaluate_term(term)
    value = _compute(term) if exact is None else exact
    if isinstance(value, Fraction) and max(abs(value.numerator), value.denominator) > MAXIMUM_NUMBER:
        value = float(value) if abs(value) < Fraction(10) ** 300 else math.inf
    return number(value, _write_name(term)) if math.isfinite(value) else None


def multiply_numbers(numbers: Sequence[Term]) -> Term | None:
    """Return the product as a number; None where it is no finite one."""
    return fold_constants(numbers[0] if len(numbers) == 1 else Term("product", tuple(numbers)))


def evaluate_exactly(operator: str, values: Sequence[Fraction]) -> Fraction | None:
    """Return the value of an operator of Table 1 without ε, or None where it is no rational number.

    Args:
        values: Of the operands; any number of them for `add` and `mul`.
    """
    value = values[0]
    match operator:
        case "add":
            return sum(values, start=Fraction(0))
        case "mul":
            return math.prod(values, start=Fraction(1))
        case "neg":
            return -value
        case "square":
            return value**2
        case "abs":
            return abs(value)
        case "inv" if value:
            return 1 / value
        case "max_pool" | "min_pool" | "mean_nhw" | "mean_c":
            return value
        case "sqrt":
            above, below = math.isqrt(abs(value.numerator)), math.isqrt(value.denominator)
            if (above * above, below * below) != (abs(value.numerator), value.denominator):
                return None
            return Fraction(above if value >= 0 else -above, below)
        case _:
            return None


def _evaluate_term(term: Term) -> Fraction | None:
    values = [part.value for part in term.parts if isinstance(part.value, Fraction)]
    if len(values) < len(term.parts):
        return None
    if term.head == "power":
        return values[0] ** term.exponent
    return evaluate_exactly(_OPERATORS.get(term.head) or term.called.name, values)


def _compute(term: Term) -> Fraction | float:
    """Compute with the operators themselves, in double precision."""
    like = torch.zeros(1, 1, 1, 1, dtype=torch.float64, device="cpu")
    with torch.no_grad():
        found = float(evaluate_node(term, [torch.full_like(like, float(part.value)) for part in term.parts], like))
    if not math.isfinite(found):
        return found
    simple = Fraction(found).limit_denominator(SIMPLE)
    near_zero = not simple and abs(found) <= ROUND
    return simple if near_zero or abs(found - simple) <= ROUND * abs(simple) else found


def _write_name(term: Term) -> str:
    names = [part.name or str(part.value) for part in term.parts]
    if term.head == "power":
        return _name_power(names[0], term.exponent)
    if operator := _OPERATORS.get(term.head):
        return reduce(lambda name, other: f"{operator}({other}, {name})", reversed(names))
    return f"{term.called.name}({names[0]})"


def _name_power(name: str, exponent: int) -> str:
    if exponent == 1:
        return name
    half = f"square({_name_power(name, exponent // 2)})"
    return half if exponent % 2 == 0 else f"mul({half}, {name})"
