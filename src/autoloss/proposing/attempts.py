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
        number: j ≥ 0.
        parent: The parent's tree of this branch, the sum of both parents', or one to start from; None if there is none.
    """
    kind = resolve_kind(kind, number, settings, has_parent=parent is not None)
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


def resolve_kind(kind: Kind, attempt: int | None, settings: EvolutionSettings, *, has_parent: bool) -> Kind:
    """Return how an attempt is made, which is what its branch is recorded with: after many rejected ones not as planned.

    A loss to start from becomes a fresh tree after attempt 0, a sum or a refinement a mutation, a fresh tree a mutation from
    `fresh_attempts` on, and a mutation a fresh tree from `mutation_attempts` on.

    Args:
        attempt: Its number; None for a copied branch.
        has_parent: Whether there is a tree that can be mutated.
    """
    if attempt is None:
        return kind
    if kind in (Kind.SUM, Kind.REFINEMENT) and attempt >= SMALL_STEPS:
        kind = Kind.MUTATION
    if kind is Kind.START and attempt:
        kind = Kind.FRESH
    if kind is Kind.FRESH and attempt >= (settings.fresh_attempts or math.inf):
        kind = Kind.MUTATION
    if not has_parent or (kind is Kind.MUTATION and attempt >= settings.mutation_attempts):
        kind = Kind.FRESH
    return kind
