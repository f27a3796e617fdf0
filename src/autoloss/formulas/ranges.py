"""Which values the leaves and terms of a formula can take: what is never negative, never zero, or only 0 and 1."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from autoloss.formulas.terms import Term
from autoloss.space.ranges import BOUNDS, POSITIVE, REAL, Range, bound_power, bound_product, bound_sum


def limit_to_usual(known: Range) -> Range:
    """Return the values that an unbounded leaf has in practice, by which overflows are judged: logits, areas in pixels."""
    return Range(max(known.low, -30), min(known.high, 1e6 if known == POSITIVE else 30))


def bound_node(term: Term, parts: list[Range], leaves: Mapping[str, Range]) -> Range:
    """Return the range of a node from those of its parts."""
    match term.head:
        case "leaf":
            return leaves.get(term.name, REAL)
        case "number":
            return Range(float(term.value), float(term.value))
        case "sum":
            return bound_sum(*parts)
        case "product":
            return reduce(bound_product, parts)
        case "power":
            return bound_power(parts[0], term.exponent)
        case _:
            assert term.operator is not None
            known = BOUNDS.get(term.operator.name)
            return known(parts[0]) if known and term.is_call(term.operator.name) else REAL
