"""Rules for products and powers."""

from __future__ import annotations

from collections.abc import Callable

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
    number,
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


def cancel_factors(term: Term, facts: Facts) -> Term | None:
    """a/a is 1 where a is well away from 0: at 0 it is 0."""
    exponents = {} if facts.may_overflow(term) else collect_exponents(split_coefficient(term)[1])
    for base, below in exponents.items():
        if base.is_call("inv") and base.parts[0] in exponents and facts.bound(base.parts[0]).is_away_from_zero:
            common = min(below, exponents[base.parts[0]])
            exponents[base] -= common
            exponents[base.parts[0]] -= common
            return product(split_coefficient(term)[0], *(power(found, count) for found, count in exponents.items()))
    return None


def merge_exponentials(term: Term, facts: Facts) -> Term | None:
    """exp(a)·exp(b) is exp(a + b), and exp(a)/exp(b) is exp(a − b)."""
    inside: list[Term] = []
    others: list[Term] = []
    for part in term.parts:
        base, exponent = (part.parts[0], part.exponent) if part.head == "power" else (part, 1)
        if base.is_call("exp"):
            inside.append(product(number(exponent), base.parts[0]))
        elif base.is_call("inv") and base.parts[0].is_call("exp"):
            inside.append(product(number(-exponent), base.parts[0].parts[0]))
        else:
            others.append(part)
    if len(inside) < 2 or facts.may_overflow(term):
        return None
    return product(call("exp", total(*inside)), *others)


def merge_absolute_values(term: Term, facts: Facts) -> Term | None:
    """|a|·|b| is |a·b|."""
    return _merge_calls(term, "abs", lambda part: True)


def merge_roots(term: Term, facts: Facts) -> Term | None:
    """√a·√b is √(a·b) where both are well away from 0."""
    return _merge_calls(
        term, "sqrt", lambda part: facts.bound(part.parts[0]).low > 0 and facts.bound(part).is_away_from_zero
    )


def _merge_calls(term: Term, name: str, holds: Callable[[Term], bool]) -> Term | None:
    found = [part for part in term.parts if part.is_call(name) and holds(part)]
    if len(found) < 2:
        return None
    others = [part for part in term.parts if part not in found]
    return product(call(name, product(*(part.parts[0] for part in found))), *others)


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
