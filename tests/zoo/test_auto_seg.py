"""Auto-Seg-Loss: its curves, and surrogates that are the metrics themselves where probabilities are 0 or 1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, SegmentationMetric
from autoloss.zoo.auto_seg import PUBLISHED, SURROGATES, AutoSegLoss, Curve, get_published
from autoloss.zoo.region_losses import RegionLoss
from tests.zoo.test_region_losses import CLASSES, logits, scene

CURVES = {
    "straight": Curve(),
    "straight in two pieces": Curve(((0.1, 0.1), (0.4, 0.4), (0.9, 0.9))),
    "concave": Curve(((0.0, 0.8),)),
    "convex": Curve(((1.0, 0.2),)),
    **{f"published {metric} {place}": curve for metric in PUBLISHED for place, curve in enumerate(PUBLISHED[metric])},
}


def hard(labels: Tensor) -> Tensor:
    return 300 * F.one_hot(labels, CLASSES).movedim(-1, 1).double()


def loss_of(loss: AutoSegLoss, prediction: Tensor, target: Tensor, tolerance: int = 1) -> float:
    return RegionLoss(ActivatedBranch(tolerance=tolerance, ignore_index=255), loss)(
        prediction, {"target": target}
    ).item()


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_a_curve_rises_from_nothing_to_one(curve: Curve):
    x = torch.linspace(0, 1, 501, dtype=torch.float64).requires_grad_(True)
    y = curve(x)
    assert (y[0].item(), y[-1].item()) == pytest.approx((0, 1), abs=1e-5)
    assert bool((y.diff() >= -1e-9).all())
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert slope.isfinite().all()
    nodes = [(0.0, 0.0), *curve.points[1::2]]
    assert curve(torch.tensor([x for x, _ in nodes], dtype=torch.float64)).tolist() == pytest.approx(
        [y for _, y in nodes]
    )


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_second_derivatives_of_a_curve_are_those_of_its_slope(curve: Curve):
    nodes = torch.tensor([0.0, *(x for x, _ in curve.points[1::2]), 1.0], dtype=torch.float64)
    inside = (nodes[:-1, None] + nodes.diff()[:, None] * torch.tensor([0.2, 0.5, 0.8])).flatten().requires_grad_(True)
    assert torch.autograd.gradcheck(curve, inside)
    assert torch.autograd.gradgradcheck(curve, inside)


def test_the_straight_curve_is_the_probability_itself():
    p = torch.linspace(0, 1, 101, dtype=torch.float64)
    for name in ("straight", "straight in two pieces"):
        torch.testing.assert_close(CURVES[name](p), p)


def test_a_curve_is_the_polynomial_of_its_points():
    t = torch.linspace(0, 1, 50, dtype=torch.float64)
    x, y = 2 * t * (1 - t) * 0.2 + t**2, 2 * t * (1 - t) * 0.9 + t**2
    torch.testing.assert_close(Curve(((0.2, 0.9),))(x), y)


@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_the_slope_of_a_curve_is_that_of_its_values(curve: Curve):
    p = torch.linspace(0.01, 0.99, 50, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(curve, (p,), eps=1e-7, atol=1e-4)


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        (((0.2, 0.3), (0.5, 0.6)), "2 points.*an odd number"),
        ((), "0 points"),
        (((0.2, 1.3),), "rises from"),
        (((0.5, 0.5), (0.4, 0.6), (0.7, 0.7)), "rises from"),
        (((0.0, 0.5), (0.0, 0.6), (0.7, 0.7)), "rises from"),
    ],
)
def test_points_that_make_no_curve_are_refused(points, problem):
    with pytest.raises(RequestError, match=problem):
        Curve(points)


@pytest.mark.parametrize("metric", SURROGATES)
@pytest.mark.parametrize("found", [False, True], ids=["straight", "published"])
def test_of_zeros_and_ones_it_is_one_minus_the_metric(metric: str, found: bool):
    # Every class is in the target, so that the means are over the same classes.
    target, shown = scene(0), scene(1)
    target[:, 2, 6:9] = 255
    measure = SegmentationMetric(metric, tolerance=1, ignore_index=255)
    value = measure.evaluate(measure.count(F.one_hot(shown, CLASSES).movedim(-1, 1), target))
    loss = get_published(metric) if found else AutoSegLoss(metric)
    assert loss_of(loss, hard(shown), target) == pytest.approx(1 - value, abs=1e-6)


def test_each_metric_has_a_surrogate_and_published_curves():
    assert set(SURROGATES) == set(PUBLISHED) == set(SEGMENTATION_METRICS)
    for metric, (_, operations) in SURROGATES.items():
        assert len(PUBLISHED[metric]) == len(operations)


def test_with_straight_curves_miou_is_the_jaccard_loss_of_segmentation_models_pytorch():
    losses = pytest.importorskip("segmentation_models_pytorch").losses
    theirs = losses.JaccardLoss("multiclass", from_logits=True)(logits(), scene())
    assert loss_of(AutoSegLoss("miou"), logits(), scene()) == pytest.approx(theirs.item(), rel=1e-6)


def test_by_hand():
    # Two positions of the classes 0 and 1, both p one quarter and three quarters; g(¼) = ⅓ and g(¾) = ⅞ by a curve of two lines.
    prediction, target = torch.tensor([[1.0, 3.0]]).log().repeat(2, 1).double(), torch.tensor([0, 1])
    lines = Curve(((0.125, 1 / 6), (0.25, 1 / 3), (0.25 + 0.75 / 2, 2 / 3)))
    quarter, most = 1 / 3, 1 / 3 + (2 / 3) * (0.5 / 0.75)
    assert loss_of(AutoSegLoss("gacc", (lines,)), prediction, target) == pytest.approx(1 - (quarter + most) / 2)
    # AND is the straight y·p. Class 0: ¼ / (1 + g(¼)); class 1: ¾ / (1 + g(¾)).
    loss = AutoSegLoss("miou", (Curve(), lines))
    expected = 1 - (0.25 / (1 + quarter) + 0.75 / (1 + most)) / 2
    assert loss_of(loss, prediction, target) == pytest.approx(expected)


def test_a_class_that_is_not_there_is_silent():
    target = scene().clamp(max=2)
    prediction = logits()
    for metric in ("miou", "macc", "bf1"):
        loss = RegionLoss(ActivatedBranch(activation="sigmoid"), AutoSegLoss(metric))
        (slope,) = torch.autograd.grad(loss(prediction, {"target": target}), prediction)
        assert not slope[:, 3].any()
        assert slope[:, 2].any()


def test_another_number_of_curves_and_an_unknown_metric_are_refused():
    with pytest.raises(RequestError, match="Found 1 curves; miou has 2: AND of intersection, OR of union"):
        AutoSegLoss("miou", (Curve(),))
    with pytest.raises(RequestError, match="Did you mean 'miou'"):
        AutoSegLoss("mioux")
