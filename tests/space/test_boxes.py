"""Box branches: areas of overlapping, nested and distant boxes, deltas as torchvision's coder has them, what counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional as F

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.boxes import (
    CLAMP,
    PLAIN,
    BoxClassification,
    BoxRegression,
    compute_areas,
    decode,
    encode,
    rescale_deltas,
)
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.zoo.written import SmoothL1

RCNN = (0.1, 0.1, 0.2, 0.2)


def boxes_of(count: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = 60 * torch.rand(count, 2, generator=generator, dtype=dtype)
    return torch.cat([corner, corner + 5 + 30 * torch.rand(count, 2, generator=generator, dtype=dtype)], dim=1)


def scene(deviations: tuple[float, ...] = PLAIN, count: int = 6) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return deltas of six boxes, four of them positive, and their context."""
    reference = boxes_of(count, 0)
    box = reference + torch.randn(count, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    target = torch.tensor([1, 2, 0, 1, 0, 2])
    context = {
        "target": target,
        "reference": reference,
        "box": torch.where(target[:, None] > 0, box, reference),
        "deviations": torch.tensor([deviations], dtype=torch.float64),
    }
    deltas = torch.randn(count, 4, 1, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 5
    return deltas, context


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ((0, 0, 4, 4), (0, 0, 4, 4), (16, 16, 16)),
        ((0, 0, 4, 4), (2, 2, 6, 6), (4, 28, 36)),
        ((0, 0, 10, 10), (2, 3, 4, 6), (6, 100, 100)),
        ((0, 0, 2, 2), (5, 6, 7, 9), (0, 10, 63)),
        ((0, 0, 2, 2), (2, 0, 4, 2), (0, 8, 8)),
    ],
)
def test_areas(first, second, expected):
    found = compute_areas(torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64))
    assert tuple(float(area) for area in found) == expected


@pytest.mark.parametrize("deviations", [PLAIN, RCNN])
def test_coding_is_torchvisions(deviations):
    coder = pytest.importorskip("torchvision.models.detection._utils").BoxCoder(tuple(1 / d for d in deviations))
    reference, box, tensor = boxes_of(9, 0), boxes_of(9, 1), torch.tensor([deviations], dtype=torch.float64)
    deltas = encode(box, reference, tensor)
    torch.testing.assert_close(deltas, coder.encode_single(box, reference))
    far = torch.cat([deltas, 100 * deltas])
    both = torch.cat([reference, reference])
    torch.testing.assert_close(decode(far, both, tensor), coder.decode_single(far, both))
    torch.testing.assert_close(decode(deltas, reference, tensor), box)


def test_growth_ends_where_torchvisions_does():
    reference, tensor = boxes_of(1, 0), torch.tensor([PLAIN], dtype=torch.float64)
    size = decode(torch.tensor([[0, 0, 50.0, 50.0]], dtype=torch.float64), reference, tensor).diff(dim=1)
    assert float(size[0, 1]) > 0
    grown = decode(torch.full((1, 4), 50.0, dtype=torch.float64), reference, tensor)
    torch.testing.assert_close(
        (grown[:, 2:] - grown[:, :2]) / (reference[:, 2:] - reference[:, :2]), grown.new_full((1, 2), math.exp(CLAMP))
    )


def test_leaves_are_differentiable():
    deltas, context = scene()
    branch = BoxRegression()
    assert torch.autograd.gradcheck(
        lambda raw: tuple(branch.leaves(raw, context).values()), (deltas.requires_grad_(True),)
    )


def test_areas_in_units_of_the_target_have_a_unit_target():
    _, context = scene()
    leaves = BoxRegression(unit="target").leaves(BoxRegression().ideal(context), context)
    for area in leaves.values():
        torch.testing.assert_close(area, torch.ones_like(area))
    with pytest.raises(RequestError, match="unit of areas"):
        BoxRegression(unit="metres")  # type: ignore[arg-type]


@pytest.mark.parametrize("deviations", [PLAIN, RCNN])
def test_the_ideal_deltas_give_the_target_boxes(deviations):
    _, context = scene(deviations)
    branch = BoxRegression()
    torch.testing.assert_close(branch.boxes(branch.ideal(context), context), context["box"])


def test_other_deviations_are_the_same_boxes():
    deltas, context = scene(RCNN)
    branch = BoxRegression()
    other, told = rescale_deltas(deltas, context, torch.tensor([PLAIN], dtype=torch.float64))
    torch.testing.assert_close(branch.boxes(other, told), branch.boxes(deltas, context))
    assert not torch.allclose(other, deltas)


def test_a_tree_counts_positives_and_divides_by_all():
    deltas, context = scene()
    branch = BoxRegression(weight=10.0)
    bound = bind({"box": parse("1 - i / u")}, {"box": branch})["box"]
    i, u, _ = compute_areas(branch.boxes(deltas, context), context["box"])
    positive = context["target"] > 0
    expected = 10 * (1 - i / u)[positive].sum() / 6
    torch.testing.assert_close(bound(deltas, context), expected, rtol=1e-9, atol=1e-9)


def test_the_iou_loss_is_that_of_its_paper_and_a_complete_miss_costs_most():
    iou = parse(zoo.get_entry("baseline/iou").formula)
    i = torch.tensor([1.0, 2.0, 0.5, 0.0, 0.0], dtype=torch.float64)[:, None, None, None]
    u = torch.tensor([1.0, 4.0, 8.0, 8.0, 300.0], dtype=torch.float64)[:, None, None, None]
    value = iou.evaluate({"i": i, "u": u, "e": u})
    torch.testing.assert_close(value[:3], -(i / u).log()[:3], rtol=1e-9, atol=1e-9)
    assert (value[3:] > 27).all()
    deltas, context = scene()
    context["box"] = context["box"] + 500
    criterion = bind({"box": iou}, {"box": BoxRegression()})["box"]
    missed = criterion(deltas.requires_grad_(True), context)
    (slope,) = torch.autograd.grad(missed, deltas)
    assert missed > 27
    assert slope.isfinite().all()


@pytest.mark.parametrize("deviations", [PLAIN, RCNN])
def test_smooth_l1_is_torchs_over_positives(deviations):
    deltas, context = scene(deviations)
    positive = context["target"] > 0
    wanted = encode(context["box"], context["reference"], context["deviations"])
    expected = F.smooth_l1_loss(deltas.flatten(1)[positive], wanted[positive], beta=1 / 9, reduction="sum") / 6
    torch.testing.assert_close(SmoothL1(BoxRegression())(deltas, context), expected)


def test_without_positives_nothing_is_lost_and_nothing_breaks():
    deltas, context = scene()
    context["target"] = torch.zeros(6, dtype=torch.long)
    raw = deltas.requires_grad_(True)
    for loss in (SmoothL1(BoxRegression()), bind({"box": parse("-log(i / e)")}, {"box": BoxRegression()})["box"]):
        value = loss(raw, context)
        assert value.item() == 0.0
        assert not torch.autograd.grad(value, raw)[0].any()


def test_one_logit_is_two_channels_of_softmax():
    target = torch.tensor([1, 0, 1])
    logits = torch.randn(3, 1, 1, 1, generator=torch.Generator().manual_seed(0))
    bound = bind({"object": parse("-y * log(p)")}, {"object": BoxClassification()})["object"]
    expected = F.binary_cross_entropy_with_logits(logits.flatten(), target.float())
    torch.testing.assert_close(bound(logits, {"target": target}), expected)


def test_metrics_see_boxes_or_probabilities_without_background():
    deltas, context = scene()
    seen = []
    branch = BoxRegression(measure=lambda boxes, context: seen.append(boxes.shape) or 0.25)
    assert branch.metric(deltas, context) == 0.25
    for channels, columns in ((1, 1), (4, 3)):
        classes = BoxClassification(measure_boxes=lambda p, context: seen.append(p.shape) or 0.5)
        assert classes.metric(torch.zeros(6, channels, 1, 1), context) == 0.5
        assert seen[-1] == (6, columns)
    assert seen[0] == (6, 4)


@pytest.mark.parametrize("branch", [BoxRegression(), BoxClassification()])
def test_without_a_metric_a_branch_says_so(branch):
    deltas, context = scene()
    with pytest.raises(RequestError, match="no metric"):
        branch.metric(deltas, context)
