"""What the compiled engine leaves out: values that are finite whatever happens, steps after which nothing moves, known leaves."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from autoloss.proposing.initialization import initial_expression
from autoloss.rejection.compiled.bounds import PROBABILITY
from autoloss.rejection.compiled.differentiation import record
from autoloss.rejection.compiled.engine import CompiledDescent, CompiledEngine
from autoloss.rejection.compiled.layout import Layout
from autoloss.rejection.compiled.tape import MASK_REGISTER, P_REGISTER, Y_REGISTER, Op
from autoloss.rejection.engine import compute_gradient
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.reference import ReferenceDescent
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Role, Sample
from autoloss.space.expression import Alphabet, Expression
from autoloss.space.parsing import parse
from autoloss.space.ranges import UNIT, Range
from tests.rejection.test_engine import BRANCHES, trees_of_each_operator

ROLES = {"y": Role.TARGET, "p": Role.PREDICTION}
EXTREMES = (0.0, 1e-45, 1e-38, 1e-20, 1e-12, 1e-6, 0.25, 0.5, 0.75, 1 - 6e-8, 1.0, 1 + 1.2e-7)


def random_trees(count: int, seed: int) -> list[Expression]:
    rng = Random(seed)
    return [initial_expression(Alphabet(ROLES), rng.choice([2, 3, 4]), rng) for _ in range(count)]


def leaves_out(tree: Expression, y: Range = UNIT) -> bool:
    """Say whether the value of a tree is left out."""
    leaves = {P_REGISTER: PROBABILITY, Y_REGISTER: y, MASK_REGISTER: UNIT}
    tape = record(tree, {"p": P_REGISTER, "y": Y_REGISTER}, (4, 24), False, False, leaves)
    return tape is not None and all(one.op is not Op.TOTAL for one in tape.instructions)


@pytest.mark.parametrize(
    "text", ["-y * log(p)", "max_pool(p) * y", "inv(y) * tanh(p)", "mean_nhw(sqrt(p))", "inv(-1 + -p)"]
)
def test_the_value_of_a_bounded_loss_is_left_out(text: str):
    assert leaves_out(parse(text))


@pytest.mark.parametrize(
    "text",
    [
        "inv(y + -p)",
        "exp(exp(exp(exp(y + p))))",
        "exp(inv(p))",
        "inv(log(p))",
        "square(square(square(inv(p))))",
        "inv(p + -1)",
    ],
)
def test_the_value_of_any_other_is_computed(text: str):
    assert not leaves_out(parse(text))


def test_it_depends_on_the_targets():
    tree = parse("inv(y + p + 1)")
    assert leaves_out(tree)
    assert not leaves_out(tree, Range(-1.5, 1.0))


def test_a_constant_that_differs_between_the_precisions_bounds_nothing():
    # 1 + 1e-12 is 1 in single precision, and the inverse of what is left over 1e12 or infinite.
    assert not leaves_out(parse("p * inv(inv(1) + -1) * y"))


def test_what_is_left_out_is_finite_for_extreme_predictions():
    p, y = torch.meshgrid(torch.tensor(EXTREMES), torch.tensor([0.0, 1.0]), indexing="ij")
    leaves = {"p": p.reshape(1, 4, 2, 3), "y": y.reshape(1, 4, 2, 3)}
    trees = [tree for tree in [*random_trees(600, 1), *trees_of_each_operator()] if leaves_out(tree)]
    assert len(trees) > 100
    for tree in trees:
        for precision in (torch.float32, torch.float64):
            value = tree.evaluate({name: leaf.to(precision) for name, leaf in leaves.items()})
            assert bool(torch.isfinite(value.sum())), tree


@pytest.mark.parametrize("name", ["softmax", "one logit", "sigmoid, masked", "softmax, masked", "rows"])
def test_leaving_values_out_changes_no_bit(name: str):
    branch, reference = BRANCHES[name]
    settings = ProtocolSettings(samples=2, steps=40)
    lean, full = (CompiledEngine(branch, reference, settings) for _ in range(2))
    full._bounds = None
    for tree in [*random_trees(40, 2), *trees_of_each_operator()]:
        assert repr(lean.gradients([tree])) == repr(full.gradients([tree])), tree
        assert repr(lean.verdicts([tree])) == repr(full.verdicts([tree])), tree


@pytest.mark.parametrize("text", ["inv(y) * tanh(p)", "mean_nhw(inv(y)) * p * inv(y)"])
def test_a_descent_that_no_longer_moves_ends_where_it_would(text: str):
    branch, reference = BRANCHES["softmax"]
    settings = ProtocolSettings(samples=2, steps=500)
    engine = CompiledEngine(branch, reference, settings)
    whole, parts = engine.start_descent(parse(text)), engine.start_descent(parse(text))
    assert isinstance(whole, CompiledDescent)
    expected = ReferenceDescent(parse(text), branch, reference, settings)
    for sample in range(2):
        for descent in (whole, expected):
            assert descent.advance(sample, 500) is None
        for step in (90, 300, 301, 500):
            assert parts.advance(sample, step) is None
        assert torch.equal(whole.prediction(sample), parts.prediction(sample))
        assert torch.equal(whole.prediction(sample).softmax(1), expected.prediction(sample).softmax(1))
        assert whole.gain(sample) == expected.gain(sample)
        # Had all steps run, the velocity would have decayed to nothing.
        velocity = whole._states[sample][1]
        assert np.abs(velocity).max() > 1e-3


@pytest.mark.parametrize("kept", [None, 0])
@pytest.mark.parametrize("name", ["softmax", "one logit", "rows", "rows, one logit", "values"])
def test_workspaces_that_are_kept_or_shared_hold_nothing_of_another_tree(
    kept: int | None, name: str, monkeypatch: pytest.MonkeyPatch
):
    branch, reference = BRANCHES[name]
    if name.startswith("rows"):
        first, second = reference.samples
        short = Sample(second.prediction[:30], {"target": second.context["target"][:30]})
        reference = measure_reference(branch, (first, short))
    if kept is not None:
        monkeypatch.setattr(Layout, "kept", kept)
    engine = CompiledEngine(branch, reference, ProtocolSettings(samples=2))
    for text in ("exp(exp(exp(exp(exp(y + p)))))", "-y * p", "max_pool(p) * mean_nhw(exp(p) * y)", "-y * p"):
        found = engine.gradients([parse(text)])[0]
        expected = compute_gradient(parse(text), branch, reference.samples, engine.directions)
        assert found.finite == expected.finite
        if found.finite:
            assert found.norms == pytest.approx(expected.norms, rel=1e-9)
            assert found.products == pytest.approx(expected.products, rel=1e-6)
