"""Compiled areas of boxes are autograd's, in value and gradient, and change no decision."""

from __future__ import annotations

import pytest
import torch

from autoloss.algorithm.rejection.box_areas import CompiledAreas, quick
from autoloss.algorithm.rejection.engine import Engine
from autoloss.algorithm.rejection.protocol import ProtocolSettings, Reason, measured, simulate
from autoloss.algorithm.rejection.screen import screened
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression, predicted_areas
from autoloss.space.branch import Sample
from autoloss.space.parsing import parse
from tests.space.test_boxes import PLAIN, RCNN, boxes_of


def drawn(dtype: torch.dtype, spread: float, deviations=PLAIN) -> tuple[torch.Tensor, ...]:
    reference = boxes_of(200, 0)
    target = (
        reference + spread * 20 * torch.randn(200, 4, generator=torch.Generator().manual_seed(1)).double().sort().values
    )
    target[:, 2:] = torch.maximum(target[:, 2:], target[:, :2] + 1)
    deltas = spread * torch.randn(200, 4, generator=torch.Generator().manual_seed(2)).double()
    return tuple(part.to(dtype) for part in (deltas, reference, torch.tensor([deviations]), target))


def compared(given: tuple[torch.Tensor, ...]) -> None:
    deltas = given[0].requires_grad_(True)
    found, expected = CompiledAreas.apply(*given), predicted_areas(*given)
    for one, other in zip(found, expected, strict=True):
        # In single precision large areas cancel; compiled code rounds elsewhere.
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
        weights = torch.randn(len(one), generator=torch.Generator().manual_seed(3)).to(one)
        mine, autograds = (torch.autograd.grad(area @ weights, deltas, retain_graph=True)[0] for area in (one, other))
        torch.testing.assert_close(mine, autograds, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [0.1, 1.0])
@pytest.mark.parametrize("deviations", [PLAIN, RCNN])
def test_values_and_gradients_are_autograds(dtype, spread, deviations):
    compared(drawn(dtype, spread, deviations))


def test_far_beyond_the_clamp_too():
    compared(drawn(torch.float64, 8.0))


def test_where_borders_coincide_the_slope_is_shared_as_autograd_does():
    _, reference, deviations, _ = drawn(torch.float64, 0.1)
    compared((torch.zeros_like(reference), reference, deviations, reference.clone()))


def share_of_target(boxes: torch.Tensor, context: dict[str, torch.Tensor]) -> float:
    i, u, _ = predicted_areas(torch.zeros_like(boxes), boxes, torch.ones(1, 4), context["box"])
    return float((i / u).mean())


def branch_and_samples() -> tuple[BoxRegression, list[Sample]]:
    branch = BoxRegression(measure=share_of_target)
    samples = []
    for seed in range(3):
        reference = boxes_of(20, seed).float()
        context = {
            "target": torch.ones(20, dtype=torch.long),
            "reference": reference,
            "box": reference + torch.tensor([3.0, 2, 6, 9]),
            "deviations": torch.ones(1, 4),
        }
        samples.append(Sample(torch.zeros(20, 4, 1, 1), context))
    return branch, samples


@pytest.mark.parametrize("text", ["e / (i + u)", "-log(i / e)", "i / u", "e * i", "i * (1 + -1)"])
def test_the_screen_decides_as_the_reference(text):
    branch, samples = branch_and_samples()
    reference = measured(branch, samples)
    settings = ProtocolSettings(samples=3, steps=150, learning_rate=0.002)
    engine = Engine(branch, reference, settings)
    tree = parse(text)
    found, expected = screened(engine, tree), simulate(tree, branch, reference, settings)
    assert found.reason is expected.reason
    assert (found.reason is None) is (text in ("e / (i + u)", "-log(i / e)"))
    assert found.reason in (None, Reason.LOW_GAIN, Reason.NO_GRADIENT, Reason.NOT_FINITE)
    if found.passed:
        assert found.gains == pytest.approx(expected.gains, abs=1e-3)


def test_keys_are_those_of_the_reference():
    branch, samples = branch_and_samples()
    reference = measured(branch, samples)
    engine = Engine(branch, reference, ProtocolSettings(samples=3))
    from autoloss.algorithm.equivalence import gradient

    tree = parse("e / (i + u)")
    assert engine.gradient(tree).key("") == gradient(tree, branch, samples, engine.towards).key("")


def test_other_branches_are_left_as_they_are():
    branch = ActivatedBranch()
    assert quick(branch) is branch
