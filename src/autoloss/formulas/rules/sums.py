"""Rules for sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from autoloss.formulas.constants import fold_constants
from autoloss.formulas.rules.facts import Facts, choose_shortest, collect_exponents
from autoloss.formulas.terms import ZERO, Term, call, list_factors, number, power, product, split_coefficient, total


def flatten_sum(term: Term, facts: Facts) -> Term | None:
    """(a + b) + c is a + b + c."""
    return total(*(inner for part in term.parts for inner in (part.parts if part.head == "sum" else (part,))))


def combine_like_terms(term: Term, facts: Facts) -> Term | None:
    """2a + a is 3a, and a − a is 0; zeros leave."""
    coefficients: dict[Term, list[Term]] = defaultdict(list)
    for part in term.parts:
        coefficient, rest = split_coefficient(part)
        coefficients[rest].append(coefficient)
    parts: list[Term] = []
    for rest, found in coefficients.items():
        coefficient = fold_constants(total(*found))
        if coefficient is None or (coefficient == ZERO and facts.may_overflow(rest)):
            return None
        if coefficient != ZERO:
            parts.append(product(coefficient, *list_factors(rest)))
    return total(*parts)


def factor_out_number(term: Term, facts: Facts) -> Term | None:
    """2a + 2b is 2·(a + b)."""
    exact = [split_coefficient(part)[0].value for part in term.parts]
    shared = {abs(value) for value in exact if isinstance(value, Fraction) and abs(value) not in (0, 1)}
    divided = (
        product(number(content), total(*(_divide(part, content) for part in term.parts)))
        for content in sorted(shared)
        if all(isinstance(value, Fraction) for value in exact)
    )
    return choose_shortest(divided, term)


def _divide(term: Term, divisor: Fraction | float) -> Term:
    coefficient, rest = split_coefficient(term)
    return product(number(Fraction(coefficient.value) / Fraction(divisor)), *list_factors(rest))


def factor_out_term(term: Term, facts: Facts) -> Term | None:
    """a·b + a·c is a·(b + c)."""
    held = [collect_exponents(split_coefficient(part)[1]) for part in term.parts]
    times = Counter(base for exponents in held for base in exponents)
    return choose_shortest((_factor_out(term, held, base) for base, count in times.items() if count > 1), term)


def _factor_out(term: Term, held: Sequence[Mapping[Term, int]], base: Term) -> Term:
    inside = [part for part, exponents in zip(term.parts, held, strict=True) if base in exponents]
    outside = [part for part, exponents in zip(term.parts, held, strict=True) if base not in exponents]
    exponent = min(exponents[base] for exponents in held if base in exponents)
    left = [_divide_by_power(part, base, exponent) for part in inside]
    return total(product(power(base, exponent), total(*left)), *outside)


def _divide_by_power(term: Term, base: Term, exponent: int) -> Term:
    coefficient, rest = split_coefficient(term)
    exponents = dict(collect_exponents(rest))
    exponents[base] -= exponent
    return product(coefficient, *(power(found, count) for found, count in exponents.items()))


def merge_logarithms(term: Term, facts: Facts) -> Term | None:
    """log(a) + log(b) is log(a·b) where both are well above 0."""
    groups: dict[Term, list[Term]] = defaultdict(list)
    for part in term.parts:
        coefficient, rest = split_coefficient(part)
        if rest.is_call("log") and facts.bound(rest.parts[0]).low > 0:
            groups[coefficient].append(part)
    for coefficient, logs in groups.items():
        if len(logs) > 1 and all(facts.bound(split_coefficient(part)[1].parts[0]).is_away_from_zero for part in logs):
            inside = product(*(split_coefficient(part)[1].parts[0] for part in logs))
            others = [part for part in term.parts if part not in logs]
            return total(product(coefficient, call("log", inside)), *others)
    return None
