"""The tree: structure, edits, text and evaluation, for all trees that a search can make."""

import pickle
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet, Expression, build, leaf
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse
from tests.space import independent

ROLES = {"y": Role.TARGET, "p": Role.PREDICTION}
AREAS = {"i": Role.BOTH, "u": Role.BOTH, "e": Role.BOTH}
ALPHABET = Alphabet(ROLES)
LOG = parse("neg(mul(y, log(p)))")


def grown(seed, mutations, depth=3, alphabet=ALPHABET):
    """A tree as evolution makes them."""
    rng = Random(seed)
    tree = initial_expression(alphabet, depth, rng)
    for _ in range(mutations):
        tree = mutate(tree, alphabet, rng)
    return tree


trees = st.builds(grown, st.integers(0, 2**32), st.integers(0, 8), st.integers(0, 4))
derandomized = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@derandomized
@given(trees)
def test_text_parses_back_to_an_equal_tree(tree):
    assert parse(str(tree)) == tree
    assert hash(parse(str(tree))) == hash(tree)


@derandomized
@given(trees, st.integers(0, 2**32))
def test_evaluation_agrees_with_an_independent_recursion(tree, seed):
    generator = np.random.default_rng(seed)
    shape = (2, 3, 3, 4)
    target = (generator.random(shape) < 0.4).astype(float)
    values = {"y": target, "p": generator.random(shape)}
    expected = independent.evaluate(str(tree), values)
    found = tree.evaluate({name: torch.from_numpy(array) for name, array in values.items()}).numpy()
    assert found.shape == shape
    # Overflow is no claim, and ill-conditioned inverses, as 1/(x − x + ε), agree only loosely.
    sane = np.isfinite(expected) & (np.abs(expected) < 1e6)
    assert np.isnan(found).tolist() == np.isnan(expected).tolist()
    np.testing.assert_allclose(found[sane], expected[sane], rtol=1e-6, atol=1e-9)


@derandomized
@given(trees)
def test_canonical_form_is_one_for_swapped_operands_and_keeps_the_value(tree):
    swapped = parse(str(tree))
    for node, symbol in enumerate(tree.symbols):
        if isinstance(symbol, Operator) and symbol.name in ("add", "mul"):
            swapped = tree.replace(node, build(symbol, *reversed(tree.children(node))))
    assert swapped.canonical() == tree.canonical() == tree.canonical().canonical()
    leaves = {name: torch.rand(1, 2, 3, 3, generator=torch.Generator().manual_seed(3)) for name in ROLES}
    torch.testing.assert_close(tree.canonical().evaluate(leaves), tree.evaluate(leaves), rtol=0, atol=0, equal_nan=True)


@derandomized
@given(trees, st.randoms(use_true_random=False))
def test_replacing_a_subtree_by_itself_changes_nothing(tree, rng):
    node = rng.randrange(len(tree.symbols))
    assert tree.replace(node, tree.subtree(node)) == tree
    assert tree.subtree(node).children(0) == tree.children(node)


def test_a_tree_is_its_symbols_in_prefix_order():
    assert [getattr(symbol, "name", symbol) for symbol in LOG.symbols] == ["neg", "mul", "y", "log", "p"]
    assert str(LOG.subtree(1)) == "mul(y, log(p))"
    assert [str(child) for child in LOG.children(1)] == ["y", "log(p)"]
    assert LOG.children(2) == ()
    assert LOG.root == OPERATORS["neg"]
    assert LOG.end(3) == 5


def test_depth_counts_operators_on_the_longest_path():
    assert LOG.depth == 3
    assert leaf("y").depth == 0
    assert [operator.name for operator in LOG.operators] == ["neg", "mul", "log"]
    assert LOG.leaves == {"y", "p"}


def test_edits_return_a_new_tree():
    before = str(LOG)
    assert str(LOG.replace(3, parse("square(1)"))) == "neg(mul(y, square(1)))"
    assert str(LOG) == before


def test_trees_are_values():
    assert parse("-y * log(p)") == LOG
    assert {LOG: 1}[parse("neg(mul(y, log(p)))")] == 1
    assert parse("mul(log(p), y)") != parse("mul(y, log(p))")
    assert pickle.loads(pickle.dumps(LOG)) == LOG  # noqa: S301
    with pytest.raises(AttributeError):
        LOG.symbols = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    "symbols",
    [(), ("y", "p"), (OPERATORS["neg"],), (OPERATORS["add"], "y"), (OPERATORS["neg"], "y", "p")],
)
def test_symbols_that_are_not_one_whole_tree_are_refused(symbols):
    with pytest.raises(ValueError, match=r"lacks|complete"):
        Expression(symbols)


def test_an_operator_with_too_few_operands_is_refused():
    with pytest.raises(ValueError, match="add takes 2 operands; found 1"):
        build("add", leaf("y"))


@pytest.mark.parametrize(
    ("text", "roles", "expected"),
    [
        ("y * p", ROLES, True),
        ("log(y) + 1", ROLES, False),
        ("log(p) + 1", ROLES, False),
        ("1 + 1", ROLES, False),
        ("i", AREAS, True),
        ("1", AREAS, False),
    ],
)
def test_a_loss_holds_both_roles(text, roles, expected):
    assert parse(text).holds(roles) is expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_evaluation_never_runs_in_sixteen_bits(dtype):
    leaves = {name: torch.full((1, 2, 1, 1), 0.5, dtype=dtype) for name in ROLES}
    assert LOG.evaluate(leaves).dtype == torch.float32


def test_double_precision_stays():
    leaves = {name: torch.full((1, 2, 1, 1), 0.5, dtype=torch.float64) for name in ROLES}
    assert LOG.evaluate(leaves).dtype == torch.float64


@pytest.mark.parametrize(
    ("leaves", "problem"),
    [
        ({"y": torch.ones(1, 1, 1, 1)}, "needs the leaves p"),
        ({"y": torch.ones(1, 1, 1, 1), "p": torch.ones(1, 2, 1, 1)}, "same shape"),
        ({"y": torch.ones(2, 3), "p": torch.ones(2, 3)}, r"\(N, C, H, W\)"),
    ],
)
def test_missing_leaves_and_other_shapes_are_refused(leaves, problem):
    with pytest.raises(ValueError, match=problem):
        LOG.evaluate(leaves)


def test_a_very_deep_tree_needs_no_recursion():
    deep = Expression((*[OPERATORS["neg"]] * 2000, "p"))
    assert deep.depth == 2000
    assert deep.canonical() == deep
    assert deep.evaluate({"p": torch.ones(1, 1, 1, 1)}).item() == 1
    assert str(deep).count("neg(") == 2000


def test_an_alphabet_always_holds_the_constant_once():
    assert ALPHABET.leaves == ("y", "p", "1")
    with pytest.raises(ValueError, match="constant 1"):
        Alphabet({"1": Role.BOTH})
    with pytest.raises(ValueError, match="at least one operator"):
        Alphabet(ROLES, ())
