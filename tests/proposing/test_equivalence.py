"""The gradient-equivalence check: signatures, which cannot tell a sign, and keys, which can."""

import math
from random import Random

import pytest
import torch

from autoloss.proposing.equivalence import SignatureIndex, VerdictCache
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.records import Outcome, State
from autoloss.proposing.view import Ledger
from autoloss.rejection.engine import Gradient, compute_gradient, draw_directions
from autoloss.settings import Configuration
from autoloss.space.expression import Alphabet, build
from autoloss.space.parsing import parse
from tests.rejection.scenes import BRANCH, samples

from .conformance import candidate

SAMPLES = samples(2)
DIRECTIONS = draw_directions(SAMPLES, 7)


def found(text):
    return compute_gradient(parse(text) if isinstance(text, str) else text, BRANCH, SAMPLES, DIRECTIONS)


def informative(count, seed):
    """Random trees that hold both roles and whose gradient is finite and not zero, with it."""
    alphabet, rng, trees = Alphabet(BRANCH.leaves_and_roles), Random(seed), []
    while len(trees) < count:
        tree = initial_expression(alphabet, 3, rng)
        if tree.holds(alphabet.leaves_and_roles):
            slope = found(tree)
            if slope.finite and not slope.zero:
                trees.append((tree, slope))
    return trees


@pytest.fixture(scope="module")
def trees():
    return informative(40, 0)


def test_the_negated_loss_has_the_signature_and_never_the_key(trees):
    for tree, slope in trees:
        negated = found(build("neg", tree))
        assert negated.signature == slope.signature
        assert negated.key("") != slope.key("")


def test_swapped_operands_have_the_same_key(trees):
    for tree, slope in trees:
        assert found(build("add", tree, parse("y"))).key("") == found(build("add", parse("y"), tree)).key("")
        assert found(tree.canonical()).key("") == slope.key("")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("add(y, p)", "add(p, y)"),
        ("-y * log(p)", "-log(p) * y"),
        ("2 * (y * p)", "y * p + y * p"),
        ("(p - y) ** 2", "(y - p) ** 2"),
        ("-y * log(p)", "-y * log(p) + y"),
        ("-y * log(p)", "1 - y * log(p)"),
    ],
)
def test_losses_with_the_same_gradient_have_the_same_key(one, other):
    assert found(one).key(one) == found(other).key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("-y * log(p)", "-2 * y * log(p)"), ("-y * log(p)", "(p - y) ** 2"), ("y * p", "y * p * p")],
)
def test_losses_with_another_gradient_have_another_key(one, other):
    assert found(one).key(one) != found(other).key(other)


def test_a_gradient_that_explodes_is_no_one_else_s():
    one, other = "1e9 * p", "p * 1e9"
    moderate, exploding = (Gradient((norm, 1.0), (0.5, 0.5)) for norm in (1e5, 1e7))
    assert moderate.key(one) == moderate.key(other)
    assert exploding.key(one) != exploding.key(other)
    assert exploding.key(one) == exploding.key(one)


def test_norms_and_products_are_those_of_the_gradient_of_the_plain_sum():
    slope = found("-y * log(p)")
    for sample, direction, norm, product in zip(SAMPLES, DIRECTIONS, slope.norms, slope.products, strict=True):
        prediction = sample.prediction.double().requires_grad_(True)
        loss = torch.nn.functional.cross_entropy(prediction, sample.context["target"], reduction="sum")
        (expected,) = torch.autograd.grad(loss, prediction)
        assert norm == pytest.approx(float(expected.norm()), rel=1e-6)
        assert product == pytest.approx(float((expected * direction).sum()), rel=1e-6)


def test_the_initial_predictions_are_left_as_they_are():
    before = [sample.prediction.clone() for sample in SAMPLES]
    found("-y * log(p)")
    for sample, prediction in zip(SAMPLES, before, strict=True):
        assert torch.equal(sample.prediction, prediction)
        assert not sample.prediction.requires_grad


def test_directions_are_fixed_by_their_seed():
    again, other = draw_directions(SAMPLES, 7), draw_directions(SAMPLES, 8)
    assert all(torch.equal(one, same) for one, same in zip(DIRECTIONS, again, strict=True))
    assert not any(torch.equal(one, different) for one, different in zip(DIRECTIONS, other, strict=True))
    assert all(direction.dtype == torch.float64 for direction in DIRECTIONS)


@pytest.mark.parametrize(
    ("norm", "same", "other"),
    [(0.124, 0.1151, 0.126), (1234.0, 1151.0, 1251.0), (9.94, 9.86, 9.96), (1.0, 1.04, -1.0)],
)
def test_norms_are_rounded_to_two_digits(norm, same, other):
    assert Gradient((norm,), (1.0,)).signature == Gradient((same,), (2.0,)).signature
    assert Gradient((norm,), (1.0,)).signature != Gradient((other,), (1.0,)).signature


@pytest.mark.parametrize(("product", "same", "other"), [(1.234, 1.2341, 1.24), (-1.0, -1.001, 1.0), (0.0, -0.0, 1e-30)])
def test_products_are_rounded_to_three_digits_with_their_sign(product, same, other):
    assert Gradient((1.0,), (product,)).key("") == Gradient((1.0,), (same,)).key("")
    assert Gradient((1.0,), (product,)).key("") != Gradient((1.0,), (other,)).key("")


def test_norms_and_products_do_not_stand_in_for_each_other():
    assert Gradient((1.0, 2.0), (3.0, 4.0)).key("") != Gradient((2.0, 1.0), (3.0, 4.0)).key("")
    assert Gradient((1.0, 2.0), (3.0, 4.0)).key("") != Gradient((1.0, 2.0), (4.0, 3.0)).key("")
    assert len(Gradient((1.0,), (1.0,)).key("")) == 8


@pytest.mark.parametrize(
    ("text", "finite", "zero"),
    [
        ("-y * log(p)", True, False),
        ("y + 1", True, True),
        ("1", True, True),
        ("p - p + y", True, True),
        ("exp(exp(exp(exp(exp(p * y)))))", False, False),
        ("p * exp(exp(exp(exp(p + 1))))", False, False),
    ],
)
def test_a_gradient_says_whether_it_is_finite_and_whether_it_is_zero(text, finite, zero):
    slope = found(text)
    assert (slope.finite, slope.zero) == (finite, zero)


def test_a_single_silent_sample_is_not_a_zero_gradient():
    assert not Gradient((0.0, 1.0), (0.0, 1.0)).zero
    assert not Gradient((1.0, math.nan), (0.0, 1.0)).finite


def test_verdicts_are_shared_by_equal_keys_and_told_on_the_latest_first():
    known = VerdictCache()
    one, other = Gradient((1.0,), (1.0,)).key(""), Gradient((1.0,), (-1.0,)).key("")
    known.setdefault(other, True)
    known.setdefault(one, False)
    known.setdefault(other, True)
    assert known[other]
    assert not known[one]
    assert Gradient((1.04,), (1.001,)).key("") in known
    assert Gradient((2.0,), (1.0,)).key("") not in known
    assert known.latest(len(known)) == {other: True, one: False}
    assert known.latest(1) == {one: False}
    assert known.latest(0) == {}


def run():
    """Some candidates that are trained whole."""
    made = Ledger(("main",), Configuration())
    for k in range(10):
        made.add(candidate(k))
    return made


class TestSignatures:
    def test_the_first_with_a_signature_has_later_ones_as_twins_even_while_it_runs(self):
        known = SignatureIndex(run())
        assert known.find_twin(3, "a") is None
        known.record(3, "a")
        assert known.find_twin(4, "a") == 3
        assert known.find_twin(40, "a") == 3
        assert known.find_twin(4, "b") is None

    def test_a_failed_candidate_is_forgotten_as_soon_as_later_ones_may_know(self):
        made = run()
        known = SignatureIndex(made)
        known.record(3, "a")
        made.tell(3, Outcome(state=State.FAILED))
        assert known.find_twin(6, "a") == 3
        assert known.find_twin(7, "a") is None

    def test_a_diverged_candidate_is_known_as_soon_as_later_ones_may_know(self):
        made = run()
        known = SignatureIndex(made)
        known.record(3, "a")
        made.tell(3, Outcome(state=State.DIVERGED))
        assert not known.is_known_to_diverge(6, "a")
        assert known.is_known_to_diverge(7, "a")
        assert not known.is_known_to_diverge(7, "b")
