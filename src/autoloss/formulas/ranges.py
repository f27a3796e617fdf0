"""Which values the leaves and terms of a formula can take: what is never negative, never zero, or only 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce

from autoloss.formulas.terms import Term
from autoloss.space.branch import Activation
from autoloss.space.ranges import BINARY, BOUNDS, POSITIVE, REAL, UNIT, Range, bound_power, bound_product, bound_sum

AREAS = ("i", "u", "e")
"""One number for each box: a tree of these alone has one channel and no space."""


def find_leaf_ranges(leaves: Iterable[str], activation: Activation, one_hot: bool) -> Mapping[str, Range]:
    """Return what is known of leaves by their names: areas are never negative, p and y depend on the activation."""
    bounded = activation in ("softmax", "sigmoid")
    known = {"p": UNIT if bounded else REAL, "y": BINARY if one_hot else UNIT if bounded else REAL}
    known.update(dict.fromkeys(AREAS, POSITIVE))
    return {leaf: known.get(leaf, REAL) for leaf in sorted(leaves)}


def are_areas(leaves: Iterable[str]) -> bool:
    """Say whether all leaves are areas, and there are some."""
    found = set(leaves)
    return bool(found) and found <= set(AREAS)


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
