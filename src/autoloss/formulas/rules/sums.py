"""Rules for sums."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

from autoloss.formulas.constants import added
from autoloss.formulas.rules.facts import Facts, exponents_of, shortest_of
from autoloss.formulas.terms import ZERO, Term, call, factors, number, power, product, split, total


def flat_sum(term: Term, facts: Facts) -> Term | None:
    """(a + b) + c is a + b + c."""
    return total(*(inner for part in term.parts for inner in (part.parts if part.head == "sum" else (part,))))


def like_terms(term: Term, facts: Facts) -> Term | None:
    """2a + a is 3a, and a − a is 0; zeros leave."""
    coefficients: dict[Term, list[Term]] = defaultdict(list)
    for part in term.parts:
        coefficient, rest = split(part)
        coefficients[rest].append(coefficient)
    parts: list[Term] = []
    for rest, found in coefficients.items():
        coefficient = added(found)
        if coefficient is None or (coefficient == ZERO and facts.may_overflow(rest)):
            return None
        if coefficient != ZERO:
            parts.append(product(coefficient, *factors(rest)))
    return total(*parts)


def common_number(term: Term, facts: Facts) -> Term | None:
    """2a + 2b is 2·(a + b)."""
    exact = [split(part)[0].value for part in term.parts]
    shared = {abs(value) for value in exact if isinstance(value, Fraction) and abs(value) not in (0, 1)}
    divided = (
        product(number(content), total(*(_divided(part, content) for part in term.parts)))
        for content in sorted(shared)
        if all(isinstance(value, Fraction) for value in exact)
    )
    return shortest_of(divided, term)


def _divided(term: Term, divisor: Fraction | float) -> Term:
    coefficient, rest = split(term)
    return product(number(Fraction(coefficient.value) / Fraction(divisor)), *factors(rest))


def common_factor(term: Term, facts: Facts) -> Term | None:
    """a·b + a·c is a·(b + c)."""
    held = [exponents_of(split(part)[1]) for part in term.parts]
    times = Counter(base for exponents in held for base in exponents)
    return shortest_of((_factored(term, held, base) for base, count in times.items() if count > 1), term)


def _factored(term: Term, held: Sequence[Mapping[Term, int]], base: Term) -> Term:
    inside = [part for part, exponents in zip(term.parts, held, strict=True) if base in exponents]
    outside = [part for part, exponents in zip(term.parts, held, strict=True) if base not in exponents]
    exponent = min(exponents[base] for exponents in held if base in exponents)
    left = [_without(part, base, exponent) for part in inside]
    return total(product(power(base, exponent), total(*left)), *outside)


def _without(term: Term, base: Term, exponent: int) -> Term:
    coefficient, rest = split(term)
    exponents = dict(exponents_of(rest))
    exponents[base] -= exponent
    return product(coefficient, *(power(found, count) for found, count in exponents.items()))


def merged_means(term: Term, facts: Facts) -> Term | None:
    """mean(a) + mean(b) is mean(a + b)."""
    for name in ("mean_nhw", "mean_c"):
        means = [part for part in term.parts if split(part)[1].is_call(name)]
        if len(means) > 1:
            others = [part for part in term.parts if part not in means]
            inside = [product(split(part)[0], split(part)[1].parts[0]) for part in means]
            return total(call(name, total(*inside)), *others)
    return None


def merged_logs(term: Term, facts: Facts) -> Term | None:
    """log(a) + log(b) is log(a·b) where both are well above 0."""
    groups: dict[Term, list[Term]] = defaultdict(list)
    for part in term.parts:
        coefficient, rest = split(part)
        if rest.is_call("log") and facts.range(rest.parts[0]).low > 0:
            groups[coefficient].append(part)
    for coefficient, logs in groups.items():
        if len(logs) > 1 and all(facts.range(split(part)[1].parts[0]).is_away_from_zero for part in logs):
            inside = product(*(split(part)[1].parts[0] for part in logs))
            others = [part for part in term.parts if part not in logs]
            return total(product(coefficient, call("log", inside)), *others)
    return None
