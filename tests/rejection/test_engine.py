"""The compiled engine decides as the reference does: value, gradient, final prediction, verdict, and what it refuses."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from random import Random
from threading import Timer

import numpy as np
import pytest
import torch
from filelock import FileLock
from numba import njit
from numba.core import caching, config
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.proposing.initialization import initial_expression
from autoloss.rejection.compiled import functions, interpreter
from autoloss.rejection.compiled.differentiation import FORWARD, record
from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.rejection.compiled.layout import Layout
from autoloss.rejection.compiled.program import assemble
from autoloss.rejection.compiled.tape import P_REGISTER, Y_REGISTER
from autoloss.rejection.engine import compute_gradient
from autoloss.rejection.protocol import Reference, measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import simulate
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Alphabet, Expression, build, leaf
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse
from tests.rejection.scenes import decide, descend, differentiate

STEPS = 6
SETTINGS = ProtocolSettings(samples=2, steps=STEPS)
EXPLODED = 100.0


def likeness(prediction: Tensor, target: Tensor) -> float:
    """A metric that every small change of the prediction moves, so that gains tell descents apart."""
    if target.is_floating_point():
        return -float((prediction - target).square().mean())
    if prediction.shape == target.shape:
        return float((prediction * (2 * target - 1)).mean())
    valid = target.clamp(max=prediction.shape[1] - 1)
    return float(prediction.gather(1, valid.unsqueeze(1)).mean())


def draw(activation: str, shape: tuple[int, ...], ignore: int | None = None) -> tuple[Branch, Reference]:
    generator = torch.Generator().manual_seed(7)
    samples = []
    for _ in range(2):
        prediction = torch.randn(shape, generator=generator)
        if activation == "none":
            target = torch.randn(shape, generator=generator).round()
        else:
            target = torch.randint(0, max(shape[1], 2), (shape[0], *shape[2:]), generator=generator)
        if ignore is not None:
            target[torch.rand(target.shape, generator=generator) < 0.2] = ignore
        samples.append(Sample(prediction, {"target": target}))
    branch = ActivatedBranch(activation=activation, measure=likeness, channels=shape[1], ignore_index=ignore)  # pyright: ignore[reportArgumentType]
    return branch, measure_reference(branch, samples)


BRANCHES = {
    "softmax": draw("softmax", (1, 3, 11, 13)),
    "one logit": draw("softmax", (2, 1, 7, 5)),
    "sigmoid, masked": draw("sigmoid", (1, 4, 5, 70), ignore=255),
    "softmax, masked": draw("softmax", (1, 3, 9, 8), ignore=255),
    "values, masked": draw("none", (1, 2, 12, 20), ignore=1),
    "rows": draw("softmax", (70, 5)),
    "rows, one logit": draw("sigmoid", (40, 1)),
    "one logit, a shorter last tile": draw("sigmoid", (1, 1, 14, 19)),
    "values": draw("none", (1, 2, 12, 20)),
    "lines": draw("none", (3, 2, 1, 9)),
}


def trees_of_each_operator(first: str = "p", second: str = "y") -> list[Expression]:
    """Each operator above, below and beside the others."""
    p, y = leaf(first), leaf(second)
    trees = []
    for operator in OPERATORS.values():
        inner = build(operator, *[p, y][: operator.arity])
        mixed = build(operator, *[build("add", p, y), build("mul", p, p)][: operator.arity])
        trees += [inner, build("mul", y, build("tanh", inner)), build("square", mixed)]
    return trees


def assert_like_reference(expression: Expression, engine: CompiledEngine) -> None:
    """Compare gradient in double precision and prediction after a few steps in single."""
    branch, reference = engine.branch, engine.reference
    found = differentiate(engine, expression)
    expected = compute_gradient(expression, branch, reference.samples, engine.directions)
    assert found.finite == expected.finite
    if expected.finite:
        assert found.norms == pytest.approx(expected.norms, rel=1e-9, abs=1e-9)
        assert found.products == pytest.approx(expected.products, rel=1e-6, abs=1e-8)
    descent = engine.start_descent(expression)
    for number, sample in enumerate(reference.samples):
        end = descent.advance(number, STEPS)
        optimised = descend(expression, branch, sample, SETTINGS)
        if isinstance(optimised, Tensor):
            assert end is None
            moved = float((optimised - sample.prediction).abs().max())
            # What explodes doubles each rounding error at every step.
            if moved < EXPLODED:
                assert float((descent.prediction(number) - optimised).abs().max()) <= 1e-4 * moved + 1e-5
        elif optimised is Reason.NOT_FINITE:
            assert end is Reason.NOT_FINITE


@pytest.mark.parametrize("name", BRANCHES)
def test_every_operator_has_the_reference_s_gradient_and_prediction(name: str):
    assert FORWARD.keys() == OPERATORS.keys()
    # As in a search, all trees share what an engine keeps of its samples.
    engine = CompiledEngine(*BRANCHES[name], SETTINGS)
    for tree in trees_of_each_operator():
        assert_like_reference(tree, engine)


@pytest.mark.parametrize("name", BRANCHES)
def test_random_trees_get_the_reference_s_verdict(name: str):
    branch, reference = BRANCHES[name]
    engine, rng = CompiledEngine(branch, reference, SETTINGS), Random(3)
    for _ in range(25):
        tree = initial_expression(Alphabet(branch.leaves_and_roles), rng.choice([2, 3]), rng)
        found, expected = decide(engine, tree), simulate(tree, branch, reference, SETTINGS)
        if {found.reason, expected.reason} != {Reason.NO_GRADIENT, Reason.LOW_GAIN}:
            # A gradient that is zero but for rounding is none in one and noise in the other.
            assert found.reason == expected.reason, tree
        if found.gains and expected.gains and max(map(abs, expected.gains)) < EXPLODED:
            assert found.gains == pytest.approx(expected.gains, rel=2e-3, abs=2e-3), tree


@pytest.mark.parametrize(
    "text",
    [
        "max_pool(p)",
        "min_pool(p)",
        "max_pool(max_pool(p))",
        "max_pool(-min_pool(p * y))",
        "mean_nhw(max_pool(mean_c(p)))",
        "log(p) * y",
        "sqrt(p) + sqrt(y)",
        "abs(p)",
    ],
)
@pytest.mark.parametrize("shape", [(1, 2, 6, 7), (2, 1, 9, 30), (1, 1, 1, 8), (1, 1, 8, 1)])
def test_ties_and_zeros_send_the_gradient_where_torch_sends_it(text: str, shape: tuple[int, ...]):
    branch, reference = draw("none", shape)
    for sample in reference.samples:
        sample.prediction.copy_(sample.prediction.round())
    engine = CompiledEngine(branch, reference, SETTINGS)
    found = differentiate(engine, parse(text))
    expected = compute_gradient(parse(text), branch, reference.samples, engine.directions)
    assert found.products == pytest.approx(expected.products, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "scale"),
    [
        ("exp(p)", 1000.0),
        ("p * exp(-p)", -1000.0),
        ("square(square(p))", 1e15),
        ("exp(exp(-p))", 3.0),
        ("-square(square(p))", 20.0),
        ("inv(p)", 1e-30),
        ("log(exp(p)) * y", 1000.0),
        ("max_pool(exp(p))", 1000.0),
        ("mean_nhw(exp(p) + -exp(p))", 1000.0),
    ],
)
def test_what_is_not_finite_is_stopped_as_in_the_reference(text: str, scale: float):
    branch, reference = draw("none", (1, 2, 4, 20))
    samples = tuple(Sample(scale * sample.prediction, sample.context) for sample in reference.samples)
    reference = Reference(samples, reference.initial, reference.best)
    settings = ProtocolSettings(samples=2, steps=40)
    found = decide(CompiledEngine(branch, reference, settings), parse(text))
    assert found.reason == simulate(parse(text), branch, reference, settings).reason == Reason.NOT_FINITE


class MaskedBranch(Branch):
    """Targets of any value, and a mask of its own."""

    kernel = "none"
    weight = 1.0
    leaves_and_roles = ActivatedBranch().leaves_and_roles

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"y": context["target"].to(prediction.dtype), "p": prediction}

    def mask(self, context: Mapping[str, Tensor]) -> Tensor | None:
        return context["mask"]

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        return 1.0

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        return likeness(prediction, torch.ones_like(prediction))

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return torch.ones_like(context["target"])


@pytest.mark.parametrize("text", ["p + exp(y)", "p * exp(y)", "square(p) + max_pool(exp(y))", "mean_c(exp(y)) + p"])
def test_masked_positions_leave_the_sum_by_selection(text: str):
    target = torch.zeros(1, 2, 6, 6)
    target[:, :, 2, 3] = 200.0
    mask = (target < 100)[:, :1]
    samples = (Sample(torch.full((1, 2, 6, 6), 0.5), {"target": target, "mask": mask}),)
    branch = MaskedBranch()
    reference = measure_reference(branch, samples)
    found = decide(CompiledEngine(branch, reference, SETTINGS), parse(text))
    expected = simulate(parse(text), branch, reference, SETTINGS)
    assert found.reason == expected.reason
    assert found.gains == pytest.approx(expected.gains, rel=1e-4)


@pytest.mark.parametrize("text", ["y + 1", "exp(1)", "p * (1 + -1)", "p + -p", "mean_c(y) * max_pool(y)"])
def test_a_tree_that_moves_nothing_has_no_gradient(text: str):
    branch, reference = BRANCHES["values"]
    expected = simulate(parse(text), branch, reference, SETTINGS)
    assert decide(CompiledEngine(branch, reference, SETTINGS), parse(text)) == expected
    assert expected.reason is Reason.NO_GRADIENT


def test_verdicts_repeat_exactly_whatever_ran_between():
    branch, reference = BRANCHES["softmax"]
    first, second = (CompiledEngine(branch, reference, SETTINGS) for _ in range(2))
    trees = [parse("-y * log(p)"), parse("max_pool(p) * mean_nhw(exp(y * p))")]
    expected = [decide(first, tree) for tree in trees]
    assert [decide(second, tree) for tree in reversed(trees)] == expected[::-1]


def test_a_descent_in_parts_ends_where_it_would_in_one():
    branch, reference = BRANCHES["softmax"]
    engine = CompiledEngine(branch, reference, SETTINGS)
    for text in ("-y * log(p)", "max_pool(p) * mean_nhw(exp(y * p))"):
        parts, whole = engine.start_descent(parse(text)), engine.start_descent(parse(text))
        parts.advance(0, 2)
        parts.advance(0, STEPS)
        whole.advance(0, STEPS)
        assert torch.equal(parts.prediction(0), whole.prediction(0))


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "exact", "low", "high"),
    [
        ("exponential", np.exp, -750.0, 712.0),
        ("logarithm", np.log, 1e-12, 1e4),
        ("hyperbolic_tangent", np.tanh, -25, 25),
    ],
)
def test_the_polynomials_are_accurate_to_two_units_in_the_last_place(name, exact, low, high, precision):
    function = getattr(functions, name)

    @njit(**functions.OPTIONS)
    def fill(found, x):
        for i in range(len(x)):
            found[i] = function(x[i])

    near = np.geomspace(1e-12, 1.0, 20001)
    x = np.concatenate([np.linspace(low, high, 200001), near, [np.inf, np.nan]]).astype(precision)
    if low < 0:
        x = np.concatenate([x, -near.astype(precision), np.array([-np.inf], precision)])
    found = np.empty_like(x)
    fill(found, x)
    with np.errstate(all="ignore"):
        precise = exact(x.astype(np.longdouble))
        expected = precise.astype(precision)
        units = np.abs(found - precise) / np.spacing(np.abs(expected))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    assert np.max(units[finite]) <= 2


def test_trees_without_means_and_pools_of_the_prediction_run_tile_by_tile():
    def separable(text: str, flat: bool = False) -> bool:
        layout = Layout(1, 3, 1 if flat else 8, 1 if flat else 8)
        tape = record(
            parse(text),
            {"p": P_REGISTER, "y": Y_REGISTER},
            (layout.channels, layout.positions),
            layout.flat,
            masked=False,
        )
        assert tape is not None
        _, _, blocks, once, _, _ = assemble(tape, layout, plain=False).single
        return len(blocks) == once + 1

    assert separable("-y * log(p) * mean_nhw(y) * mean_c(p) + max_pool(y)")
    assert not separable("mean_nhw(exp(p))")
    assert not separable("max_pool(p)")
    assert separable("max_pool(p)", flat=True)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (2, 1, 7, 5), (70, 5, 1, 1), (1, 2, 3, 100), (3, 2, 1, 9)])
def test_packing_loses_nothing(shape: tuple[int, ...]):
    planes, channels, height, width = shape
    layout = Layout(planes, channels, height, width)
    array = np.arange(np.prod(shape), dtype=float).reshape(shape)
    np.testing.assert_array_equal(layout.unpack(layout.pack(array)), array)


def test_what_cannot_run_is_refused_before_it_runs():
    branch, reference = BRANCHES["softmax"]
    engine = CompiledEngine(branch, reference, SETTINGS)
    deep = leaf("p")
    for _ in range(65):
        deep = build("neg", deep)
    with pytest.raises(RequestError, match="65 operators; the cap is 64"):
        decide(engine, deep)
    with pytest.raises(RequestError, match=r"'i'.*Known: y, p"):
        differentiate(engine, leaf("i"))

    first, second = reference.samples
    wide = Sample(torch.zeros(1, 3, 11, 14), second.context)
    with pytest.raises(RequestError, match="need to be the same"):
        CompiledEngine(branch, Reference((first, wide), reference.initial, reference.best), SETTINGS)
    broken = Sample(first.prediction * np.nan, first.context)
    with pytest.raises(RequestError, match="Sample 1 has a prediction that is not finite"):
        CompiledEngine(branch, Reference((first, broken), reference.initial, reference.best), SETTINGS)


def test_rows_may_be_more_in_one_sample_than_in_another():
    branch, reference = BRANCHES["rows"]
    first, second = reference.samples
    short = Sample(second.prediction[:30], {"target": second.context["target"][:30]})
    reference = measure_reference(branch, (first, short))
    tree = parse("-mean_nhw(y * log(p)) + exp(p)")
    expected = simulate(tree, branch, reference, SETTINGS)
    assert decide(CompiledEngine(branch, reference, SETTINGS), tree).gains == pytest.approx(expected.gains, abs=1e-5)


def test_what_is_not_compiled_runs_in_the_reference_and_the_log_says_so_once(caplog: pytest.LogCaptureFixture):
    branch, reference = BRANCHES["values"]
    sine = Operator("sine", 1, torch.sin, r"\sin({0})")
    tree = build("mul", build(sine, leaf("p")), leaf("y"))
    engine = CompiledEngine(branch, reference, SETTINGS)
    with caplog.at_level(logging.WARNING):
        assert decide(engine, tree) == simulate(tree, branch, reference, SETTINGS)
        differentiate(engine, tree)
    assert [record.message for record in caplog.records] == [
        "The reference runs in place of the compiled engine: the operator 'sine' is not of Table 1."
    ]


def twice(x):
    return 2 * x


def test_without_a_place_to_keep_it_the_engine_compiles_in_memory_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    with caplog.at_level(logging.WARNING):
        compiled = interpreter.CachedFunction(twice)
        assert [compiled(1), compiled(2)] == [2, 4]
    assert [record.message.rpartition("; ")[2] for record in caplog.records] == ["this process compiles it for itself."]


def test_a_disk_that_fills_while_it_is_kept_costs_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    with caplog.at_level(logging.WARNING):
        compiled = interpreter.CachedFunction(twice)
        assert [compiled(1), compiled(2)] == [2, 4]
    assert len(caplog.records) == 1
    assert "No space left on device" in caplog.text


def test_a_first_call_waits_for_the_process_that_compiles(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    function = interpreter.CachedFunction(twice)
    busy, seconds = FileLock(function._folder / "twice.lock", thread_local=False), 0.5
    busy.acquire()
    Timer(seconds, busy.release).start()
    began = time.monotonic()
    assert function(1) == 2
    assert time.monotonic() - began >= seconds
    with busy:
        assert function(2) == 4


@pytest.mark.experiment
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_what_is_not_in_the_cache_is_compiled_by_two_processes(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    code = (
        "import autoloss, autoloss.rejection.compiled.interpreter as i\n"
        "task = autoloss.tasks.get('tabular', data='iris')\n"
        "samples = task.samples(1, seed=0)['main']\n"
        "tree = autoloss.parse('-y * log(p)')\n"
        "print(autoloss.correlation_score(tree, task.branches['main'], samples, engine='fast'))\n"
        "functions = i.compile_gradient(), i.compile_descent()\n"
        "print(sum(function._compiled.stats.cache_misses.total() for function in functions))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], check=True, timeout=240, capture_output=True, text=True)
    score, compiled = map(float, ran.stdout.split())
    assert score > 0.6
    assert compiled == 1


def test_importing_the_engine_compiles_nothing():
    code = (
        "import autoloss.rejection.compiled.engine, autoloss.rejection.compiled.interpreter as i;"
        "assert not i.compile_descent.cache_info().currsize; assert not i._run.signatures"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
