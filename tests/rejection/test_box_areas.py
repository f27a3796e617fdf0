"""The compiled areas of boxes are autograd's in value and gradient, and the engine decides with them as the reference does."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest
import torch

from autoloss import zoo
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.engine import compute_gradient
from autoloss.rejection.protocol import Reference, measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import simulate
from autoloss.settings import ProtocolSettings
from autoloss.space.boxes import CLAMP, PLAIN, AreaUnit, BoxRegression, compute_areas
from autoloss.space.branch import Sample
from autoloss.space.expression import Alphabet, build
from autoloss.space.parsing import parse
from tests.rejection.scenes import decide, differentiate, screen
from tests.rejection.test_engine import SETTINGS, assert_like_reference, trees_of_each_operator
from tests.space.test_boxes import RCNN, boxes_of

POSITIVE = 0.6
"""Share of the boxes that count."""
FORMULAS = {
    name: entry.formula
    for name in zoo.names()
    if (entry := zoo.get_entry(name)).formula and parse(entry.formula).leaves & {"i", "u", "e"}
}


def share_of_target(boxes: torch.Tensor, context: dict[str, torch.Tensor]) -> float:
    """A metric that every small move of a box changes."""
    i, u, _ = compute_areas(boxes, context["box"].to(boxes))
    return float((i / u)[context["target"] > 0].mean())


@cache
def drawn(
    unit: AreaUnit = "pixels", spread: float = 1.0, deviations: tuple[float, ...] = PLAIN, count: int = 40
) -> tuple[BoxRegression, Reference]:
    """Two samples of boxes whose targets lie some pixels away; of `spread` 8 deltas are beyond the clamp too."""
    branch = BoxRegression(measure=share_of_target, unit=unit)
    samples = []
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        reference = boxes_of(count, seed).float()
        positive = torch.rand(count, generator=generator) < POSITIVE
        away = (4 * torch.randn(count, 4, generator=generator)).sort().values
        context = {
            "target": positive.long(),
            "reference": reference,
            "box": torch.where(positive[:, None], reference + away, reference),
            "deviations": torch.tensor([deviations]),
        }
        prediction = 0.2 * spread * torch.randn(count, 4, 1, 1, generator=generator)
        samples.append(Sample(prediction, context))
    return branch, measure_reference(branch, samples)


CASES = {
    "pixels": drawn(),
    "in areas of the target": drawn("target"),
    "deltas of an R-CNN": drawn(spread=3.0, deviations=RCNN),
    "more than one tile": drawn(count=150),
    "beyond the clamp": drawn("target", spread=15.0),
}


@pytest.mark.parametrize("case", CASES)
def test_every_operator_has_the_reference_s_gradient_and_prediction(case: str):
    branch, reference = CASES[case]
    assert (case == "beyond the clamp") is bool((reference.samples[0].prediction[:, 2:] > CLAMP).any())
    first, second = ("e", "i") if case == "pixels" else ("i", "u")
    engine = CompiledEngine(branch, reference, SETTINGS)
    for tree in trees_of_each_operator(first, second):
        assert_like_reference(tree, engine)


@pytest.mark.parametrize("text", ["i", "u", "e", "i * u * e", "e / (i + u)", "mean_nhw(i / u) * e"])
def test_where_borders_coincide_the_slope_is_shared_as_autograd_does(text: str):
    branch, reference = drawn()
    samples = [
        Sample(torch.zeros_like(sample.prediction), {**sample.context, "box": sample.context["reference"].round()})
        for sample in reference.samples
    ]
    samples.append(Sample(samples[0].prediction, {**samples[0].context, "reference": samples[0].context["box"]}))
    engine = CompiledEngine(branch, Reference(tuple(samples), (0.0,) * 3, (1.0,) * 3), SETTINGS)
    expected = compute_gradient(parse(text), branch, samples, engine.directions)
    assert differentiate(engine, parse(text)).products == pytest.approx(expected.products, rel=1e-9)


def deciding(case: str) -> tuple[CompiledEngine, ProtocolSettings]:
    branch, reference = CASES[case]
    settings = ProtocolSettings(samples=2, steps=120, learning_rate=0.002)
    return CompiledEngine(branch, reference, settings), settings


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("name", FORMULAS)
def test_the_losses_of_the_zoo_are_decided_as_by_the_reference(name: str, sign: str):
    engine, settings = deciding("pixels")
    tree = parse(f"{sign}({FORMULAS[name]})")
    found, expected = decide(engine, tree), simulate(tree, engine.branch, engine.reference, settings)
    assert found.reason is expected.reason
    assert found.passed is not bool(sign)
    assert found.score == pytest.approx(expected.score, abs=1e-3)
    assert screen(engine, tree).passed is expected.passed


def test_random_trees_and_mutations_of_good_ones_are_decided_as_by_the_reference():
    engine, settings = deciding("in areas of the target")
    alphabet, rng = Alphabet(engine.branch.leaves_and_roles), Random(5)
    accepted = [parse(FORMULAS["det/rpn_reg"]), parse(FORMULAS["det/rcnn_reg"])]
    passed = 0
    for number in range(50):
        tree = mutate(rng.choice(accepted), alphabet, rng) if number % 4 else initial_expression(alphabet, 2, rng)
        found, expected = decide(engine, tree), simulate(tree, engine.branch, engine.reference, settings)
        if {found.reason, expected.reason} != {Reason.NO_GRADIENT, Reason.LOW_GAIN}:
            # A gradient that is zero but for rounding is none in one and noise in the other.
            assert found.reason is expected.reason, tree
        if expected.passed:
            assert found.score == pytest.approx(expected.score, abs=1e-3), tree
            accepted.append(tree)
        passed += expected.passed
    assert 5 < passed < 45


def test_keys_are_those_of_the_reference():
    branch, reference = drawn()
    engine, tree = CompiledEngine(branch, reference, SETTINGS), parse("e / (i + u)")
    expected = compute_gradient(tree, branch, reference.samples, engine.directions)
    assert differentiate(engine, tree).key("") == expected.key("")


def test_a_leaf_that_a_tree_does_not_hold_moves_nothing():
    engine, _ = deciding("pixels")
    assert engine.compiles(parse("-i"))
    assert not differentiate(engine, parse("-i")).zero
    assert differentiate(engine, build("add", parse("i"), parse("-i"))).zero


class OtherBoxes(BoxRegression):
    """Areas that somebody computes otherwise."""

    def leaves(self, prediction, context):
        return super().leaves(prediction, context)


def test_areas_of_another_kind_run_in_the_reference():
    branch, reference = drawn()
    engine = CompiledEngine(OtherBoxes(measure=share_of_target), reference, SETTINGS)
    assert not engine.compiles(parse("e / i"))
    assert decide(engine, parse("e / i")) == simulate(parse("e / i"), branch, reference, SETTINGS)
