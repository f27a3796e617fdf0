"""Section 3.2, Mutation: insertion, deletion, replacement, and how each attempt at a branch of a candidate is drawn by its kind.

The paper's root is the output node above the topmost operator; it is not a symbol here, so every node may be changed. Beside the
paper's mutations there are two small steps from a loss that is good already: a weighted sum with another loss, and a change of
one factor or power inside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from random import Random

from autoloss.proposing.chance import derive_generator
from autoloss.proposing.initialization import initial_expression, valid_expression
from autoloss.proposing.records import PROMOTED
from autoloss.settings import EvolutionSettings, OffspringSettings
from autoloss.space.expression import Alphabet, Expression, arity, build, leaf
from autoloss.space.numerals import weigh

Mutation = Callable[[Expression, Alphabet, Random], Expression]


def insert(tree: Expression, alphabet: Alphabet, rng: Random) -> Expression:
    """Put a random operator between a random node and its parent.

    An operator of arity 2 takes a random leaf as its other child.

    Source: Section 3.2, "Insertion".
    """
    node = rng.randrange(len(tree.symbols))
    operator = rng.choice(alphabet.operators)
    return tree.replace(node, build(operator, *_fill([tree.subtree(node)], operator.arity, alphabet, rng)))


def delete(tree: Expression, alphabet: Alphabet, rng: Random) -> Expression:
    """Remove a random operator; one of its children, at random, takes its place. A single leaf is unchanged.

    Source: Section 3.2, "Deletion".
    """
    nodes = [node for node, symbol in enumerate(tree.symbols) if arity(symbol)]
    if not nodes:
        return tree
    node = rng.choice(nodes)
    return tree.replace(node, rng.choice(tree.children(node)))


def replace(tree: Expression, alphabet: Alphabet, rng: Random) -> Expression:
    """Put a random operator in the place of a random node, a leaf too.

    Of too many children a random subset stays; where there are too few, random leaves fill up.

    Source: Section 3.2, "Replacement".
    """
    node = rng.randrange(len(tree.symbols))
    operator = rng.choice(alphabet.operators)
    children = list(tree.children(node))
    if len(children) > operator.arity:
        kept = sorted(rng.sample(range(len(children)), operator.arity))
        children = [children[position] for position in kept]
    return tree.replace(node, build(operator, *_fill(children, operator.arity, alphabet, rng)))


WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Weights of the second loss of a sum."""
MUTATIONS: tuple[Mutation, ...] = (insert, delete, replace)
"""Each is drawn with the same probability."""


def mutate(tree: Expression, alphabet: Alphabet, rng: Random) -> Expression:
    """Apply two mutations in sequence, each drawn uniformly, to a tree without its factor (Section 3.2)."""
    tree = tree.scaled(1.0)
    for _ in range(2):
        tree = rng.choice(MUTATIONS)(tree, alphabet, rng)
    return tree


def reweigh(tree: Expression, rng: Random) -> Expression:
    """Multiply the second operand of a sum by a random weight: 1/4, 1/2, 1, 2 or 4."""
    first, second = tree.children(0)
    weight = rng.choice(WEIGHTS)
    return tree if weight == 1 else build(tree.root, first, weigh(second, weight))


def refine(tree: Expression, alphabet: Alphabet, rng: Random) -> Expression:
    """Multiply a random node by 2 or 1/2, or take its square or its root: a weight, an exponent or a focus changes a little."""
    tree = tree.scaled(1.0)
    node = rng.randrange(len(tree.symbols))
    names = {operator.name: operator for operator in alphabet.operators}
    changes = [partial(weigh, weight=weight) for weight in (0.5, 2.0) if {"mul", "add", "inv"} <= names.keys()]
    changes += [partial(build, names[name]) for name in ("square", "sqrt") if name in names]
    return tree.replace(node, rng.choice(changes)(tree.subtree(node))) if changes else tree


class Kind(Enum):
    """The way in which one branch of a candidate is made. The values are stored with every run, so they never change."""

    COPY = "copied"
    FRESH = "fresh"
    MUTATION = "mutated"
    SUM = "summed"
    """The parent's tree plus that of a second parent."""
    REFINEMENT = "refined"
    """The parent's tree with one factor or power changed."""
    START = "given"
    """A loss that the search was started with."""
    PROMOTION = PROMOTED
    """The parent's tree, to be trained at a larger share of the schedule."""


def draw_kind(settings: OffspringSettings, rng: Random) -> Kind:
    """Draw whether a branch is copied from the parent, a fresh tree or a mutation (Section 3.2), or one of the small steps."""
    if rng.random() < settings.copy:
        return Kind.COPY
    if rng.random() < settings.fresh:
        return Kind.FRESH
    if not settings.sum and not settings.refine:
        return Kind.MUTATION
    drawn = rng.random()
    if drawn < settings.sum:
        return Kind.SUM
    return Kind.REFINEMENT if drawn < settings.sum + settings.refine else Kind.MUTATION


def draw_tree(kind: Kind, parent: Expression, alphabet: Alphabet, depth: int, rng: Random) -> Expression:
    """Draw a tree of a given kind; a fresh one ignores its parent, and the parent of a sum is the sum of both parents."""
    match kind:
        case Kind.COPY | Kind.START | Kind.PROMOTION:
            return parent
        case Kind.FRESH:
            return initial_expression(alphabet, depth, rng)
        case Kind.MUTATION:
            return mutate(parent, alphabet, rng)
        case Kind.SUM:
            return reweigh(parent, rng)
        case Kind.REFINEMENT:
            return refine(parent, alphabet, rng)


def offspring(expression: Expression, alphabet: Alphabet, depth: int, rng: Random) -> Expression:
    """Draw one offspring of `expression`: a copy (10 %), a fresh tree (45 %) or two mutations (45 %).

    Args:
        depth: D of a fresh tree.

    Source: Section 3.2, Evolution.

    >>> from autoloss.space.branch import Role
    >>> from autoloss.space.parsing import parse
    >>> alphabet = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
    >>> offspring(parse("-y * log(p)"), alphabet, 3, Random(0)) == offspring(parse("-y * log(p)"), alphabet, 3, Random(0))
    True
    """
    return draw_tree(draw_kind(OffspringSettings(), rng), expression, alphabet, depth, rng)


def _fill(children: list[Expression], count: int, alphabet: Alphabet, rng: Random) -> list[Expression]:
    return children + [leaf(rng.choice(alphabet.leaves)) for _ in range(count - len(children))]


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
