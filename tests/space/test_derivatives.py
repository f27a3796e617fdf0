"""First and second derivative of a tree by its prediction, against autograd and against finite differences."""

from itertools import count
from random import Random

import numpy as np
import pytest
import torch

from autoloss.errors import RequestError
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.space.branch import Role
from autoloss.space.derivatives import Jet, differentiate, lift
from autoloss.space.expression import Alphabet
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse

ELEMENT_WISE = [row for name, row in OPERATORS.items() if "mean" not in name and "pool" not in name]
ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION}, tuple(ELEMENT_WISE))
POINTS = 40


def grow(seed):
    rng = Random(seed)
    tree = initial_expression(ALPHABET, rng.choice((2, 3, 4)), rng)
    for _ in range(rng.randrange(5)):
        tree = mutate(tree, ALPHABET, rng)
    return tree


def draw_points(seed, probabilities):
    rng = np.random.default_rng(seed)
    if probabilities:
        return rng.integers(0, 2, POINTS).astype(float), rng.uniform(0.02, 0.98, POINTS)
    return rng.normal(size=POINTS), rng.normal(size=POINTS)


def evaluate(tree, y, p):
    with np.errstate(all="ignore"):
        found = differentiate(tree)(lift(y), Jet(p, 1.0))
        return [np.broadcast_to(each, p.shape) for each in (found.value, found.first, found.second)]


def differentiate_by_autograd(tree, y, p):
    target, prediction = (torch.tensor(each).reshape(-1, 1, 1, 1) for each in (y, p))
    prediction.requires_grad_()
    value = tree.evaluate({"y": target, "p": prediction})
    (first,) = torch.autograd.grad(value.sum(), prediction, create_graph=True)
    second = torch.zeros_like(first)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.sum(), prediction, allow_unused=True, materialize_grads=True)
    return [each.detach().numpy(force=True).ravel() for each in (value, first, second)]


def is_smooth(tree, y, p):
    """Say whether the tree is finite and moderate, and depends on p."""
    with np.errstate(all="ignore"):
        found = differentiate_by_autograd(tree, y, p)
    return "p" in tree.leaves and all(np.isfinite(each).all() and np.abs(each).max() < 1e8 for each in found)


def take_trees(probabilities, number=200):
    for seed in count():
        tree = grow(seed)
        points = draw_points(seed, probabilities)
        if "p" in tree.leaves and is_smooth(tree, *points):
            yield tree, *points
            number -= 1
            if not number:
                return


@pytest.mark.parametrize("probabilities", [True, False])
def test_derivatives_of_200_trees_are_those_of_autograd(probabilities):
    for tree, y, p in take_trees(probabilities):
        for one, other in zip(evaluate(tree, y, p), differentiate_by_autograd(tree, y, p), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7, err_msg=str(tree))


def test_derivatives_of_200_trees_are_those_of_finite_differences():
    compared = 0
    for tree, y, p in take_trees(probabilities=True):
        step = 1e-6
        (_, first, second), *moved = (evaluate(tree, y, p + times * step) for times in (0, 1, -1, 2, -2))
        once, twice = (
            [(above - below) / (2 * times * step) for above, below in zip(*pair, strict=True)]
            for times, pair in ((1, moved[:2]), (2, moved[2:]))
        )
        # Beside a jump or a kink, or where rounding is large, a difference says nothing; twice the step tells.
        for found, near, far in zip((first, second), once, twice, strict=False):
            stable = np.abs(near - far) <= 1e-5 * (1 + np.abs(near))
            np.testing.assert_allclose(found[stable], near[stable], rtol=1e-4, atol=1e-4, err_msg=str(tree))
            compared += int(stable.sum())
    assert compared > 0.9 * 2 * 200 * POINTS


def test_a_factor_multiplies_value_and_derivatives():
    points, tree = draw_points(0, True), parse("-y * log(p)")
    for scaled, plain in zip(evaluate(tree.scaled(0.25), *points), evaluate(tree, *points), strict=True):
        np.testing.assert_allclose(scaled, 0.25 * plain)


def test_what_does_not_depend_on_the_prediction_has_no_slope():
    assert [each.tolist() for each in evaluate(parse("y"), *draw_points(0, True))[1:]] == [[0.0] * POINTS] * 2


@pytest.mark.parametrize("operator", ["mean_nhw", "mean_c", "max_pool", "min_pool"])
def test_operators_that_mix_rows_or_classes_are_refused(operator):
    with pytest.raises(RequestError, match=rf"holds {operator}, which mixes rows, classes or positions"):
        differentiate(parse(f"-y * log({operator}(p))"))


def test_own_operators_and_other_leaves_are_refused():
    operators = {**OPERATORS, "sin": Operator("sin", 1, torch.sin)}
    with pytest.raises(RequestError, match="'sin' is your own, and its second derivative is not known"):
        differentiate(parse("y * sin(p)", operators=operators))
    with pytest.raises(RequestError, match="has the leaves i, u; a boosting objective has y and p"):
        differentiate(parse("1 - i / u", leaves=("i", "u", "e")))
