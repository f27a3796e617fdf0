"""The rewrite rules: for each kind of node the steps that may make it shorter or bring it into one form.

A rule looks at one node whose parts are already simple and proposes another term, or nothing. It holds for the operators' real
meaning, ε included, wherever its condition on ranges does; `Rewriter` checks each step by numbers as well before it takes it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from autoloss.formulas.constants import fold_constants, multiply_numbers
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
from autoloss.space.ranges import AWAY, LARGE, Range


class Facts(Protocol):
    """The questions that a rule may ask about a term; `Rewriter` answers them."""

    has_space: bool
    """True if H, W and C can be above 1; not so for boxes."""

    def bound(self, term: Term) -> Range: ...
    def may_overflow(self, term: Term) -> bool: ...
    def is_constant_over(self, term: Term, mean: str) -> bool: ...


Rule = Callable[[Term, Facts], Term | None]


def compute_constant(term: Term, facts: Facts) -> Term | None:
    """Compute what is made of numbers alone."""
    return fold_constants(term) if all(part.head == "number" for part in term.parts) else None


def collect_exponents(term: Term) -> dict[Term, int]:
    """Return base → exponent of a product without a number."""
    found: Counter[Term] = Counter()
    for factor in list_factors(term):
        base, exponent = (factor.parts[0], factor.exponent) if factor.head == "power" else (factor, 1)
        if factor != ONE:
            found[base] += exponent
    return found


def choose_sign(term: Term) -> Term:
    """Return the shorter of a and −a, one and the same for both; of y − √p and √p − y the one that begins with less."""

    def length(each: Term) -> tuple[int, int, list[str]]:
        positive = [part for part in each.parts if not is_negative(part)]
        return each.size, sum(part.size for part in positive), [part.key for part in positive]

    return min((term, negate(term)), key=length) if term.head == "sum" else term


def choose_shortest(candidates: Iterable[Term], term: Term) -> Term | None:
    """Return the shortest candidate that is shorter than the term."""
    found = min(candidates, key=lambda each: (each.size, each.key), default=term)
    return found if found.size < term.size else None


def flatten(term: Term, facts: Facts) -> Term | None:
    """(a + b) + c is a + b + c, and so for products."""
    join = total if term.head == "sum" else product
    return join(*(inner for part in term.parts for inner in (part.parts if part.head == term.head else (part,))))


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


def drop_absolute_value(term: Term, facts: Facts) -> Term | None:
    """|a| is a where a is never negative, −a where it is never positive."""
    inner = term.parts[0]
    known = facts.bound(inner)
    if known.low >= 0:
        return inner
    return product(MINUS, inner) if known.high <= 0 else None


def split_absolute_value(term: Term, facts: Facts) -> Term | None:
    """|−2a·b| is 2·a·|b| where a is never negative; |b − a| is |a − b|."""
    coefficient, rest = split_coefficient(term.parts[0])
    outside = [part for part in list_factors(rest) if facts.bound(part).low >= 0]
    inside = [part for part in list_factors(rest) if part not in outside]
    positive = negate(coefficient) if coefficient.value < 0 else coefficient
    return product(positive, *outside, call("abs", choose_sign(product(*inside))))


def move_minus_out(term: Term, facts: Facts) -> Term | None:
    """f(−a) is −f(a): logarithm and root carry the sign."""
    inner = term.parts[0]
    parts = inner.parts if inner.head == "sum" else (inner,)
    negative = inner.head in ("sum", "product") and all(map(is_negative, parts))
    return product(MINUS, call(term.called, negate(inner))) if negative else None


def cancel_inverses(term: Term, facts: Facts) -> Term | None:
    """Remove an inverse of an inverse."""
    return term.parts[0].parts[0] if term.parts[0].is_call("inv") else None


def split_inverse_of_multiple(term: Term, facts: Facts) -> Term | None:
    """1/(2a) is ½·1/a where a is well away from 0: elsewhere ε decides."""
    coefficient, rest = split_coefficient(term.parts[0])
    if (
        coefficient == ONE
        or not facts.bound(term.parts[0]).is_away_from_zero
        or not facts.bound(rest).is_away_from_zero
    ):
        return None
    inverted = fold_constants(call("inv", coefficient))
    return None if inverted is None else product(inverted, call("inv", rest))


def expand_logarithm(term: Term, facts: Facts) -> Term | None:
    """log(exp(a)) is a, where exp(a) is neither lost in ε nor infinite; log(a·exp(b)) is log(a) + b."""
    if not facts.bound(term.parts[0]).within(AWAY, LARGE):
        return None
    exponentials = [part for part in list_factors(term.parts[0]) if part.is_call("exp")]
    others = [part for part in list_factors(term.parts[0]) if not part.is_call("exp")]
    inside = [part.parts[0] for part in exponentials]
    rest = [call("log", product(*others))] if others else []
    known = (facts.bound(part).within(AWAY, LARGE) for part in (*exponentials, *others))
    return total(*inside, *rest) if exponentials and all(known) else None


def drop_on_binary(term: Term, facts: Facts) -> Term | None:
    """√y and y² are y where y is 0 or 1."""
    return term.parts[0] if facts.bound(term.parts[0]).binary else None


def drop_mean(term: Term, facts: Facts) -> Term | None:
    """A mean of what it has made equal already changes nothing."""
    return term.parts[0] if facts.is_constant_over(term.parts[0], term.called.name) else None


def move_out_of_mean(term: Term, facts: Facts) -> Term | None:
    """mean(2a + 1) is 2·mean(a) + 1: whatever is equal over all elements joined leaves the mean."""
    inner, name = term.parts[0], term.called.name
    join = total if inner.head == "sum" else product
    parts = inner.parts if inner.head in ("sum", "product") else (inner,)
    outside = [part for part in parts if facts.is_constant_over(part, name)]
    inside = [part for part in parts if part not in outside]
    return join(*outside, call(name, join(*inside))) if outside and inside else None


def drop_pool(term: Term, facts: Facts) -> Term | None:
    """A pool changes nothing where neighbours are equal, or where there are none."""
    alone = not facts.has_space or facts.is_constant_over(term.parts[0], "mean_nhw")
    return term.parts[0] if alone else None


def move_factor_out_of_pool(term: Term, facts: Facts) -> Term | None:
    """max_pool(−2a) is −2·min_pool(a)."""
    coefficient, rest = split_coefficient(term.parts[0])
    if coefficient == ONE or rest == ONE:
        return None
    upward = term.is_call("max_pool") == (coefficient.value > 0)
    return product(coefficient, call("max_pool" if upward else "min_pool", rest))


RULES: Mapping[str, tuple[Rule, ...]] = {
    "sum": (flatten, combine_like_terms, factor_out_number, factor_out_term, merge_logarithms),
    "product": (flatten, combine_like_factors, distribute_number, factor_out_minus),
    "power": (
        compute_constant,
        merge_powers,
        split_power_of_multiple,
        drop_on_binary,
        drop_sign_in_even_power,
        drop_root_in_even_power,
    ),
    "abs": (compute_constant, drop_absolute_value, split_absolute_value),
    "inv": (compute_constant, cancel_inverses, split_inverse_of_multiple),
    "log": (compute_constant, move_minus_out, expand_logarithm),
    "exp": (compute_constant,),
    "tanh": (compute_constant, move_minus_out),
    "sqrt": (compute_constant, move_minus_out, drop_on_binary),
    "mean_nhw": (drop_mean, move_out_of_mean),
    "mean_c": (drop_mean, move_out_of_mean),
    "max_pool": (drop_pool, move_factor_out_of_pool),
    "min_pool": (drop_pool, move_factor_out_of_pool),
}
"""Head of a node, or operator of Table 1 that it calls → its rules."""


def rules_for(term: Term) -> tuple[Rule, ...]:
    """Return the rules of a node; none for leaves, numbers and operators of the user."""
    if term.operator is None:
        return RULES.get(term.head, ())
    return RULES.get(term.operator.name, ()) if term.is_call(term.operator.name) else ()
