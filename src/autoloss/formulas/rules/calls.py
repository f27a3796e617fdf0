"""Rules for the operators with one operand."""

from __future__ import annotations

from autoloss.formulas.constants import fold_constants
from autoloss.formulas.rules.facts import Facts, choose_sign
from autoloss.formulas.terms import (
    MINUS,
    ONE,
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
from autoloss.space.ranges import AWAY, LARGE


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
    negative = (
        all(map(is_negative, inner.parts)) if inner.head == "sum" else inner.head == "product" and is_negative(inner)
    )
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


def move_minus_out_of_inverse(term: Term, facts: Facts) -> Term | None:
    """1/(−a − 1) is −1/(a + 1) where a + 1 is well away from 0."""
    inner = term.parts[0]
    lonely = inner.head == "sum" and all(map(is_negative, inner.parts))
    return product(MINUS, call(term.called, negate(inner))) if lonely and facts.bound(inner).is_away_from_zero else None


def invert_quotient(term: Term, facts: Facts) -> Term | None:
    """1/(a/b) is b/a where a/b and b are well away from 0."""
    inner = term.parts[0]
    if facts.may_overflow(inner):
        return None
    above = [part.parts[0] for part in list_factors(inner) if part.is_call("inv")]
    below = [part for part in list_factors(inner) if not part.is_call("inv")]
    if not above or not all(facts.bound(part).is_away_from_zero for part in (inner, *above, *below)):
        return None
    return product(*above, call("inv", product(*below)))


def invert_exponential(term: Term, facts: Facts) -> Term | None:
    """1/exp(−a) is exp(a); 1/exp(a) stays, since b/exp(a) is shorter than b·exp(−a)."""
    inner = term.parts[0]
    if not inner.is_call("exp") or facts.may_overflow(inner) or not facts.bound(inner).is_away_from_zero:
        return None
    opposite = negate(inner.parts[0])
    return call("exp", opposite) if opposite.size < inner.parts[0].size else None


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


def cancel_exponential(term: Term, facts: Facts) -> Term | None:
    """exp(log(a)) is a where a is well above 0."""
    inner = term.parts[0]
    if not inner.is_call("log") or not facts.bound(inner.parts[0]).within(AWAY, LARGE):
        return None
    return inner.parts[0]


def cancel_root(term: Term, facts: Facts) -> Term | None:
    """√(a²) is |a| where a is well away from 0."""
    inner = term.parts[0]
    if inner.head != "power" or inner.exponent % 2 or not facts.bound(inner.parts[0]).is_away_from_zero:
        return None
    return power(call("abs", inner.parts[0]), inner.exponent // 2)


def drop_on_binary(term: Term, facts: Facts) -> Term | None:
    """√y and y² are y where y is 0 or 1."""
    return term.parts[0] if facts.bound(term.parts[0]).binary else None


def drop_mean(term: Term, facts: Facts) -> Term | None:
    """A mean of what it has made equal already changes nothing."""
    return term.parts[0] if facts.is_constant_over(term.parts[0], term.called.name) else None


def move_out_of_mean(term: Term, facts: Facts) -> Term | None:
    """mean(2a + 1) is 2·mean(a) + 1: whatever is equal over all elements joined leaves the mean."""
    name, join = term.called.name, total if term.parts[0].head == "sum" else product
    outside, inside = _part_constant(term.parts[0], facts, name)
    return join(*outside, call(name, join(*inside))) if outside and inside else None


def drop_pool(term: Term, facts: Facts) -> Term | None:
    """A pool changes nothing where neighbours are equal, or where there are none."""
    alone = not facts.has_space or facts.is_constant_over(term.parts[0], "mean_nhw")
    return term.parts[0] if alone else None


def move_summands_out_of_pool(term: Term, facts: Facts) -> Term | None:
    """max_pool(a + 1) is max_pool(a) + 1."""
    if term.parts[0].head != "sum":
        return None
    outside, inside = _part_constant(term.parts[0], facts, "mean_nhw")
    return total(*outside, call(term.called, total(*inside))) if outside and inside else None


def move_factor_out_of_pool(term: Term, facts: Facts) -> Term | None:
    """max_pool(−2a) is −2·min_pool(a)."""
    coefficient, rest = split_coefficient(term.parts[0])
    if coefficient == ONE or rest == ONE:
        return None
    upward = term.is_call("max_pool") == (coefficient.value > 0)
    return product(coefficient, call("max_pool" if upward else "min_pool", rest))


def _part_constant(term: Term, facts: Facts, mean: str) -> tuple[list[Term], list[Term]]:
    parts = term.parts if term.head in ("sum", "product") else (term,)
    outside = [part for part in parts if facts.is_constant_over(part, mean)]
    return outside, [part for part in parts if part not in outside]
