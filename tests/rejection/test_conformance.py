"""Every engine keeps the contract of `Engine`, and the screen and the rejection tests accept any engine that does."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import ClassVar

import pytest
import torch

from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.rejection_tester import RejectionTester
from autoloss.proposing.mutation import Kind, draw_attempt
from autoloss.proposing.records import Attempt, RejectionBatch
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.engine import Engine, Gradient, compute_gradient, draw_directions
from autoloss.rejection.engines import ENGINES
from autoloss.rejection.protocol import Descent, Verdict, conclude
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import ReferenceDescent, ReferenceEngine, simulate
from autoloss.rejection.screen import screen_losses
from autoloss.settings import Configuration, EngineName, ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch
from autoloss.space.expression import Expression, build, leaf
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse
from tests.rejection.scenes import BRANCH, CLASSES, decide, differentiate, mean_iou, reference, screen
from tests.run.quick import SETTINGS as QUICK
from tests.run.quick import QuickTask

SETTINGS = ProtocolSettings(samples=2, steps=100)
SINE = Operator("sine", 1, torch.sin, r"\sin({0})")
TREES = {
    "passes": parse("-y * log(p)"),
    "gains too little": parse("y * log(p)"),
    "couples elements": parse("mean_nhw(max_pool(p)) * y"),
    "an operator of one's own": build("mul", build(SINE, leaf("p")), leaf("y")),
    "no gradient": parse("y * y"),
    "zero gradient": parse("p * y * (1 + -1)"),
    "not finite": parse("exp(exp(exp(exp(exp(y + p)))))"),
}
REASONS = (
    *(None, Reason.LOW_GAIN, Reason.LOW_GAIN, Reason.LOW_GAIN),
    *(Reason.NO_GRADIENT, Reason.NO_GRADIENT, Reason.NOT_FINITE),
)


class ToyEngine(Engine):
    """A third engine, for batches of five: it computes a batch backwards, in plain autograd."""

    batch_size: ClassVar[int] = 5

    def gradients(self, expressions: Sequence[Expression]) -> list[Gradient]:
        found = [self._differentiate(expression) for expression in reversed(expressions)]
        return found[::-1]

    def verdicts(self, expressions: Sequence[Expression]) -> list[Verdict]:
        found = [conclude(self.start_descent(expression), self.settings) for expression in reversed(expressions)]
        return found[::-1]

    def start_descent(self, expression: Expression) -> Descent:
        self.check_leaves(expression)
        return ReferenceDescent(expression, self.branch, self.reference, self.settings)

    def _differentiate(self, expression: Expression) -> Gradient:
        self.check_leaves(expression)
        return compute_gradient(expression, self.branch, self.reference.samples, self.directions)


class OddBranch(ActivatedBranch):
    """Leaves that no compiled code knows: p is the softmax of twice the prediction."""

    def leaves(self, prediction, context):
        return super().leaves(2 * prediction, context)


BRANCHES: dict[str, Branch] = {"known": BRANCH, "unknown": OddBranch(measure=mean_iou, channels=CLASSES)}
MAKERS: dict[str, Callable[..., Engine]] = {
    "reference": ReferenceEngine,
    "compiled": CompiledEngine,
    "toy": ToyEngine,
}
ENGINE_CASES = [(maker, branch) for maker in MAKERS for branch in BRANCHES]


@cache
def engine_of(maker: str, branch: str = "known") -> Engine:
    return MAKERS[maker](BRANCHES[branch], reference(2), SETTINGS)


def test_every_engine_of_the_settings_has_one_row():
    assert ENGINES.keys() == set(typing.get_args(EngineName))
    directions = draw_directions(reference(2).samples, seed=3)
    for name, kind in ENGINES.items():
        settings = dataclasses.replace(SETTINGS, engine=name)
        engine = kind(BRANCH, reference(2), settings, directions=directions, operator_cap=7)
        assert (engine.branch, engine.reference, engine.settings) == (BRANCH, reference(2), settings)
        assert (engine.directions, engine.operator_cap) == (directions, 7)


@pytest.mark.parametrize(("maker", "branch"), ENGINE_CASES)
def test_a_batch_is_in_order_and_equal_to_one_at_a_time(maker: str, branch: str):
    engine, trees = engine_of(maker, branch), list(TREES.values())
    mixed = [*trees, *reversed(trees)]
    gradients, verdicts, screened = engine.gradients(mixed), engine.verdicts(mixed), screen_losses(engine, mixed)
    assert repr(gradients) == repr([differentiate(engine, tree) for tree in mixed])
    assert verdicts == [decide(engine, tree) for tree in mixed]
    assert screened == [screen(engine, tree) for tree in mixed]


@pytest.mark.parametrize("maker", MAKERS)
def test_an_empty_batch_has_no_results(maker: str):
    engine = engine_of(maker)
    assert engine.gradients([]) == engine.verdicts([]) == screen_losses(engine, []) == []


@pytest.mark.parametrize("maker", MAKERS)
def test_each_way_to_end_has_its_reason(maker: str):
    verdicts = engine_of(maker).verdicts(list(TREES.values()))
    assert tuple(verdict.reason for verdict in verdicts) == REASONS
    assert [verdict.score is None for verdict in verdicts] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(("maker", "branch"), ENGINE_CASES)
@pytest.mark.parametrize("name", TREES)
def test_results_are_the_reference_s(maker: str, branch: str, name: str):
    engine, tree = engine_of(maker, branch), TREES[name]
    found, expected = differentiate(engine, tree), differentiate(engine_of("reference", branch), tree)
    assert (found.finite, found.zero) == (expected.finite, expected.zero)
    if expected.finite:
        assert found.norms == pytest.approx(expected.norms, rel=1e-9)
        assert found.key(str(tree)) == expected.key(str(tree))
    verdict, simulated = decide(engine, tree), simulate(tree, engine.branch, engine.reference, SETTINGS)
    assert verdict.reason is simulated.reason
    assert verdict.gains == pytest.approx(simulated.gains, abs=1e-3)
    assert screen(engine, tree).reason is simulated.reason


@pytest.mark.parametrize("maker", MAKERS)
def test_a_descent_goes_on_where_it_stopped_and_extrapolates_from_the_start(maker: str):
    engine, tree = engine_of(maker), TREES["passes"]
    parts, whole = engine.start_descent(tree), engine.start_descent(tree)
    for sample, step in ((1, 3), (0, 2), (1, 10), (0, 10)):
        assert parts.advance(sample, step) is None
    for sample, one in enumerate(engine.reference.samples):
        whole.advance(sample, 10)
        moved = whole.prediction(sample)
        assert moved.dtype == torch.float32
        assert moved.shape == one.prediction.shape
        assert torch.equal(parts.prediction(sample), moved)
        far = one.prediction + 100 * (moved - one.prediction)
        torch.testing.assert_close(whole.prediction(sample, 100), far, rtol=1e-4, atol=1e-3)
        metric = engine.branch.metric(whole.prediction(sample, 100), one.context)
        assert whole.gain(sample, 100) == metric - engine.reference.initial[sample]
        assert whole.gain(sample, 1e300) == float("inf")


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", ["no gradient", "zero gradient", "not finite"])
def test_a_descent_that_ended_stays_ended(maker: str, name: str):
    descent = engine_of(maker).start_descent(TREES[name])
    end = descent.advance(0, 1)
    assert end is Reason[name.replace("zero", "no").replace(" ", "_").upper()]
    assert descent.advance(0, 5) is end


@pytest.mark.parametrize("maker", MAKERS)
def test_a_leaf_that_the_branch_lacks_is_refused(maker: str):
    engine = engine_of(maker)
    for refused in (engine.gradients, engine.verdicts, lambda trees: [engine.start_descent(tree) for tree in trees]):
        with pytest.raises(RequestError, match=r"leaf of this branch named 'i'. Known: y, p"):
            refused([TREES["passes"], leaf("i")])


def results(tester: RejectionTester, trees: Sequence[Expression]) -> list[Attempt]:
    return [tester.test(number, [tree])[0] for number, tree in enumerate(trees, 4)]


@pytest.mark.parametrize("maker", MAKERS)
def test_a_batch_of_rejection_tests_equals_one_at_a_time(maker: str):
    operators = {**OPERATORS, "sine": SINE}
    trees = [leaf("y"), *TREES.values(), parse("1 + p"), *reversed(TREES.values())]
    together, alone = (RejectionTester(engine_of(maker), Configuration(), operators) for _ in range(2))
    found = together.test(4, trees)
    assert found == results(alone, trees)
    assert [one.number for one in found] == list(range(4, 4 + len(trees)))
    assert [one.formula for one in found] == [str(tree) for tree in trees]
    assert together.test(0, []) == []
    known = [one.key for one in found if one.simulated][:2]
    for tester in (together, alone):
        tester.learn(dict.fromkeys(known, True))
        tester._tested.clear()
    assert (again := together.test(4, trees)) == results(alone, trees)
    assert [one.key in known for one in found if one.key] == [not one.simulated for one in again if one.key]


@pytest.mark.parametrize("count", [1, 4, 5, 60])
def test_a_job_runner_hands_over_whole_batches_and_stops_at_the_first_that_passes(
    count: int, monkeypatch: pytest.MonkeyPatch
):
    task = QuickTask()
    samples = task.samples(2, 0)
    configuration = Configuration().changed({**QUICK, "rejection.engine": "reference"})
    job = RejectionBatch(3, "main", Kind.FRESH.value, None, 7, count)
    one_by_one = Evaluator(task, samples, configuration)
    expected = one_by_one.test(job)
    tester = one_by_one.get_tester("main")
    settings = configuration.evolution
    numbers = range(7, 7 + count)
    drawn = [draw_attempt(3, "main", Kind.FRESH, number, None, tester.alphabet, settings, 0) for number in numbers]
    alone = Evaluator(task, samples, configuration).get_tester("main")
    every = [alone.test(number, [tree])[0] for number, tree in enumerate(drawn, 7)]
    first = next((place for place, one in enumerate(every, 1) if alone.passes(one)), count)
    assert expected == every[:first]

    batches: list[int] = []
    batched = Evaluator(task, samples, configuration)
    toy = ToyEngine(tester.engine.branch, tester.engine.reference, tester.engine.settings)
    toy.directions = tester.engine.directions
    monkeypatch.setattr(ToyEngine, "allows_early_stops", False)
    batched._testers["main"] = RejectionTester(toy, configuration)
    test = batched._testers["main"].test
    monkeypatch.setattr(
        batched._testers["main"], "test", lambda at, trees: batches.append(len(trees)) or test(at, trees)
    )
    assert batched.test(job) == expected
    full, rest = divmod(count, 5)
    assert batches == ([5] * full + [rest] * bool(rest))[: -(-first // 5)]
