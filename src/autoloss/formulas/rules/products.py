"""Rules for products and powers."""

from __future__ import annotations

from collections.abc import Callable

from autoloss.formulas.constants import multiplied, raised
from autoloss.formulas.rules.facts import Facts, exponents_of, of_two_signs
from autoloss.formulas.terms import (
    MINUS,
    ONE,
    ZERO,
    Term,
    call,
    factors,
    negated,
    negative,
    number,
    power,
    product,
    split,
    total,
)


def flat_product(term: Term, facts: Facts) -> Term | None:
    return product(*(inner for part in term.parts for inner in factors(part)))


def like_factors(term: Term, facts: Facts) -> Term | None:
    """a·a is a²; numbers become one, and 0 takes all."""
    numbers = [part for part in term.parts if part.head == "number"]
    if ZERO in numbers:
        return None if facts.may_overflow(term) else ZERO
    coefficient = multiplied(numbers) if numbers else ONE
    rest = exponents_of(product(*(part for part in term.parts if part.head != "number")))
    return None if coefficient is None else product(coefficient, *(power(base, count) for base, count in rest.items()))


def cancelled(term: Term, facts: Facts) -> Term | None:
    """a/a is 1 where a is well away from 0: at 0 it is 0."""
    exponents = {} if facts.may_overflow(term) else exponents_of(split(term)[1])
    for base, below in exponents.items():
        if base.is_call("inv") and base.parts[0] in exponents and facts.range(base.parts[0]).is_away_from_zero:
            common = min(below, exponents[base.parts[0]])
            exponents[base] -= common
            exponents[base.parts[0]] -= common
            return product(split(term)[0], *(power(found, count) for found, count in exponents.items()))
    return None


def merged_exponentials(term: Term, facts: Facts) -> Term | None:
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


def merged_magnitudes(term: Term, facts: Facts) -> Term | None:
    """|a|·|b| is |a·b|."""
    return _merged(term, "abs", lambda part: True)


def merged_roots(term: Term, facts: Facts) -> Term | None:
    """√a·√b is √(a·b) where both are well away from 0."""
    return _merged(
        term, "sqrt", lambda part: facts.range(part.parts[0]).low > 0 and facts.range(part).is_away_from_zero
    )


def _merged(term: Term, name: str, holds: Callable[[Term], bool]) -> Term | None:
    found = [part for part in term.parts if part.is_call(name) and holds(part)]
    if len(found) < 2:
        return None
    others = [part for part in term.parts if part not in found]
    return product(call(name, product(*(part.parts[0] for part in found))), *others)


def distributed_number(term: Term, facts: Facts) -> Term | None:
    """−(a − b) is b − a, and ½·(2a + 1) is a + ½, where that is shorter."""
    coefficient, _ = split(term)
    for part in term.parts:
        if part.head == "sum":
            inner = [_scaled(inside, coefficient) for inside in part.parts]
            others = [other for other in term.parts[1:] if other is not part]
            found = None if None in inner else product(*others, total(*(each for each in inner if each is not None)))
            lonely = bool(others) and all(negative(each) for each in inner if each is not None)
            if found is not None and not lonely and (found.size < term.size or (coefficient == MINUS and not others)):
                return found
    return None


def common_minus(term: Term, facts: Facts) -> Term | None:
    """(−a − b)·c is −(a + b)·c."""
    lonely = [part for part in term.parts if part.head == "sum" and all(map(negative, part.parts))]
    others = [part for part in term.parts if part not in lonely]
    sign = MINUS if len(lonely) % 2 else ONE
    return product(sign, *map(negated, lonely), *others) if lonely and others else None


def _scaled(term: Term, coefficient: Term) -> Term | None:
    own, rest = split(term)
    scaled = multiplied([coefficient, own])
    return None if scaled is None else product(scaled, *factors(rest))


def power_of_power(term: Term, facts: Facts) -> Term | None:
    inner = term.parts[0]
    return power(inner.parts[0], inner.exponent * term.exponent) if inner.head == "power" else None


def power_of_multiple(term: Term, facts: Facts) -> Term | None:
    """(−2a)² is 4a²."""
    coefficient, rest = split(term.parts[0])
    if coefficient == ONE or rest == ONE:
        return None
    outside = raised(coefficient, term.exponent)
    return None if outside is None else product(outside, power(rest, term.exponent))


def power_of_binary(term: Term, facts: Facts) -> Term | None:
    """y² is y where y is 0 or 1."""
    return term.parts[0] if facts.range(term.parts[0]).binary else None


def even_power(term: Term, facts: Facts) -> Term | None:
    """|a|² is a², and (b − a)² is (a − b)²."""
    base = term.parts[0]
    if term.exponent % 2:
        return None
    return power(base.parts[0] if base.is_call("abs") else of_two_signs(base), term.exponent)


def power_of_root(term: Term, facts: Facts) -> Term | None:
    """(√a)² is |a|."""
    base = term.parts[0]
    if not base.is_call("sqrt") or term.exponent % 2:
        return None
    return power(call("abs", base.parts[0]), term.exponent // 2)
