"""Section 3.2, Initialization: every tree that has D operators on each path can be drawn, and no other."""

from collections import Counter
from itertools import product
from random import Random

import pytest

from autoloss.proposing.initialization import initial_expression
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet, Expression
from autoloss.space.operators import OPERATORS

FULL = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
SMALL = Alphabet({"p": Role.PREDICTION}, (OPERATORS["neg"], OPERATORS["add"]))


def depths(tree: Expression, node: int = 0) -> set[int]:
    """The numbers of operators on the paths below a node, by recursion."""
    children = tree.children(node)
    if isinstance(tree.symbols[node], str):
        return {0}
    return {1 + depth for child in children for depth in depths(child)}


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 5])
def test_every_path_has_exactly_d_operators(depth):
    for seed in range(300):
        assert depths(initial_expression(FULL, depth, Random(seed))) == {depth}


def every(depth):
    """All texts of that depth over the small alphabet, by enumeration."""
    if depth == 0:
        return {"p", "1"}
    below = every(depth - 1)
    return {f"neg({x})" for x in below} | {f"add({x}, {z})" for x, z in product(below, repeat=2)}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_reaches_every_tree_of_its_depth_and_nothing_else(depth):
    assert {str(initial_expression(SMALL, depth, Random(seed))) for seed in range(4000)} == every(depth)


def share(counts, key):
    return counts[key] / counts.total()


def test_operators_are_equally_likely_and_so_are_leaves():
    rng = Random(0)
    roots: Counter[str] = Counter()
    leaves: Counter[object] = Counter()
    for _ in range(28_000):
        symbols = initial_expression(FULL, 1, rng).symbols
        roots[getattr(symbols[0], "name", "")] += 1
        leaves.update(symbols[1:])
    # Four standard errors of a share of 1/14 in 28,000 draws, and of 1/3 in 32,000.
    assert {name: share(roots, name) for name in OPERATORS} == pytest.approx(
        dict.fromkeys(OPERATORS, 1 / 14), abs=0.0062
    )
    assert {name: share(leaves, name) for name in FULL.leaves} == pytest.approx(
        dict.fromkeys(FULL.leaves, 1 / 3), abs=0.011
    )


def test_equal_generators_give_equal_trees():
    assert initial_expression(FULL, 3, Random(5)) == initial_expression(FULL, 3, Random(5))
