"""Rules for products and powers."""

from __future__ import annotations

from autoloss.formulas.constants import fold_constants, multiply_numbers
from autoloss.formulas.rules.facts import Facts, choose_sign, collect_exponents
from autoloss.formulas.terms import (
    MINUS,
    ONE,
    ZERO,
    Term,
    call,
    is_negative,
    list_factors,
    negate,
    power,
    product,
    split_coefficient,
    total,
)


def flatten_product(term: Term, facts: Facts) -> Term | None:
    """Join products inside a product."""
    return product(*(inner for part in term.parts for inner in list_factors(part)))


def combine_like_factors(term: Term, facts: Facts) -> Term | None:
    """a·a is a²; numbers become one, and 0 takes all."""
    numbers = [part for part in term.parts if part.head == "number"]
    if ZERO in numbers:
        return None if facts.may_overflow(term) else ZERO
    coefficient = multiply_numbers(numbers) if numbers else ONE
    rest = collect_exponents(product(*(part for part in term.parts if part.head != "number")))
    return None if coefficient is None else product(coefficient, *(power(base, count) for base, count in rest.items()))


def distribute_number(term: Term, facts: Facts) -> Term | None:
    """−(a − b) is b − a, and ½·(2a + 1) is a + ½, where that is shorter."""
    coefficient, _ = split_coefficient(term)
    for part in term.parts:
        if part.head == "sum":
            inner = [_scale(inside, coefficient) for inside in part.parts]
            others = [other for other in term.parts[1:] if other is not part]
            found = None if None in inner else product(*others, total(*(each for each in inner if each is not None)))
            lonely = bool(others) and all(is_negative(each) for each in inner if each is not None)
            if found is not None and not lonely and (found.size < term.size or (coefficient == MINUS and not others)):
                return found
    return None


def factor_out_minus(term: Term, facts: Facts) -> Term | None:
    """(−a − b)·c is −(a + b)·c."""
    lonely = [part for part in term.parts if part.head == "sum" and all(map(is_negative, part.parts))]
    others = [part for part in term.parts if part not in lonely]
    sign = MINUS if len(lonely) % 2 else ONE
    return product(sign, *map(negate, lonely), *others) if lonely and others else None


def _scale(term: Term, coefficient: Term) -> Term | None:
    own, rest = split_coefficient(term)
    scaled = multiply_numbers([coefficient, own])
    return None if scaled is None else product(scaled, *list_factors(rest))


def merge_powers(term: Term, facts: Facts) -> Term | None:
    """Rewrite a power of a power as one power."""
    inner = term.parts[0]
    return power(inner.parts[0], inner.exponent * term.exponent) if inner.head == "power" else None


def split_power_of_multiple(term: Term, facts: Facts) -> Term | None:
    """(−2a)² is 4a²."""
    coefficient, rest = split_coefficient(term.parts[0])
    if coefficient == ONE or rest == ONE:
        return None
    outside = fold_constants(power(coefficient, term.exponent))
    return None if outside is None else product(outside, power(rest, term.exponent))


def drop_sign_in_even_power(term: Term, facts: Facts) -> Term | None:
    """|a|² is a², and (b − a)² is (a − b)²."""
    base = term.parts[0]
    if term.exponent % 2:
        return None
    return power(base.parts[0] if base.is_call("abs") else choose_sign(base), term.exponent)


def drop_root_in_even_power(term: Term, facts: Facts) -> Term | None:
    """(√a)² is |a|."""
    base = term.parts[0]
    if not base.is_call("sqrt") or term.exponent % 2:
        return None
    return power(call("abs", base.parts[0]), term.exponent // 2)
