"""Section 3.2, Initialization: every tree that has D operators on each path can be drawn, and no other."""

from collections import Counter
from itertools import product
from random import Random

import pytest
from scipy.stats import chi2_contingency

from autoloss.errors import RequestError
from autoloss.proposing.initialization import initial_expression, valid_expression
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


ENUMERABLE = {
    "prediction and target": Alphabet(FULL.leaves_and_roles, tuple(OPERATORS[name] for name in ("neg", "exp", "add"))),
    "both at once": Alphabet({"i": Role.BOTH, "y": Role.TARGET}, tuple(OPERATORS[name] for name in ("neg", "mul"))),
    "three leaves": Alphabet(
        {"y": Role.TARGET, "p": Role.PREDICTION, "q": Role.PREDICTION}, (OPERATORS["add"], OPERATORS["neg"])
    ),
}


def differ(first: Counter[str], second: Counter[str]) -> float:
    """The p-value of a chi-square test that two samples of trees come from one distribution; rare trees are one class."""
    rows: list[list[int]] = [[0, 0]]
    for text in first | second:
        pair = [first[text], second[text]]
        if sum(pair) < 20:
            rows[0] = [old + new for old, new in zip(rows[0], pair, strict=True)]
        else:
            rows.append(pair)
    return chi2_contingency([row for row in rows if sum(row)]).pvalue


@pytest.mark.parametrize("name", ENUMERABLE)
def test_valid_trees_are_as_likely_as_among_random_ones(name):
    alphabet = ENUMERABLE[name]
    random, valid = Random(1), Random(2)
    trees = (initial_expression(alphabet, 2, random) for _ in range(30_000))
    kept = Counter(str(tree) for tree in trees if tree.holds(alphabet.leaves_and_roles))
    drawn = Counter(str(valid_expression(alphabet, 2, valid)) for _ in range(kept.total()))
    assert kept.total() > 3_000
    assert differ(kept, drawn) > 0.01
    # A test that sees a difference where there is one: leaves that are drawn at random until each role is there.
    biased = Counter({text: count * (2 if "neg(" in text else 1) for text, count in drawn.items()})
    assert differ(kept, biased) < 1e-6


def test_each_valid_tree_of_a_small_space_is_reached_and_no_other():
    alphabet = Alphabet(FULL.leaves_and_roles, (OPERATORS["neg"], OPERATORS["add"]))
    reached = {str(valid_expression(alphabet, 1, Random(seed))) for seed in range(200)}
    assert reached == {"add(y, p)", "add(p, y)"}
    assert {valid_expression(FULL, 3, Random(seed)).depth for seed in range(200)} == {3}
    assert all(valid_expression(FULL, 3, Random(seed)).holds(FULL.leaves_and_roles) for seed in range(200))


def test_a_space_without_a_valid_tree_is_named():
    with pytest.raises(RequestError, match=r"No tree of depth 3 .* neg, exp\. Keep add or mul \(space.without\)"):
        valid_expression(Alphabet(FULL.leaves_and_roles, (OPERATORS["neg"], OPERATORS["exp"])), 3, Random(0))
