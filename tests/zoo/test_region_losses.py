"""The hand-written baselines: values by hand and by other packages, and what all of them promise."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import autoloss
from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.segmentation import digits
from autoloss.tasks.segmentation.digits import compose_scenes
from autoloss.tasks.segmentation.metrics import SegmentationMetric
from autoloss.zoo.region_losses import (
    RegionLoss,
    compute_border_proximity,
    compute_ssim,
    read_regions,
    weighted_cross_entropy,
)
from tests.paper.test_search_space import AreaBranch

CLASSES, SIDE = 4, 14
METRICS = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")
ENTRIES = {name: zoo.get_entry(name) for name in zoo.names()}
NAMES = [
    name for name, one in ENTRIES.items() if one.factory and (one.target, one.activation) == ("one_hot", "softmax")
]
OF_METRIC = [
    ("baseline/dice", "miou"),
    ("baseline/wce", "macc"),
    ("baseline/class_weighted_ce", "macc"),
    ("baseline/logit_adjusted_ce", "macc"),
    ("baseline/lovasz", "miou"),
    ("baseline/dpce", "miou"),
    ("baseline/ssim", "miou"),
    ("baseline/ce_ssim", "miou"),
    *((f"baseline/asl_{metric}", metric) for metric in METRICS),
]


def scene(seed: int = 0, count: int = 2) -> Tensor:
    """Background with one square of each other class; (N, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.zeros(count, SIDE, SIDE, dtype=torch.long)
    for image in target:
        for label, (row, column) in enumerate([(0, 1), (8, 0), (4, 8)], start=1):
            size = int(torch.randint(4, 7, (), generator=generator))
            image[row : row + size, column : column + size] = label
    return target


def logits(seed: int = 0, count: int = 2, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, CLASSES, SIDE, SIDE, generator=generator, dtype=dtype).requires_grad_(True)


def loss_of(name: str, prediction: Tensor, target: Tensor, **options) -> Tensor:
    return zoo.get(name).criterion(**options)(prediction, target)


def test_every_hand_written_loss_is_tested_here():
    assert {name for name, _ in OF_METRIC} == set(NAMES)


@pytest.mark.parametrize(("name", "metric"), OF_METRIC)
def test_descending_it_raises_its_metric_on_scenes_of_digits(name: str, metric: str):
    target = compose_scenes("train", 2, 0)[1].long()
    prediction = 0.1 * torch.randn(2, digits.CLASSES, 32, 32, generator=torch.Generator().manual_seed(0))
    criterion, measure = zoo.get(name).criterion(tolerance=1), SegmentationMetric(metric, tolerance=1, left_out=0)

    def score(raw: Tensor) -> float:
        return np.mean([measure(raw[[one]].softmax(dim=1), target[[one]]) for one in range(2)]).item()

    before, lost = score(prediction), criterion(prediction, target).item()
    for _ in range(40):
        prediction = prediction.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad(criterion(prediction, target), prediction)
        prediction = prediction - 0.5 * slope / slope.abs().max().clamp(min=1e-12)
    assert criterion(prediction, target).item() < lost
    assert score(prediction) > before + 0.8 * (1 - before)


@pytest.mark.parametrize("name", NAMES)
def test_ignored_pixels_are_out_entirely(name: str):
    prediction, target = logits(), scene()
    target[:, 3:7, 5:9] = 255
    found = loss_of(name, prediction, target, ignore_index=255, tolerance=1)
    (slope,) = torch.autograd.grad(found, prediction)
    assert not slope.movedim(1, -1)[target == 255].any()
    assert slope.movedim(1, -1)[target != 255].any()
    other = prediction.detach().clone()
    other[:, :, 3:7, 5:9] = (
        7 * torch.randn(other[:, :, 3:7, 5:9].shape, generator=torch.Generator().manual_seed(5)).double()
    )
    assert loss_of(name, other, target, ignore_index=255, tolerance=1).item() == pytest.approx(found.item(), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_that_is_ignored_whole_has_no_loss_and_no_gradient(name: str):
    prediction = logits()
    found = loss_of(name, prediction, torch.full((2, SIDE, SIDE), 255), ignore_index=255)
    (slope,) = torch.autograd.grad(found, prediction)
    assert found.item() == 0
    assert not slope.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("right", [True, False])
def test_the_gradient_of_a_sure_prediction_is_finite(name: str, right: bool):
    target = scene()
    shown = target if right else (target + 1) % CLASSES
    prediction = (200 * F.one_hot(shown, CLASSES).movedim(-1, 1).float()).requires_grad_(True)
    found = loss_of(name, prediction, target)
    (slope,) = torch.autograd.grad(found, prediction)
    assert math.isfinite(found.item())
    assert slope.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_target_as_prediction_has_less_loss_than_any_other(name: str):
    target = scene()
    sure = 40 * F.one_hot(target, CLASSES).movedim(-1, 1).double()
    best = loss_of(name, sure, target, tolerance=1).item()
    assert best == pytest.approx(0, abs=1e-6)
    assert loss_of(name, logits(), target, tolerance=1).item() > 0.1
    assert loss_of(name, sure.roll(1, dims=3), target, tolerance=1).item() > best + 0.01


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_it_never_runs_in_sixteen_bits(name: str, low: torch.dtype):
    prediction, target = logits().detach().to(low), scene()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss_of(name, prediction, target)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(loss_of(name, prediction.double(), target).item(), rel=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_it_sees_whole_regions_on_a_branch_that_trains_on_borders(name: str):
    prediction, target = logits(), scene()
    entry = zoo.get(name)
    edge, band, whole = (entry.criterion(target=encoding, tolerance=1) for encoding in ("edge", "band", "one_hot"))
    assert edge(prediction, target) == band(prediction, target) == whole(prediction, target)


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_space_are_positions_too(name: str):
    prediction = torch.randn(30, 3, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    found = loss_of(name, prediction, torch.arange(30) % 3)
    (slope,) = torch.autograd.grad(found, prediction)
    # Rows have no borders, so the two losses of borders are silent.
    silent = name in ("baseline/asl_biou", "baseline/asl_bf1")
    assert bool(slope.any()) is not silent


@pytest.mark.parametrize("name", NAMES)
def test_volumes_are_their_slices(name: str):
    generator = torch.Generator().manual_seed(0)
    slices, target = torch.randn(6, 3, 9, 8, generator=generator), torch.randint(3, (6, 9, 8), generator=generator)
    volumes = slices.unflatten(0, (2, 3)).movedim(1, 2), target.unflatten(0, (2, 3))
    assert volumes[0].shape == (2, 3, 3, 9, 8)
    torch.testing.assert_close(loss_of(name, *volumes), loss_of(name, slices, target))


def test_soft_dice_agrees_with_segmentation_models_pytorch():
    losses = pytest.importorskip("segmentation_models_pytorch").losses
    prediction, target = logits(), scene()
    theirs = losses.DiceLoss("multiclass", from_logits=True)(prediction, target)
    assert loss_of("baseline/dice", prediction, target).item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("classes", [CLASSES, 2])
@pytest.mark.parametrize("ignored", [False, True])
def test_lovasz_softmax_agrees_with_segmentation_models_pytorch_in_value_and_gradient(classes: int, ignored: bool):
    losses = pytest.importorskip("segmentation_models_pytorch").losses
    prediction, target = logits(dtype=torch.float32), scene().clamp(max=classes - 1)
    if ignored:
        target[:, :3] = 255
    theirs = losses.LovaszLoss("multiclass", ignore_index=255)(prediction, target)
    ours = loss_of("baseline/lovasz", prediction, target, ignore_index=255)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    slopes = [torch.autograd.grad(loss, prediction)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-5, atol=1e-9)


def test_lovasz_softmax_of_a_hard_prediction_is_one_minus_the_iou():
    target, shown = scene(0), scene(1)
    found = loss_of("baseline/lovasz", 200 * F.one_hot(shown, CLASSES).movedim(-1, 1).double(), target)
    metric = SegmentationMetric("miou")
    value = metric.evaluate(metric.count(F.one_hot(shown, CLASSES).movedim(-1, 1), target))
    assert found.item() == pytest.approx(1 - value, rel=1e-9)


def test_weighted_cross_entropy_with_given_weights_is_torchs():
    prediction, target = logits(), scene()
    target[:, :3] = 255
    weights = (0.5, 1.0, 3.0, 0.0)
    branch = ActivatedBranch(ignore_index=255)
    found = RegionLoss(branch, functools.partial(weighted_cross_entropy, weights=weights))(
        prediction, {"target": target}
    )
    theirs = F.cross_entropy(prediction, target, torch.tensor(weights, dtype=torch.float64), ignore_index=255)
    assert found.item() == pytest.approx(theirs.item(), rel=1e-9)


def test_weighted_cross_entropy_gives_each_class_of_the_batch_the_same_share():
    prediction, target = logits(), scene().clamp(max=2)
    own = F.cross_entropy(prediction, target, reduction="none")
    expected = np.mean([own[target == label].mean().item() for label in range(3)])
    assert loss_of("baseline/wce", prediction, target).item() == pytest.approx(expected, rel=1e-9)


def test_weights_for_other_classes_are_refused():
    loss = RegionLoss(ActivatedBranch(), functools.partial(weighted_cross_entropy, weights=(1.0, 2.0)))
    with pytest.raises(RequestError, match="2 class weights were given for 4 classes"):
        loss(logits(), {"target": scene()})


def test_distance_penalised_cross_entropy_by_hand():
    # Five positions of class 0 and one of class 1, all probabilities one half; d = 5, 4, 3, 2, 1 and 1.
    weights = [1, 1.25, 1.5, 1.75, 2, 2]
    found = loss_of("baseline/dpce", torch.zeros(1, 2, 1, 6), torch.tensor([[[0, 0, 0, 0, 0, 1]]]))
    assert found.item() == pytest.approx(math.log(2) * sum(weights) / 6)


def test_distance_penalised_cross_entropy_of_one_class_is_cross_entropy():
    prediction, target = logits(), torch.ones(2, SIDE, SIDE, dtype=torch.long)
    both = [loss_of(name, prediction, target).item() for name in ("baseline/dpce", "baseline/ce")]
    assert both[0] == pytest.approx(both[1])
    # What is ignored is a border.
    target[:, 0] = 255
    for divisor in ("all", "valid"):
        weighted, plain = (
            loss_of(name, prediction, target, ignore_index=255, divisor=divisor).item()
            for name in ("baseline/dpce", "baseline/ce")
        )
        assert plain < weighted < 2 * plain


def test_structural_similarity_agrees_with_torchmetrics_away_from_the_border():
    from torchmetrics.functional.image import structural_similarity_index_measure

    one, other = logits().softmax(dim=1).detach(), F.one_hot(scene(), CLASSES).movedim(-1, 1).double()
    inner = (..., slice(5, -5), slice(5, -5))
    _, theirs = structural_similarity_index_measure(one, other, data_range=1.0, return_full_image=True)
    torch.testing.assert_close(compute_ssim(one, other)[inner], theirs[inner])


def test_dissimilarity_by_hand():
    # Means and variances of constants under the part of the window that lies inside: a single position has its middle, w².
    middle = math.exp(0) / sum(math.exp(-(d**2) / 4.5) for d in range(-5, 6))
    w = middle**2
    p, y = 0.5 * w, w
    variances, covariance = 0.25 * w - p**2 + w - y**2, 0.5 * w - p * y
    first = (2 * p * y + 1e-4) / (p**2 + y**2 + 1e-4) * (2 * covariance + 9e-4) / (variances + 9e-4)
    # The other class: p is one half, y is 0.
    second = 1e-4 / (p**2 + 1e-4) * 9e-4 / (0.25 * w - p**2 + 9e-4)
    found = loss_of("baseline/ssim", torch.zeros(1, 2, dtype=torch.float64), torch.tensor([0]))
    assert found.item() == pytest.approx(1 - (first + second) / 2, rel=1e-9)


def test_absolute_error_with_ssim_does_not_depend_on_the_unit_of_an_image():
    generator = torch.Generator().manual_seed(0)
    target = torch.rand(2, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    target[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    prediction = (target + 0.1 * torch.randn(target.shape, generator=generator, dtype=torch.float64)).requires_grad_()
    branch = ActivatedBranch(activation="none")
    loss = ENTRIES["baseline/l1_ssim"].make_branch_loss("main", branch)
    found = loss(prediction, {"target": target})
    error = (prediction - target).abs().mean()
    similar = compute_ssim(prediction, target).mean()
    assert found.item() == pytest.approx(0.84 * (1 - similar.item()) + 0.16 * error.item())
    found.backward()
    assert prediction.grad is not None
    assert prediction.grad.isfinite().all()
    bytes_of_it = [255 * values.detach() - 30 for values in (prediction, target)]
    assert loss(bytes_of_it[0], {"target": bytes_of_it[1]}).item() == pytest.approx(found.item())
    assert loss(target, {"target": target}).item() == pytest.approx(0, abs=1e-9)
    # Equal targets have no range, and ignored ones do not widen it.
    flat = loss(prediction.detach(), {"target": torch.zeros_like(target)})
    assert flat.item() < 2
    ignoring = ENTRIES["baseline/l1_ssim"].make_branch_loss("main", ActivatedBranch(activation="none", ignore_index=-9))
    shifted = [100 + values.detach() for values in (prediction, target)]
    assert ignoring(shifted[0], {"target": shifted[1]}).item() == pytest.approx(found.item())
    shifted[1][0, 0, -1] = -9
    assert ignoring(shifted[0], {"target": shifted[1]}).item() == pytest.approx(found.item(), rel=0.2)


def test_ce_ssim_is_the_sum_of_both():
    target = scene()
    target[:, 3] = 255
    for divisor in ("all", "valid"):
        ce, ssim, both = (
            loss_of(f"baseline/{name}", logits(), target, ignore_index=255, divisor=divisor).item()
            for name in ("ce", "ssim", "ce_ssim")
        )
        assert both == pytest.approx(ce + ssim)


def test_in_a_task_it_brings_its_branchs_weight():
    prediction, context = logits(), {"target": scene()}
    for name in NAMES:
        losses = [
            autoloss.bind(zoo.resolve(name, {"main": branch})[1], {"main": branch})["main"](prediction, context).item()
            for branch in (ActivatedBranch(), ActivatedBranch(weight=3.0))
        ]
        assert losses[1] == pytest.approx(3 * losses[0])


def test_a_branch_of_boxes_is_refused():
    with pytest.raises(RequestError, match=r"branch has (the leaves )?i, u, e"):
        zoo.resolve("baseline/lovasz", {"reg": AreaBranch()})


def test_regions_are_zero_where_nothing_counts():
    target = scene()
    target[:, 0] = 255
    seen = read_regions(ActivatedBranch(ignore_index=255, encoding="edge", tolerance=2), logits(), {"target": target})
    assert not seen.p[:, :, 0].any()
    assert not seen.counted[:, :, 0].any()
    assert torch.equal(seen.y[:, :, 1:].argmax(dim=1), target[:, 1:])
    assert (seen.divisor, seen.tolerance) == (2 * SIDE * SIDE, 2)


def test_nearness_falls_from_the_border_to_the_deepest_point_of_each_class():
    y = torch.zeros(1, 2, 1, 6)
    y[0, 0, 0, :2], y[0, 1, 0, 2:5] = 1, 1
    # The last position is ignored: it ends the second region, whose middle is 2 away from both ends.
    assert compute_border_proximity(y).tolist() == [[[[0, 1, 0, 0, 0, 0]], [[0, 0, 1, 0, 1, 0]]]]


def test_nearness_of_an_image_of_one_class_is_nothing():
    assert not compute_border_proximity(torch.ones(1, 1, 3, 3)).any()


def test_weights_and_priors_of_the_training_data_are_those_of_torch():
    generator = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.7, 0.2, 0.1, 0.1], dtype=torch.float64)
    prediction = torch.randn(6, CLASSES, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 0, 1, 2, 0, 1])
    # The training data lack the last class, which then has the share of the rarest.
    branch = ActivatedBranch(shares=(0.7, 0.2, 0.1, 0.0))
    found = {
        name: zoo.get_entry(f"baseline/{name}").factory(branch)(prediction, {"target": target})
        for name in ("class_weighted_ce", "logit_adjusted_ce")
    }
    torch.testing.assert_close(found["class_weighted_ce"], F.cross_entropy(prediction, target, 1 / shares))
    torch.testing.assert_close(found["logit_adjusted_ce"], F.cross_entropy(prediction + shares.log(), target))
    own = zoo.get("baseline/class_weighted_ce").criterion(shares=branch.shares)
    torch.testing.assert_close(own(prediction, target), found["class_weighted_ce"])
    one = ActivatedBranch(activation="sigmoid", shares=(0.9, 0.1))
    logits, answers = prediction[:, :1], (target == 2).double()[:, None]
    weighted = zoo.get_entry("baseline/class_weighted_bce").factory(one)(logits, {"target": answers})
    expected = F.binary_cross_entropy_with_logits(logits, answers, pos_weight=torch.tensor(9.0), reduction="sum")
    torch.testing.assert_close(weighted, expected / (5 + 9))
    several = ActivatedBranch(activation="sigmoid", shares=(0.5, 0.1, 0.9, 0.0))
    labels = (torch.rand(6, CLASSES, generator=generator) < 0.5).double() * torch.tensor([1.0, 1, 1, 0])
    found = zoo.get_entry("baseline/class_weighted_bce").factory(several)(prediction, {"target": labels})
    parts = torch.tensor([0.5, 0.1, 0.9, 0.1]).double()
    weights = torch.where(labels > 0, 1 / parts, 1 / (1 - parts))
    each = F.binary_cross_entropy_with_logits(prediction, labels, reduction="none")
    torch.testing.assert_close(found, (weights * each).sum() / weights.sum())
    with pytest.raises(RequestError, match="ignore_index is True"):
        ActivatedBranch(ignore_index=True)
    with pytest.raises(RequestError, match="weight is -1"):
        ActivatedBranch(weight=-1)
    with pytest.raises(RequestError, match="from 0 to 1"):
        ActivatedBranch(shares=(-0.5, 1.5))
    with pytest.raises(RequestError, match="shares of 2 classes; expected 4"):
        zoo.get("baseline/class_weighted_ce").criterion(shares=(0.5, 0.5))(prediction, target)
    assert ActivatedBranch(ignore_index=-1.0).form().ignore_index == -1


@pytest.mark.parametrize("of_training_data", [False, True])
def test_weights_of_labels_are_those_of_the_rows_where_they_are_not_missing(of_training_data: bool):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 3, generator=generator)
    labels = (inputs + torch.tensor([0.0, 0.5, -1.0]) > 0).float()
    labels[torch.rand(200, 3, generator=generator) < 0.25] = -1
    known, yes = (labels >= 0).double(), labels.clamp(min=0).double()
    shares = yes.sum(0) / known.sum(0)
    branch: autoloss.Branch = ActivatedBranch(activation="sigmoid", ignore_index=-1)
    if of_training_data:
        pair, reading = (inputs, labels), autoloss.Data(ignore_index=-1)
        made = autoloss.SupervisedTask(
            lambda: torch.nn.Linear(3, 3), pair, pair, "sigmoid", lambda p, y: 0.5, data=reading
        )
        branch = made.branches["main"]
        assert branch.shares == pytest.approx(shares.tolist())
    prediction = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    found = zoo.get_entry("baseline/class_weighted_bce").factory(branch)(prediction, {"target": labels})
    weights = known * (yes / shares + (1 - yes) / (1 - shares))
    terms = F.binary_cross_entropy_with_logits(prediction, yes, reduction="none")
    assert found.item() == pytest.approx(((weights * terms).sum() / weights.sum()).item(), rel=1e-6)
