"""Table 1: each operator against values computed by hand and against an independent NumPy implementation."""

import math

import numpy as np
import pytest
import torch

from autoloss.space.operators import OPERATORS, Operator, upcast
from tests.space.independent import FUNCTIONS

NAN, INF = math.nan, math.inf


def row(*values):
    """One pixel row as channels, (1, C, 1, 1), in float64: operators without neighbourhood see each value alone."""
    return torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1, 1)


def image(*rows):
    return torch.tensor(rows, dtype=torch.float64).reshape(1, 1, len(rows), -1)


BY_HAND = [
    ("add", [[0, -2, 3], [0, 5, -3]], [0, 3, 0]),
    ("mul", [[0, -2, 3], [7, 5, -3]], [0, -10, -9]),
    ("neg", [[0, -2, 3]], [0, 2, -3]),
    ("abs", [[0, -2, 3]], [0, 2, 3]),
    ("inv", [[0, -2, 4]], [1e12, -0.5, 0.25]),
    ("log", [[0, 1, math.e, -math.e, 0.5, -0.5]], [0, 0, 1, -1, -math.log(2), math.log(2)]),
    ("exp", [[0, 1, -1]], [1, math.e, 1 / math.e]),
    ("tanh", [[0, 0.5, -0.5, 100]], [0, 0.46211715726, -0.46211715726, 1]),
    ("square", [[0, -3, 0.5]], [0, 9, 0.25]),
    ("sqrt", [[0, 4, -9]], [0, 2, -3]),
    ("mean_c", [[0, -2, 5]], [1, 1, 1]),
    ("mean_nhw", [[0, -2, 5]], [0, -2, 5]),
    ("max_pool", [[0, -2, 5]], [0, -2, 5]),
    ("min_pool", [[0, -2, 5]], [0, -2, 5]),
]


@pytest.mark.parametrize(("name", "operands", "expected"), BY_HAND, ids=[case[0] for case in BY_HAND])
def test_values_computed_by_hand(name, operands, expected):
    found = OPERATORS[name].function(*(row(*values) for values in operands)).flatten().tolist()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_every_operator_has_a_value_computed_by_hand():
    assert {case[0] for case in BY_HAND} == set(OPERATORS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (3, 4, 1, 1), (1, 1, 1, 6), (1, 2, 2, 2)])
def test_agrees_with_numpy_on_zeros_negatives_and_borders(name, shape):
    generator = np.random.default_rng(7)
    operator = OPERATORS[name]
    operands = [generator.normal(size=shape) * 3 for _ in range(operator.arity)]
    for values in operands:
        # Exact zeros, and ties within a pooling window.
        values[generator.random(shape) < 0.2] = 0.0
        values[generator.random(shape) < 0.2] = -1.5
    found = operator.function(*map(torch.from_numpy, operands))
    assert found.shape == shape
    np.testing.assert_allclose(found.numpy(), FUNCTIONS[name](*operands), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["log", "sqrt", "abs"])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_value_and_gradient_are_zero_at_zero(name, zero):
    x = row(zero).requires_grad_(True)
    value = OPERATORS[name].function(x)
    value.sum().backward()
    assert value.item() == 0
    assert x.grad is not None
    assert x.grad.item() == 0


@pytest.mark.parametrize(
    ("name", "at", "slope"),
    [
        ("neg", 2.0, -1.0),
        ("abs", -2.0, -1.0),
        ("inv", 2.0, -0.25),
        ("log", 2.0, 0.5),
        # sign(x)·log(|x|+ε) is odd where |x| is large against ε, so its slope is even.
        ("log", -2.0, 0.5),
        ("exp", 1.0, math.e),
        ("tanh", 0.0, 1.0),
        ("square", -3.0, -6.0),
        ("sqrt", 4.0, 0.25),
        ("sqrt", -4.0, 0.25),
    ],
)
def test_slopes_computed_by_hand(name, at, slope):
    x = row(at).requires_grad_(True)
    OPERATORS[name].function(x).sum().backward()
    assert x.grad is not None
    assert x.grad.item() == pytest.approx(slope, rel=1e-9)


@pytest.mark.parametrize("name", ["log", "sqrt", "tanh", "exp", "square", "inv", "neg", "abs", "max_pool", "mean_c"])
def test_nan_stays_nan(name):
    assert OPERATORS[name].function(row(NAN)).isnan().all()


def test_the_logarithm_ends_at_epsilon():
    tiny = OPERATORS["log"].function(row(1e-30, -1e-30))
    assert tiny.flatten().tolist() == pytest.approx([math.log(1e-12), -math.log(1e-12)])


def test_max_pool_sees_neighbours_and_padding_never_wins():
    x = image([-5.0, -6, -7, -8], [-6, -6, -7, -8], [-9, -9, -9, -9])
    expected = image([-5.0, -5, -6, -7], [-5, -5, -6, -7], [-6, -6, -6, -7])
    assert torch.equal(OPERATORS["max_pool"].function(x), expected)


def test_min_pool_sees_neighbours_and_padding_never_wins():
    x = image([5.0, 6, 7, 8], [6, 6, 7, 8], [9, 9, 9, 9])
    expected = image([5.0, 5, 6, 7], [5, 5, 6, 7], [6, 6, 6, 7])
    assert torch.equal(OPERATORS["min_pool"].function(x), expected)


@pytest.mark.parametrize("name", ["max_pool", "min_pool"])
def test_of_equal_values_in_a_window_the_first_takes_the_gradient(name):
    x = torch.zeros(1, 1, 1, 3, dtype=torch.float64, requires_grad=True)
    OPERATORS[name].function(x).sum().backward()
    # The windows of columns 0 and 1 begin with column 0, that of column 2 with column 1.
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [2, 1, 0]


@pytest.mark.parametrize("name", ["max_pool", "min_pool"])
def test_pools_are_the_identity_without_space(name):
    x = torch.randn(4, 5, 1, 1, generator=torch.Generator().manual_seed(0))
    assert torch.equal(OPERATORS[name].function(x), x)


def test_means_are_expanded_back_and_cross_the_right_dimensions():
    x = torch.arange(24, dtype=torch.float64).reshape(2, 3, 2, 2)
    per_channel = OPERATORS["mean_nhw"].function(x)
    per_position = OPERATORS["mean_c"].function(x)
    assert per_channel[:, 0].unique().tolist() == [(0 + 1 + 2 + 3 + 12 + 13 + 14 + 15) / 8]
    assert per_position[1, :, 0, 1].tolist() == [(13 + 17 + 21) / 3] * 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_raised(dtype):
    assert upcast(torch.ones(2, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_precisions_stay(dtype):
    assert upcast(torch.ones(2, dtype=dtype)).dtype == dtype


def test_operators_are_equal_by_name_and_arity():
    assert OPERATORS["neg"] == Operator("neg", 1, torch.abs, "other")
    assert OPERATORS["neg"] != Operator("neg", 2, torch.neg, "-")


@pytest.mark.parametrize(("name", "arity"), [("no name", 1), ("", 1), ("triple", 3), ("none", 0)])
def test_an_operator_that_cannot_be_written_or_drawn_is_refused(name, arity):
    with pytest.raises(ValueError, match=r"identifier|arity"):
        Operator(name, arity, torch.neg, "")
