"""Section 3.2, "repeated until it passes": the tree of attempt j at a branch is drawn with its own generator."""

from __future__ import annotations

import math

from autoloss.proposing.chance import derive_generator
from autoloss.proposing.initialization import valid_expression
from autoloss.proposing.mutation import Kind, draw_tree
from autoloss.settings import EvolutionSettings
from autoloss.space.expression import Alphabet, Expression

SMALL_STEPS = 16
"""Attempts at a sum or a refinement, of which there are few, after which the parent is mutated."""
MOST_MUTATIONS = 1_000
"""Mutations for one attempt. Of those of y·p, three in ten depend on prediction and target, of those of y·log(p) six."""


def draw_attempt(
    candidate: int,
    branch: str,
    kind: Kind,
    number: int,
    parent: Expression | None,
    alphabet: Alphabet,
    settings: EvolutionSettings,
    seed: int,
) -> Expression:
    """Draw one attempt at a branch of a candidate.

    Args:
        kind: How the candidate's plan makes the branch.
        number: j ≥ 0. From `mutation_attempts` on a mutation becomes a fresh tree, and from `fresh_attempts` on a fresh tree a
            mutation; a loss to start from becomes a fresh tree after attempt 0.
        parent: The parent's tree of this branch, the sum of both parents', or one to start from; None if there is none.
    """
    if kind in (Kind.SUM, Kind.REFINEMENT) and number >= SMALL_STEPS:
        kind = Kind.MUTATION
    kind = resolve_kind(kind, number)
    if kind is Kind.FRESH and number >= (settings.fresh_attempts or math.inf):
        kind = Kind.MUTATION
    if parent is None or (kind is Kind.MUTATION and number >= settings.mutation_attempts):
        kind = Kind.FRESH
    rng = derive_generator(seed, "attempt", candidate, branch, number)
    if not settings.valid_draws or kind is Kind.START:
        return draw_tree(kind, parent or Expression(("1",)), alphabet, settings.depth, rng)
    if kind is Kind.FRESH or parent is None:
        return valid_expression(alphabet, settings.depth, rng)
    tree = parent
    for _ in range(MOST_MUTATIONS):
        tree = draw_tree(kind, parent, alphabet, settings.depth, rng)
        if tree.holds(alphabet.leaves_and_roles):
            break
    return tree


def resolve_kind(kind: Kind, attempt: int | None) -> Kind:
    """Return the kind that a branch is recorded with: a loss to start from that did not pass gave way to a fresh tree.

    Args:
        attempt: Number of the attempt that passed; None for a copied branch.
    """
    return Kind.FRESH if kind is Kind.START and attempt else kind
