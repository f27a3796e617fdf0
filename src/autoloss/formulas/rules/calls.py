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
