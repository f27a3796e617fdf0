"""The scale of a loss: one norm of the gradient for all, one signature for all positive multiples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import pytest
import torch
from torch import Tensor

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.rejection_tester import RejectionTester
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.engine import Gradient
from autoloss.rejection.protocol import Reference, measure_reference
from autoloss.rejection.reference import ReferenceEngine
from autoloss.rejection.scale import SHARE_RIGHT, ScaleMeasure, measure_norm, move_to_ideal
from autoloss.settings import Configuration, ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import bind
from autoloss.space.loss_text import LARGEST_FACTOR, LEAST_FACTOR, round_factor
from autoloss.space.parsing import parse
from autoloss.zoo.written import SmoothL1
from tests.rejection.scenes import mean_iou
from tests.rejection.test_box_areas import drawn as drawn_boxes
from tests.rejection.test_engine import BRANCHES as ENGINE_BRANCHES
from tests.rejection.test_engine import likeness
from tests.run.quick import QuickTask

SETTINGS = ProtocolSettings(samples=2, steps=5)
CE, DICE = "-y * log(p)", "baseline/dice"


def weighted_squares(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
    """A loss by hand with a reduction of its own: a mean over all elements, three times."""
    target = context["target"]
    wanted = target if target.is_floating_point() else torch.zeros_like(prediction).scatter(1, target[:, None], 1.0)
    return 3 * (prediction - wanted).square().mean()


def of_valid_positions() -> tuple[Branch, Reference]:
    """Divided by the valid positions, which differ from sample to sample, with a weight of the branch."""
    generator = torch.Generator().manual_seed(3)
    samples = []
    for ignored in (0.1, 0.8):
        target = torch.randint(0, 3, (1, 6, 7), generator=generator)
        target[torch.rand(target.shape, generator=generator) < ignored] = 255
        samples.append(Sample(0.3 * torch.randn(1, 3, 6, 7, generator=generator), {"target": target}))
    branch = ActivatedBranch(measure=likeness, channels=3, ignore_index=255, divide_by="valid", weight=0.3)
    return branch, measure_reference(branch, samples)


CASES: dict[str, tuple[tuple[Branch, Reference], Expression | BranchLoss]] = {
    "softmax, a tree": (ENGINE_BRANCHES["softmax"], parse(CE)),
    "softmax, by hand": (ENGINE_BRANCHES["softmax"], weighted_squares),
    "softmax, of the zoo": (ENGINE_BRANCHES["softmax"], DICE),  # type: ignore[dict-item]
    "softmax, masked": (ENGINE_BRANCHES["softmax, masked"], parse(CE)),
    "sigmoid, masked": (ENGINE_BRANCHES["sigmoid, masked"], parse("-y * log(p) - (1 - y) * log(1 - p)")),
    "rows": (ENGINE_BRANCHES["rows"], parse(CE)),
    "values": (ENGINE_BRANCHES["values"], parse("(p - y) ** 2")),
    "values, by hand": (ENGINE_BRANCHES["values"], weighted_squares),
    "valid positions, weighted": (of_valid_positions(), parse(CE)),
    "valid positions, weighted, by hand": (of_valid_positions(), DICE),  # type: ignore[dict-item]
    "boxes": (drawn_boxes(), SmoothL1(BoxRegression())),
    "boxes, a tree": (drawn_boxes(), parse("1 - i / u")),
}
TREES = ("y * p", "-2 * y * log(p)", "exp(p) * (y + 1)", "1000 * (p - y) ** 2", "mean_nhw(p) * y")
OF_BOXES = ("-i / u", "e - i", "log(e) - log(i + 1)")


def standard_of(name: str) -> Expression | BranchLoss:
    (branch, _), standard = CASES[name]
    return zoo.resolve({"main": standard}, {"main": branch})[1]["main"] if isinstance(standard, str) else standard


@cache
def measure_of(name: str, engine: type = CompiledEngine) -> tuple[CompiledEngine, ScaleMeasure]:
    (branch, reference), _ = CASES[name]
    made = engine(branch, reference, SETTINGS)
    partly = engine(branch, move_to_ideal(branch, reference, 0), SETTINGS)
    return made, ScaleMeasure(partly, measure_norm(standard_of(name), made))


def scale(name: str, text: str) -> tuple[float, tuple[str, ...]]:
    tree = parse(text)
    engine, measure = measure_of(name)
    return measure.measure(tree, engine.gradients([tree])[0])


def norm_in_training(name: str, loss: Expression | BranchLoss) -> float:
    """Joint norm of the gradients that training would have, each times its divisor: samples count by their size."""
    (branch, reference), _ = CASES[name]
    bound = bind({"main": loss}, {"main": branch})["main"]
    norms = []
    for sample in reference.samples:
        prediction = sample.prediction.double().requires_grad_(True)
        (slope,) = torch.autograd.grad(bound(prediction, sample.context), prediction)
        norms.append(float(slope.norm()) * float(branch.divisor(sample.context)))
    return math.hypot(*norms)


@pytest.mark.parametrize("name", CASES)
def test_the_factor_brings_a_tree_to_the_norm_of_the_standard_loss(name):
    expected = norm_in_training(name, standard_of(name))
    for text in OF_BOXES if name.startswith("boxes") else TREES:
        factor, _ = scale(name, text)
        # Three digits, and at most six decimals.
        assert norm_in_training(name, parse(text).scaled(factor)) == pytest.approx(
            expected, rel=max(6e-3, 0.6e-6 / factor)
        )


@pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name][1], Expression)])
def test_a_standard_loss_that_is_a_tree_keeps_its_own_scale(name):
    standard = CASES[name][1]
    assert isinstance(standard, Expression)
    assert scale(name, str(standard))[0] == 1


@pytest.mark.parametrize("name", CASES)
def test_both_engines_measure_the_same(name):
    for text in OF_BOXES if name.startswith("boxes") else TREES:
        tree = parse(text)
        engine, measure = measure_of(name, ReferenceEngine)
        factor, signature = measure.measure(tree, engine.gradients([tree])[0])
        compiled = scale(name, text)
        assert factor == pytest.approx(compiled[0], rel=1e-2)
        assert list(map(float, signature)) == pytest.approx(list(map(float, compiled[1])), rel=0.11, abs=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_positive_multiples_have_one_signature_and_the_negated_loss_another(name):
    for text in OF_BOXES if name.startswith("boxes") else TREES:
        factor, signature = scale(name, text)
        assert scale(name, f"neg({text})")[1] != signature
        for multiple in (4, 0.0625, 1024):
            smaller, same = scale(name, f"mul({multiple:g}, {text})")
            if LEAST_FACTOR < factor / multiple < LARGEST_FACTOR:
                assert same == signature
                assert smaller == pytest.approx(factor / multiple, rel=1.1e-2, abs=1.1e-6)


@pytest.mark.parametrize("text", ["sqrt(mean_c(mean_nhw(-y * log(p))))", "tanh(mean_c(mean_nhw(-y * log(p))))"])
def test_of_the_direction_alone_a_function_of_the_mean_makes_no_other_loss(text: str):
    branch, reference = ENGINE_BRANCHES["softmax"]
    engine = CompiledEngine(branch, reference, SETTINGS)
    partly = CompiledEngine(branch, move_to_ideal(branch, reference, 0), SETTINGS)
    plain, other, negated = (parse(one) for one in (CE, text, f"neg({text})"))

    def signatures(direction: bool) -> list[tuple[str, ...]]:
        measure = ScaleMeasure(partly, 1.0, direction=direction)
        trees = [plain, other, negated]
        return [measure.measure(tree, one)[1] for tree, one in zip(trees, engine.gradients(trees), strict=True)]

    same, found, opposite = signatures(direction=True)
    assert same == found != opposite
    same, found, _ = signatures(direction=False)
    assert same != found


def uniform(channels: int = 4) -> tuple[Branch, Reference]:
    """Predictions of which every class has the same probability."""
    target = torch.arange(2 * 5 * 6).reshape(2, 1, 5, 6) % channels
    branch = ActivatedBranch(measure=mean_iou, channels=channels)
    return branch, measure_reference(
        branch, [Sample(torch.zeros(1, channels, 5, 6), {"target": one}) for one in target]
    )


def test_losses_that_agree_where_the_network_starts_and_differ_later_have_different_signatures():
    branch, reference = uniform()
    engine = CompiledEngine(branch, reference, SETTINGS)
    # The slopes at p = 1/4 are y and 4·y·p = y.
    one, other = parse("-y * p"), parse("-(y * square(p) + y * square(p))")
    gradients = engine.gradients([one, other])
    assert gradients[0].signature == gradients[1].signature
    assert gradients[0].key("") == gradients[1].key("")
    measure = ScaleMeasure(CompiledEngine(branch, move_to_ideal(branch, reference, 0), SETTINGS), 1.0)
    found = [measure.measure(tree, gradient) for tree, gradient in zip((one, other), gradients, strict=True)]
    factors, (signature, another) = zip(*found, strict=True)
    assert factors[0] == factors[1]
    assert signature[:4] == another[:4]
    assert signature != another


@pytest.mark.parametrize("name", ["softmax", "sigmoid, masked", "values", "rows"])
def test_half_of_the_positions_move_towards_the_ideal_prediction(name):
    branch, reference = ENGINE_BRANCHES[name]
    moved = move_to_ideal(branch, reference, 5)
    assert (moved.initial, moved.best) == (reference.initial, reference.best)
    for before, after in zip(reference.samples, moved.samples, strict=True):
        ideal = branch.ideal(before.context).reshape(before.prediction.shape)
        changed = (before.prediction != after.prediction).any(dim=1)
        assert 0.3 < float(changed.double().mean()) / SHARE_RIGHT / 2 < 0.7
        there = changed[:, None].expand_as(ideal)
        assert bool(((after.prediction - ideal).abs() <= (before.prediction - ideal).abs())[there].all())
        assert after.context is before.context
    again = move_to_ideal(branch, reference, 5)
    pairs = list(zip(moved.samples, again.samples, strict=True))
    assert all(torch.equal(one.prediction, same.prediction) for one, same in pairs)


@pytest.mark.parametrize(
    ("ratio", "factor"),
    [
        (0.123456, 0.123),
        (0.9996, 1.0),
        (9.996, 10.0),
        (1234.5, 1230.0),
        (1e-9, 1e-6),
        (1e9, 1e6),
        (math.inf, 1e6),
        (0.0, 1e-6),
        (1.26e-5, 1.3e-5),
    ],
)
def test_factors_have_three_digits_and_six_decimals_at_most_and_a_range(ratio, factor):
    assert round_factor(ratio) == factor
    assert round_factor(factor) == factor
    branch, reference = ENGINE_BRANCHES["softmax"]
    measure = ScaleMeasure(CompiledEngine(branch, reference, SETTINGS), ratio)
    assert measure.measure(parse("y * p"), Gradient((0.6, 0.8), (0.1, 0.2)))[0] == factor


def test_losses_beyond_the_range_of_factors_are_no_multiples_of_others_in_training():
    branch, reference = ENGINE_BRANCHES["softmax"]
    measure = ScaleMeasure(CompiledEngine(branch, reference, SETTINGS), 1.0)
    tree = parse("y * p")
    near, far, further = (measure.measure(tree, Gradient((0.6 * n, 0.8 * n), (n, n))) for n in (1e3, 1e7, 1e9))
    assert near[1][:4] == ("6.0e-01", "8.0e-01", "1.0e+00", "1.0e+00")
    assert (far[0], further[0]) == (1e-6, 1e-6)
    assert far[1][:4] == ("6.0e+00", "8.0e+00", "1.0e+01", "1.0e+01")
    assert further[1][:2] == ("6.0e+02", "8.0e+02")


def test_a_gradient_that_is_not_finite_later_is_part_of_the_signature():
    branch, reference = uniform()
    tree = parse("y * inv(p - inv(square(1 + 1)))")
    nothing = Reference(reference.samples, reference.initial, reference.best)
    measure = ScaleMeasure(CompiledEngine(branch, nothing, SETTINGS), 1.0)
    found = measure.measure(tree, Gradient((1.0, 1.0), (0.5, 0.5)))
    assert found == measure.measure(tree, Gradient((1.0, 1.0), (0.5, 0.5)))
    assert all(isinstance(text, str) for text in found[1])


def test_a_standard_loss_without_a_gradient_gives_no_scale(monkeypatch: pytest.MonkeyPatch):
    branch, reference = ENGINE_BRANCHES["softmax"]
    task = QuickTask()
    monkeypatch.setattr(QuickTask, "branches", {"main": branch})

    def scaled(configuration: Configuration, standard: Expression | BranchLoss | None) -> bool:
        monkeypatch.setattr(Evaluator, "find_standard", lambda self, branch: standard)
        return Evaluator(task, {"main": reference.samples}, configuration).get_tester("main").scale is not None

    configuration = Configuration().changed({"search.scale": True, "rejection.samples": 2, "rejection.steps": 5})
    for text, scales in ((CE, True), ("p * 0 + y", False), ("exp(exp(exp(exp(exp(exp(y + p))))))", False)):
        assert scaled(configuration, parse(text)) is scales
    assert not scaled(configuration, None)
    assert not scaled(configuration, lambda prediction, context: torch.ones(()))
    assert not scaled(configuration.changed({"search.scale": False}), parse(CE))


def test_the_weight_of_a_branch_is_part_of_the_factor_of_its_trees(monkeypatch: pytest.MonkeyPatch):
    branch, reference = ENGINE_BRANCHES["softmax"]
    monkeypatch.setattr(QuickTask, "branches", {"main": branch})
    monkeypatch.setattr(Evaluator, "find_standard", lambda self, branch: parse(CE))
    settings = {"search.scale": True, "rejection.samples": 2, "rejection.steps": 5, "rejection.threshold": -1.0}

    def factor(*weights: str) -> float:
        configuration = Configuration().changed({**settings, "search.weights": weights})
        return (
            Evaluator(QuickTask(), {"main": reference.samples}, configuration)
            .test_loss({"main": parse(CE)})["main"]
            .factor
        )

    assert (factor(), factor("main=4")) == (pytest.approx(1.0), pytest.approx(4.0))
    with pytest.raises(RequestError, match=r"search\.weights names the branch cls; the task quick has main"):
        factor("cls=4")


@pytest.mark.parametrize("engine", [CompiledEngine, ReferenceEngine])
def test_an_engine_computes_with_the_factor_of_a_tree(engine):
    branch, reference = ENGINE_BRANCHES["softmax"]
    made = engine(branch, reference, ProtocolSettings(samples=2, steps=20, learning_rate=0.5))
    tree = parse(CE)
    plain, scaled = made.gradients([tree, tree.scaled(0.25)])
    assert scaled.norms == pytest.approx([0.25 * norm for norm in plain.norms])
    assert scaled.products == pytest.approx([0.25 * product for product in plain.products])
    slow = engine(branch, reference, ProtocolSettings(samples=2, steps=20, learning_rate=0.125))
    assert made.verdicts([tree.scaled(0.25)])[0].gains == pytest.approx(slow.verdicts([tree])[0].gains, rel=1e-4)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("order", [1, -1])
def test_losses_that_differ_once_a_prediction_is_above_its_target_are_told_apart_where_all_start_below(
    scaled: bool, order: int
):
    """As prices are above the outputs of an untrained network: |p − y| and −p have one gradient there."""
    generator = torch.Generator().manual_seed(0)
    samples = [
        Sample(0.1 * torch.randn(64, 1, generator=generator), {"target": 1 + torch.rand(64, 1, generator=generator)})
        for _ in range(2)
    ]
    branch = ActivatedBranch(activation="none", channels=1, measure=lambda p, y: -float((p - y).abs().mean()))
    reference = measure_reference(branch, samples)
    engine, partly = (
        CompiledEngine(branch, one, ProtocolSettings()) for one in (reference, move_to_ideal(branch, reference, 0))
    )
    trees = [parse(text) for text in ("abs(p - y)", "square(y) - p")][::order]
    assert len({gradient.key("") for gradient in engine.gradients(trees)}) == 1
    scale = ScaleMeasure(partly, 1.0, direction=True) if scaled else None
    found = RejectionTester(engine, Configuration(), scale=scale, partly=partly).test(0, trees)[::order]
    assert [one.reason for one in found] == [None, "LOW_GAIN"]
    assert len({one.key for one in found}) == 2
    # The paper's signature has norms alone.
    assert not scaled or len({one.signature for one in found}) == 2
