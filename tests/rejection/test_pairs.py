"""The compiled engine decides as the reference on pairs of items, with and without weights."""

from __future__ import annotations

import dataclasses
import math
from random import Random

import pytest
import torch
from torch import Tensor

from autoloss.proposing.initialization import initial_expression
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import ReferenceEngine
from autoloss.rejection.screen import screen_losses
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Sample
from autoloss.space.expression import Alphabet, Expression
from autoloss.space.pairs import PairBranch
from autoloss.space.parsing import parse

SETTINGS = ProtocolSettings(samples=2, steps=20, learning_rate=0.03)


def share_in_order(scores: Tensor, target: Tensor) -> float:
    """Return the share of the pairs of the first column that are in order."""
    value = target.reshape(len(target), -1)[:, 0]
    value = -value if target.ndim > 1 and target.shape[1] == 3 else value
    ahead = value[:, None] > value[None, :]
    return float((scores[:, None] > scores[None, :])[ahead].float().mean())


BRANCHES = {
    "probability": PairBranch(measure=share_in_order),
    "difference": PairBranch(activation="none", measure=share_in_order),
    "ndcg of queries": PairBranch(columns=("value", "group"), weigh="ndcg", measure=share_in_order),
    "events with weights": PairBranch(columns=("value", "event", "weight"), weigh="item", measure=share_in_order),
}


def draw_engines(branch: PairBranch) -> tuple[CompiledEngine, ReferenceEngine]:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for count in (23, 17):
        prediction = torch.randn(count, 1, 1, 1, generator=generator)
        value = torch.randint(4, (count,), generator=generator).float()
        columns = {
            "value": value,
            "event": (torch.rand(count, generator=generator) < 0.7).float(),
            "group": torch.arange(count) % 2,
            "weight": 1 + torch.rand(count, generator=generator),
        }
        target = torch.stack([columns[name].float() for name in branch.columns], dim=1).squeeze(1)
        samples.append(Sample(prediction, branch.make_context(prediction, target)))
    reference = measure_reference(branch, samples)
    return CompiledEngine(branch, reference, SETTINGS), ReferenceEngine(branch, reference, SETTINGS)


def draw_trees(branch: PairBranch, count: int) -> list[Expression]:
    alphabet, rng = Alphabet(branch.leaves_and_roles), Random(0)
    return [initial_expression(alphabet, depth, rng) for depth in (2, 3, 4) for _ in range(count // 3)]


@pytest.mark.parametrize("name", BRANCHES)
def test_values_and_decisions_of_random_trees_are_the_references(name: str, caplog: pytest.LogCaptureFixture):
    compiled, reference = draw_engines(BRANCHES[name])
    trees = draw_trees(BRANCHES[name], 60)
    for tree, found, expected in zip(trees, compiled.gradients(trees), reference.gradients(trees), strict=True):
        assert found.finite == expected.finite, str(tree)
        if expected.finite:
            # Parts that cancel leave a gradient of a rounding error.
            assert found.norms == pytest.approx(expected.norms, rel=1e-7, abs=1e-12), str(tree)
            assert found.products == pytest.approx(expected.products, rel=1e-6, abs=1e-9), str(tree)
    pairs = list(zip(compiled.verdicts(trees), reference.verdicts(trees), strict=True))
    decided = [(found.passed, str(tree)) for (found, _), tree in zip(pairs, trees, strict=True)]
    assert decided == [(expected.passed, str(tree)) for (_, expected), tree in zip(pairs, trees, strict=True)]
    assert 1 < sum(expected.passed for _, expected in pairs) < len(trees)
    # A pole near a prediction enlarges the last bit of single precision.
    far = [1 for found, expected in pairs if abs((found.score or 0) - (expected.score or 0)) > 0.01]
    assert len(far) <= 3
    assert "reference runs" not in caplog.text


@pytest.mark.parametrize("name", BRANCHES)
def test_a_loss_that_orders_pairs_passes_and_its_negative_does_not(name: str):
    branch = BRANCHES[name]
    formula = "y / exp(p)" if branch.activation == "none" else "-y * log(p)"
    good, bad = (parse(text, branch.leaves_and_roles) for text in (formula, f"-({formula})"))
    for engine in draw_engines(branch):
        assert [verdict.passed for verdict in engine.verdicts([good, bad])] == [True, False]
        assert [verdict.passed for verdict in screen_losses(engine, [good, bad])] == [True, False]


def test_each_way_to_end_has_its_reason():
    for engine in draw_engines(BRANCHES["events with weights"]):
        trees = [parse(text, ["y", "p", "w"]) for text in ("y * w", "p * (1 + -1)", "exp(exp(exp(exp(exp(y + p)))))")]
        reasons = [verdict.reason for verdict in engine.verdicts(trees)]
        assert reasons == [Reason.NO_GRADIENT, Reason.NO_GRADIENT, Reason.NOT_FINITE]


def test_a_descent_goes_on_where_it_stopped():
    compiled, reference = draw_engines(BRANCHES["probability"])
    tree = parse("-y * log(p)")
    parts, whole, plain = compiled.start_descent(tree), compiled.start_descent(tree), reference.start_descent(tree)
    for step in (1, 7, 20):
        assert parts.advance(0, step) is None
    for descent in (whole, plain):
        assert descent.advance(0, 20) is None
    assert torch.equal(parts.prediction(0), whole.prediction(0))
    torch.testing.assert_close(parts.prediction(0), plain.prediction(0), rtol=1e-4, atol=1e-5)


def test_no_score_is_left_out_if_fewer_pairs_than_items_can_be_compared():
    branch = dataclasses.replace(BRANCHES["probability"])
    prediction, target = torch.zeros(9, 1, 1, 1), torch.zeros(9)
    prediction[0], target[-1] = 1.0, 1.0
    context = {**branch.make_context(prediction, target)}
    context["first"], context["second"] = context["first"][:1], context["second"][:1]
    reference = measure_reference(branch, [Sample(prediction, context)])
    for kind in (CompiledEngine, ReferenceEngine):
        (found,) = kind(branch, reference, SETTINGS).gradients([parse("-y * log(p)")])
        assert found.norms == pytest.approx([math.sqrt(2) / (1 + math.exp(-1))])
