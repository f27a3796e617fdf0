"""The form of rules, the questions that they may ask, and helpers that several of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from autoloss.formulas.constants import fold_constants
from autoloss.formulas.terms import ONE, Term, is_negative, list_factors, negate
from autoloss.space.ranges import Range


class Facts(Protocol):
    """The questions that a rule may ask about a term."""

    has_space: bool
    """True if H, W and C can be above 1; not so for boxes."""

    def bound(self, term: Term) -> Range: ...

    def may_overflow(self, term: Term) -> bool:
        """Say whether the term, or what it is made of, can become infinite: then 0 times it, or it minus itself, is no 0."""
        ...

    def is_constant_over(self, term: Term, mean: str) -> bool:
        """Say whether all elements that `mean`, `mean_nhw` or `mean_c`, joins are equal."""
        ...


Rule = Callable[[Term, Facts], Term | None]


def compute_constant(term: Term, facts: Facts) -> Term | None:
    """Compute what is made of numbers alone."""
    return fold_constants(term) if all(part.head == "number" for part in term.parts) else None


def collect_exponents(term: Term) -> dict[Term, int]:
    """Return base → exponent of a product without a number."""
    found: dict[Term, int] = {}
    for factor in list_factors(term):
        if factor.head == "power":
            found[factor.parts[0]] = found.get(factor.parts[0], 0) + factor.exponent
        elif factor != ONE:
            found[factor] = found.get(factor, 0) + 1
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
