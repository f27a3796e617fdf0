"""The loss-rejection protocol on a small synthetic segmentation branch."""

import dataclasses
import math

import pytest
import torch
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.rejection.engines import correlation_score
from autoloss.rejection.protocol import Reference, measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import simulate
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample
from autoloss.space.expression import build, leaf
from autoloss.space.operators import Operator
from autoloss.space.parsing import parse
from tests.rejection.scenes import BRANCH, CLASSES, descend, mean_iou, reference, samples

CE = parse("-y * log(p)")
SETTINGS = ProtocolSettings(samples=2)


def verdict(text, settings=SETTINGS):
    return simulate(parse(text), BRANCH, reference(), settings)


def test_accepts_cross_entropy():
    found = verdict("-y * log(p)")
    assert found.passed
    assert found.reason is None
    assert found.score == pytest.approx(1.0, abs=0.01)


def test_rejects_the_negated_cross_entropy():
    found = verdict("y * log(p)")
    assert found.reason is Reason.LOW_GAIN
    assert found.score is not None
    assert found.score < 0


@pytest.mark.parametrize("text", ["1", "1 + 1", "y", "exp(y) + mean_c(y)", "p - p", "p - p + y"])
def test_rejects_a_constant_and_a_loss_of_the_target_alone_as_without_gradient(text):
    found = verdict(text)
    assert found.reason is Reason.NO_GRADIENT
    assert found.score is None


def test_rejects_the_sum_of_probabilities_whose_gradient_is_but_rounding():
    assert not verdict("y + mean_c(p)", dataclasses.replace(SETTINGS, steps=50)).passed


@pytest.mark.parametrize("text", ["1", "y", "exp(y) + mean_c(y)", "log(p)"])
def test_what_lacks_a_role_falls_before_any_arithmetic(text):
    assert not parse(text).holds(BRANCH.leaves_and_roles)


def trap(step, value):
    """Cross entropy until an evaluation, counted from 1, at which all becomes `value`."""
    calls = 0

    def function(x):
        nonlocal calls
        calls += 1
        return x * value if calls == step else x

    return build(Operator("trap", 1, function, "{0}"), CE)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 2, 19, 20])
def test_a_loss_that_is_not_finite_at_any_step_is_rejected(step, value):
    settings = ProtocolSettings(samples=2, steps=20)
    assert simulate(trap(step, value), BRANCH, reference(), settings).reason is Reason.NOT_FINITE


def test_what_is_not_finite_past_the_last_step_of_the_last_sample_is_never_seen():
    settings = ProtocolSettings(samples=2, steps=20)
    assert simulate(trap(41, math.nan), BRANCH, reference(), settings).reason is Reason.LOW_GAIN


def test_a_gradient_that_is_not_finite_is_rejected_though_the_loss_is():
    steep = Operator("steep", 1, lambda x: (x - x.detach()).sqrt(), "{0}")
    assert simulate(build(steep, leaf("p")), BRANCH, reference(), SETTINGS).reason is Reason.NOT_FINITE


@pytest.mark.parametrize(("learning_rate", "momentum"), [(0.001, 0.9), (0.1, 0.9), (0.05, 0.0)])
def test_the_descent_is_torchs_sgd_on_the_plain_sum_step_by_step(learning_rate, momentum):
    sample = samples()[0]
    prediction = sample.prediction.clone().requires_grad_(True)
    optimizer = torch.optim.SGD([prediction], lr=learning_rate, momentum=momentum)
    for step in range(1, 9):
        optimizer.zero_grad()
        F.cross_entropy(prediction, sample.context["target"], reduction="sum").backward()
        optimizer.step()
        settings = ProtocolSettings(samples=1, steps=step, learning_rate=learning_rate, momentum=momentum)
        found = descend(CE, BRANCH, sample, settings)
        assert isinstance(found, torch.Tensor)
        torch.testing.assert_close(found, prediction.detach(), rtol=1e-5, atol=1e-6)


def test_the_samples_keep_their_predictions():
    before = samples()[0].prediction.clone()
    descend(CE, BRANCH, samples()[0], ProtocolSettings(steps=3))
    assert torch.equal(samples()[0].prediction, before)
    assert not samples()[0].prediction.requires_grad


def test_g_is_the_mean_gain_of_the_metric():
    settings = ProtocolSettings(samples=2, unit="absolute")
    found = simulate(CE, BRANCH, reference(), settings)
    gains = []
    for sample, initial in zip(samples(), reference().initial, strict=True):
        optimised = descend(CE, BRANCH, sample, settings)
        assert isinstance(optimised, torch.Tensor)
        gains.append(BRANCH.metric(optimised, sample.context) - initial)
    assert found.gains == tuple(gains)
    assert found.score == pytest.approx(sum(gains) / 2)


def test_the_relative_score_is_a_ratio_of_sums():
    some = Reference(samples(), initial=(0.5, 0.1), best=(1.0, 0.9))
    assert some.attainable_gain == pytest.approx(1.3)
    assert some.score((0.4, 0.25), "relative") == pytest.approx(0.65 / 1.3)
    assert some.score((0.4, 0.25), "absolute") == pytest.approx(0.65 / 2)


def test_a_metric_that_starts_at_one_half_needs_the_relative_threshold():
    branch = ActivatedBranch(measure=lambda p, y: 0.5 + 0.5 * mean_iou(p, y), channels=CLASSES)
    start = measure_reference(branch, samples())
    absolute = simulate(CE, branch, start, ProtocolSettings(samples=2, unit="absolute"))
    relative = simulate(CE, branch, start, ProtocolSettings(samples=2, unit="relative"))
    assert absolute.reason is Reason.LOW_GAIN
    assert absolute.score is not None
    assert absolute.score < 0.5
    assert relative.passed


@pytest.mark.parametrize("text", ["tanh(sqrt(mean_nhw(-log(p) * sqrt(max_pool(sqrt(2 * y))))))", "-y * log(p)"])
def test_samples_are_optimised_alone_so_together_they_gain_what_each_gains_by_itself(text):
    tree, branch = parse(text), BRANCH
    settings = ProtocolSettings(samples=3, steps=120)
    together = simulate(tree, branch, measure_reference(branch, samples(3)), settings).gains
    alone = [simulate(tree, branch, measure_reference(branch, [sample]), settings).gains[0] for sample in samples(3)]
    assert list(together) == alone
    assert len(set(alone)) == 3


def one_value(prediction, target):
    """A sample of one number; what y asks for is worth at most 1."""
    return Sample(torch.full((1, 1, 1, 1), prediction), {"target": torch.full((1, 1, 1, 1), target)})


LINE = ActivatedBranch(activation="none", measure=lambda p, y: float((p * y).clamp(max=1).sum()), channels=1)


def test_a_sample_without_gradient_gains_nothing_and_the_others_decide():
    some = Reference((one_value(1.0, 0.0), one_value(0.0, 1.0)), initial=(0.0, 0.0), best=(0.5, 1.0))
    found = simulate(parse("-y * p"), LINE, some, SETTINGS)
    assert found.gains == (0.0, 1.0)
    assert found.passed


def test_without_gradient_on_any_sample_a_loss_is_rejected_at_once():
    some = Reference((one_value(1.0, 0.0), one_value(0.5, 0.0)), initial=(0.0, 0.0), best=(1.0, 1.0))
    assert simulate(parse("-y * p"), LINE, some, SETTINGS).reason is Reason.NO_GRADIENT


def test_the_threshold_itself_passes():
    some = Reference((one_value(0.0, 1.0),), initial=(0.0,), best=(1.0,))
    exact = simulate(parse("-y * p"), LINE, some, ProtocolSettings(samples=1, threshold=1.0))
    assert exact.score == 1.0
    assert exact.passed
    above = simulate(parse("-y * p"), LINE, some, ProtocolSettings(samples=1, threshold=1.01))
    assert above.reason is Reason.LOW_GAIN


def test_a_metric_that_becomes_nan_rejects():
    branch = ActivatedBranch(activation="none", measure=lambda p, y: math.nan if p.item() > 1 else 0.0, channels=1)
    some = Reference((one_value(0.0, 1.0),), initial=(0.0,), best=(1.0,))
    found = simulate(parse("-y * p"), branch, some, ProtocolSettings(samples=1))
    assert found.reason is Reason.NOT_FINITE
    assert found.score is None


def test_measuring_says_where_samples_start_and_what_they_can_reach():
    found = measure_reference(BRANCH, samples())
    assert found.best == (1.0, 1.0)
    assert found.initial == tuple(
        mean_iou(sample.prediction.softmax(dim=1), sample.context["target"]) for sample in samples()
    )


@pytest.mark.parametrize(
    ("measure", "problem"),
    [
        (lambda p, y: math.nan, "not finite"),
        (lambda p, y: math.inf, "not finite"),
        (lambda p, y: 0.7, "No sample can improve"),
        (lambda p, y: -mean_iou(p, y), "higher is better"),
    ],
)
def test_a_metric_that_cannot_tell_losses_apart_is_refused(measure, problem):
    with pytest.raises(RequestError, match=problem):
        measure_reference(ActivatedBranch(measure=measure, channels=CLASSES), samples())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("samples", 0),
        ("steps", 0),
        ("learning_rate", 0.0),
        ("learning_rate", math.nan),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("unit", "percent"),
    ],
)
def test_a_setting_outside_its_range_is_refused(setting, value):
    with pytest.raises(RequestError):
        ProtocolSettings(**{setting: value})


def test_correlation_score_is_g_in_the_unit_asked_for():
    relative = correlation_score(CE, BRANCH, samples())
    absolute = correlation_score(CE, BRANCH, samples(), threshold="absolute")
    assert relative is not None
    assert absolute == pytest.approx(relative * reference().attainable_gain / 2)


@pytest.mark.parametrize("text", ["exp(exp(exp(exp(exp(p * y)))))", "y", "p * exp(exp(exp(exp(p + 1))))"])
def test_correlation_score_is_none_where_there_is_none(text):
    assert correlation_score(parse(text), BRANCH, samples()) is None


@pytest.mark.parametrize("options", [{"engine": "turbo"}, {"threshold": "percent"}])
def test_correlation_score_knows_its_options(options):
    with pytest.raises(RequestError, match="expected '"):
        correlation_score(CE, BRANCH, samples(), **options)
