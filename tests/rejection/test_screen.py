"""The screen rejects early and changes no decision: zoo losses pass, their negations and flat trees go, bounds are exact.

It rejects early only where predictions pass through a softmax and a run is dear, and only by two findings that agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from random import Random

import pytest
import torch
from torch import Tensor

import autoloss
from autoloss import zoo
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.rejection import screen as screens
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.protocol import Reference, Verdict, conclude, measure_reference, misses_threshold
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import ReferenceDescent, simulate
from autoloss.rejection.screen import bound_gains
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample
from autoloss.space.expression import Alphabet, Expression, build
from autoloss.space.loss import Loss
from autoloss.space.parsing import parse
from tests.rejection import scenes
from tests.rejection.scenes import decide, screen

METRICS = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")


@cache
def digits(metric: str) -> CompiledEngine:
    task = autoloss.tasks.get("digits-seg", metric=metric, train=48, valid=16, test=16)
    return ready(task.branches["main"], task.samples(5, seed=0)["main"])


@cache
def rows(metric: str, seed: int = 0) -> CompiledEngine:
    data = "diabetes" if metric in ("r2", "spearman") else "breast_cancer_hard"
    task = autoloss.tasks.get("tabular", metric=metric, data=data)
    return ready(task.branches["main"], task.samples(5, seed)["main"])


@cache
def discs() -> CompiledEngine:
    return ready(scenes.BRANCH, scenes.samples(5))


def ready(branch: autoloss.Branch, samples: Sequence[Sample]) -> CompiledEngine:
    return CompiledEngine(branch, measure_reference(branch, samples), ProtocolSettings())


def likeness(prediction: Tensor, target: Tensor) -> float:
    return float((prediction.argmax(dim=1) == target).float().mean())


class Steps:
    """Counts the steps that attempts take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.taken = 0
        run = CompiledEngine.run

        def counted(engine: CompiledEngine, sample, program, z, velocity, span):
            self.taken += span[1] - span[0]
            return run(engine, sample, program, z, velocity, span)

        monkeypatch.setattr(CompiledEngine, "run", counted)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def searched(engine: CompiledEngine, count: int, seed: int) -> list[tuple[Expression, Verdict]]:
    """Draw as a search does, fresh trees and mutations of accepted ones; each with the verdict of the full run."""
    rng, alphabet = Random(seed), Alphabet(engine.branch.leaves_and_roles)
    good = parse("square(p + -y)")
    found = [(good, decide(engine, good))]
    while len(found) < count:
        accepted = [tree for tree, verdict in found if verdict.passed]
        fresh = not accepted or rng.random() < 0.5
        tree = initial_expression(alphabet, 3, rng) if fresh else mutate(rng.choice(accepted), alphabet, rng)
        if tree.holds(engine.branch.leaves_and_roles) and tree not in [other for other, _ in found]:
            found.append((tree, decide(engine, tree)))
    return found


@pytest.mark.parametrize("engine", [discs, lambda: rows("f1"), lambda: rows("auc"), lambda: rows("r2")])
def test_screened_decisions_are_those_of_the_full_run(engine):
    found = searched(engine(), 40, seed=1)
    assert any(verdict.passed for _, verdict in found)
    for tree, verdict in found:
        decided = screen(engine(), tree)
        assert decided.passed == verdict.passed, tree
        if verdict.passed:
            assert decided == verdict


@pytest.mark.parametrize("metric", METRICS)
def test_published_losses_pass_and_their_negations_do_not(metric: str):
    engine = digits(metric)
    published = zoo.get(f"seg/{metric}")
    assert isinstance(published, Loss)
    loss = published["main"]
    assert screen(engine, loss).passed
    assert not screen(engine, build("neg", loss)).passed


@pytest.mark.parametrize("text", ["-p * p", "y * log(p)", "square(p + y)", "neg(y * inv(p))"])
def test_what_goes_nowhere_is_dropped_at_the_first_look(text: str, steps: Steps):
    assert screen(discs(), parse(text)) == Verdict(Reason.LOW_GAIN)
    assert steps.taken == screens.JUDGED_SAMPLES * (screens.FIRST_STOP.step + screens.RESPONSE_STEP)


def test_what_passes_took_all_steps_on_all_samples(steps: Steps):
    verdict = screen(discs(), parse("-y * log(p)"))
    assert verdict.passed
    assert len(verdict.gains) == 5
    # The first sample that follows its target settles that the loss does.
    assert steps.taken == 500 * 5 + screens.RESPONSE_STEP


def worst_iou(prediction: Tensor, target: Tensor) -> float:
    """IoU of the worst class of the target: 0 until every class is found somewhere."""
    found = prediction.argmax(dim=1)
    pairs = [(found == label, target == label) for label in target.unique().tolist()]
    return min(float((hit & wanted).sum() / (hit | wanted).sum()) for hit, wanted in pairs)


def border_f1(prediction: Tensor, target: Tensor) -> float:
    """F1 of the borders between columns, whatever the classes beside them are."""
    classes = prediction.argmax(dim=1)
    found, wanted = classes[..., 1:] != classes[..., :-1], target[..., 1:] != target[..., :-1]
    return float(2 * (found & wanted).sum() / (found.sum() + wanted.sum()).clamp(min=1))


@cache
def biased(measure: Callable[[Tensor, Tensor], float]) -> CompiledEngine:
    """Return scenes of a network that predicts one class everywhere."""
    bias = torch.tensor([-0.8, 1.4, 0.2, -0.4, 0.6]).reshape(1, 5, 1, 1)
    samples = [Sample(sample.prediction / 6 + bias, sample.context) for sample in scenes.samples(5)]
    return ready(ActivatedBranch(measure=measure, channels=scenes.CLASSES), samples)


@pytest.mark.parametrize(
    "text",
    [
        # The bias is undone before classes are told apart.
        "neg(add(log(p), mul(abs(y), mul(p, square(p)))))",
        "neg(add(log(square(p)), mul(abs(tanh(y)), tanh(log(p)))))",
        "neg(add(log(p), mul(p, y)))",
        # Pools spread step by step what separates classes.
        "max_pool(max_pool(abs(neg(mean_c(mul(log(p), y))))))",
    ],
)
def test_a_coarse_metric_alone_rejects_nothing(text: str):
    engine = biased(worst_iou)
    descent = engine.start_descent(parse(text))
    exchanges = screens.exchange_targets(engine.branch, engine.reference)
    for each in exchanges:
        descent.advance(each.index, screens.FIRST_STOP.step)
    assert not screens._rises(descent, exchanges, screens.FIRST_STOP, engine.settings)
    assert screen(engine, parse(text)) == decide(engine, parse(text))
    assert screen(engine, parse(text)).passed


@pytest.mark.parametrize(
    ("metric", "seed", "text"),
    [
        # Pools blur the target: it moves some elements one way and some the other.
        ("gacc", 12, "min_pool(tanh(max_pool(add(p, y))))"),
        # Most positions hold no edge of any class.
        ("bf1", 11, "inv(add(mul(add(mul(1, y), p), mean_nhw(exp(p))), y))"),
    ],
)
def test_a_target_that_is_blurred_or_of_edges_decides_nothing_at_first(metric: str, seed: int, text: str):
    task = autoloss.tasks.get("digits-seg", metric=metric, size=16, train=64, valid=16, test=16)
    engine = ready(task.branches["main"], task.samples(5, seed)["main"])
    assert decide(engine, parse(text)).passed
    assert screen(engine, parse(text)) == decide(engine, parse(text))


def test_moving_away_from_the_target_alone_rejects_nothing():
    engine, tree = (
        ready(ActivatedBranch(measure=border_f1, channels=scenes.CLASSES), scenes.samples(5)),
        parse("square(log(p + y))"),
    )
    assert not screen(discs(), tree).passed
    assert screen(engine, tree) == decide(engine, tree)
    assert screen(engine, tree).passed


@pytest.mark.parametrize(
    ("branch", "prediction", "target"),
    [
        # Rows: a whole run costs as much as looking.
        (ActivatedBranch(measure=likeness, channels=3), (64, 3), (64,)),
        # Positions drift independently where channels do not compete.
        (ActivatedBranch(measure=likeness, channels=1, activation="none"), (1, 1, 40, 40), (1, 1, 40, 40)),
        (ActivatedBranch(measure=likeness, channels=3, activation="sigmoid"), (1, 3, 20, 20), (1, 3, 20, 20)),
    ],
)
def test_small_predictions_and_those_without_a_softmax_have_no_early_stops(branch, prediction, target):
    generator = torch.Generator().manual_seed(0)
    samples = tuple(drawn(generator, prediction, target) for _ in range(3))
    assert screens.exchange_targets(branch, Reference(samples, (0.0,) * 3, (1.0,) * 3)) == ()


def drawn(generator: torch.Generator, prediction: tuple[int, ...], target: tuple[int, ...]) -> Sample:
    values = torch.rand(target, generator=generator)
    # Class indices have no channels.
    wanted = values if len(target) == len(prediction) else (3 * values).long()
    return Sample(torch.randn(prediction, generator=generator), {"target": wanted})


def test_the_judged_samples_have_most_to_gain_and_targets_that_differ():
    generator = torch.Generator().manual_seed(0)
    branch = ActivatedBranch(measure=likeness, channels=3)
    samples = [drawn(generator, (1, 3, 20, 20), (1, 20, 20)) for _ in range(4)]
    samples[2] = Sample(samples[2].prediction, samples[0].context)
    reference = Reference(tuple(samples), initial=(0.3, 0.5, 0.1, 1.0), best=(1.0,) * 4)
    first, second = screens.exchange_targets(branch, reference)
    assert (first.index, second.index) == (2, 0)
    for each in (first, second):
        own, other = (branch.ideal(context) for context in (samples[each.index].context, each.sample.context))
        assert torch.equal(each.change, (own - other).sign())
        assert each.changed == int((own != other).sum()) > screens.MIN_CHANGED
    same = Reference((samples[0], samples[2]), (0.3, 0.1), (1.0, 1.0))
    assert screens.exchange_targets(branch, same) == ()


@pytest.mark.parametrize(
    "text",
    [
        "sqrt(add(neg(y), sqrt(p)))",
        "abs(add(inv(p), mean_c(y)))",
        "log(add(neg(p), y))",
    ],
)
def test_a_rank_correlation_may_fall_first(text: str):
    engine, tree = rows("spearman"), parse(text)
    assert decide(engine, tree).passed
    assert screen(engine, tree) == decide(engine, tree)


def test_a_metric_that_stands_still_until_late_is_followed_along_the_way():
    # F1 counts decisions for a rare class: a good loss changes none of them for hundreds of steps.
    engine, tree = rows("f1", seed=1), parse("log(tanh(-(1 + p) * y))")
    descent = engine.start_descent(tree)
    for number in range(3):
        descent.advance(number, 200)
        assert descent.gain(number) <= 0 < descent.gain(number, 3)
    assert screen(engine, tree).passed


@pytest.mark.parametrize("text", ["(p + inv(p)) * (p + y)", "(1 + p + inv(p)) * mean_c(p + y + p)"])
def test_what_is_thrown_far_off_may_come_back(text: str):
    engine = rows("r2")
    assert screen(engine, parse(text)) == decide(engine, parse(text))


def test_few_steps_and_a_threshold_of_nothing_are_not_looked_at():
    reference, flat = scenes.reference(2), parse("y * log(p)")
    for settings in (ProtocolSettings(steps=99), ProtocolSettings(threshold=-9.0)):
        engine = CompiledEngine(scenes.BRANCH, reference, settings)
        verdict = decide(engine, flat)
        assert screen(engine, flat).passed == verdict.passed


def test_a_sum_out_of_reach_ends_the_run(steps: Steps):
    branch = ActivatedBranch(measure=likeness, channels=scenes.CLASSES)
    engine = ready(branch, scenes.samples(5))
    descent = engine.start_descent(parse("y * log(p)"))
    assert conclude(descent, engine.settings, bound_gains(engine.reference)) == Verdict(Reason.LOW_GAIN)
    assert steps.taken < 500 * 5


def test_bounds_stand_at_the_target_s_metric_and_never_below_one():
    reference = Reference(scenes.samples(2), initial=(0.2, -3.0), best=(0.9, 4.0))
    assert bound_gains(reference) == pytest.approx((0.8, 7.0))
    engine = discs()
    room = bound_gains(engine.reference)
    assert misses_threshold([0.0, 0.0, 0.0], room, engine.reference, engine.settings)
    assert not misses_threshold([0.0, 0.0], room, engine.reference, engine.settings)
    # Exactly at the threshold nothing is decided.
    needed = engine.settings.threshold * engine.reference.attainable_gain - sum(room[1:])
    assert not misses_threshold([needed], room, engine.reference, engine.settings)
    assert misses_threshold([needed - 1e-6], room, engine.reference, engine.settings)


def test_what_is_not_finite_or_has_no_gradient_keeps_its_reason():
    engine = rows("r2")
    for text, reason in (
        ("exp(exp(square(p + 1 + 1 + 1))) + y", Reason.NOT_FINITE),
        ("y + p + -p", Reason.NO_GRADIENT),
    ):
        assert screen(engine, parse(text)).reason is decide(engine, parse(text)).reason is reason


def test_a_descent_that_ended_stays_ended():
    engine = rows("r2")
    descent = engine.start_descent(parse("y + p + -p"))
    assert [descent.advance(0, step) for step in (1, 5)] == [Reason.NO_GRADIENT] * 2


def test_samples_with_and_without_ignored_positions_are_told_apart():
    generator = torch.Generator().manual_seed(0)
    branch = ActivatedBranch(measure=likeness, channels=3, ignore_index=255)
    samples = []
    for ignored in (True, False):
        target = torch.randint(0, 3, (1, 8, 8), generator=generator)
        if ignored:
            target[:, :5] = 255
        samples.append(Sample(torch.randn(1, 3, 8, 8, generator=generator), {"target": target}))
    engine = ready(branch, samples)
    together, alone = (engine.start_descent(parse("p * y + square(p)")) for _ in range(2))
    together.advance(0, 20)
    together.advance(1, 20)
    alone.advance(1, 20)
    assert torch.equal(together.prediction(1), alone.prediction(1))


def test_a_screen_is_a_function_of_the_tree():
    first, second = (CompiledEngine(scenes.BRANCH, scenes.reference(5), ProtocolSettings()) for _ in range(2))
    trees = [parse(text) for text in ("-y * log(p)", "max_pool(p) * y", "p * log(y)", "square(p + -y)")]
    found = [screen(first, tree) for tree in trees]
    assert [screen(second, tree) for tree in reversed(trees)] == found[::-1]


def test_what_is_not_compiled_is_screened_in_the_reference(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(CompiledEngine, "compiles", lambda engine, tree: False)
    engine = rows("f1")
    loss = parse("-y * log(p)")
    assert screen(engine, loss) == simulate(loss, engine.branch, engine.reference, engine.settings)
    steps: list[int] = []
    advance = ReferenceDescent.advance
    monkeypatch.setattr(
        ReferenceDescent, "advance", lambda self, sample, step: steps.append(step) or advance(self, sample, step)
    )
    assert screen(discs(), parse("y * log(p)")) == Verdict(Reason.LOW_GAIN)
    assert max(steps) == screens.FIRST_STOP.step


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("text", ["y * y", "p * y * (1 + -1)", "exp(exp(exp(exp(y + p))))"])
def test_compiled_or_not_the_ends_are_the_same(text: str, compiled: bool, monkeypatch: pytest.MonkeyPatch):
    if not compiled:
        monkeypatch.setattr(CompiledEngine, "compiles", lambda engine, tree: False)
    engine = rows("f1")
    expected = simulate(parse(text), engine.branch, engine.reference, engine.settings)
    assert screen(engine, parse(text)).reason is expected.reason
    assert expected.reason in (Reason.NO_GRADIENT, Reason.NOT_FINITE)
