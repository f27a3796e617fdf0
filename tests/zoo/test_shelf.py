"""The shelf: every loss is the closed form of its source, written in torch, and a search starts from those that fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss import zoo
from autoloss.comparison.baselines import baselines
from autoloss.run.request import make_request
from autoloss.run.starting_losses import name_losses, parse_starting_losses
from autoloss.space.form import Activation
from autoloss.space.operators import OPERATORS
from tests.tasks.toy import TwoHeadsTask


def share(y: Tensor) -> Tensor:
    return y.mean(dim=0, keepdim=True)


def cross_entropy(y: Tensor, p: Tensor) -> Tensor:
    return -y * p.log()


def binary(y: Tensor, p: Tensor, yes: Tensor | float = 1.0, no: Tensor | float = 1.0) -> Tensor:
    return -(y * p.log() * yes + (1 - y) * (1 - p).log() * no)


def dice(y: Tensor, p: Tensor) -> Tensor:
    return ((y * p).sum(0) / (y + p).sum(0)).expand_as(y)


def tversky(y: Tensor, p: Tensor) -> Tensor:
    right, wrong, missed = (y * p).sum(0), ((1 - y) * p).sum(0), (y * (1 - p)).sum(0)
    return (right / (right + wrong / 3 + 2 * missed / 3)).expand_as(y) / 3


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "balanced_ce": lambda y, p: cross_entropy(y, p) / share(y),
    "root_balanced_ce": lambda y, p: cross_entropy(y, p) / share(y).sqrt(),
    "effective_ce": lambda y, p: cross_entropy(y, p) / (8 * share(y)).tanh(),
    "root_balanced_focal": lambda y, p: (1 - p) ** 2 * cross_entropy(y, p) / share(y).sqrt(),
    "brier": lambda y, p: (y - p) ** 2,
    "absolute": lambda y, p: -y * p,
    # (1 − p^q) / q at q = 1/2, less its constant and halved.
    "generalized_ce": lambda y, p: y * ((1 - p**0.5) / 0.5) / 2 - y,
    "generalized_bce": lambda y, p: -(y * p**0.5 + (1 - y) * (1 - p) ** 0.5),
    "dice": lambda y, p: -dice(y, p),
    "tversky": lambda y, p: -tversky(y, p),
    "dice_ce": lambda y, p: cross_entropy(y, p) - dice(y, p),
    "smoothed_ce": lambda y, p: cross_entropy(0.9 * y + 0.1 / y.shape[1], p),
    "balanced_bce": lambda y, p: binary(y, p, 1 / share(y), 1 / share(1 - y)),
    "root_balanced_bce": lambda y, p: binary(y, p, share(y) ** -0.5, share(1 - y) ** -0.5),
    "effective_bce": lambda y, p: binary(y, p, 1 / (8 * share(y)).tanh(), 1 / (8 * share(1 - y)).tanh()),
    "focal_bce": lambda y, p: binary(y, p, (1 - p) ** 2, p**2),
    "brier_bce": lambda y, p: (y - p) ** 2,
    "root_balanced_dice": lambda y, p: -dice(y, p) / share(y).sqrt(),
    "root_balanced_tversky": lambda y, p: -tversky(y, p) / share(y).sqrt(),
    "root_balanced_dice_bce": lambda y, p: -dice(y, p) / share(y).sqrt(),
    "root_balanced_tversky_bce": lambda y, p: -tversky(y, p) / share(y).sqrt(),
    "dice_bce": lambda y, p: -dice(y, p),
    "tversky_bce": lambda y, p: -tversky(y, p),
    "dice_with_bce": lambda y, p: binary(y, p) - dice(y, p),
    "absolute_error": lambda y, p: (p - y).abs(),
    "pseudo_huber": lambda y, p: (1 + (p - y) ** 2).sqrt(),
    "cauchy": lambda y, p: (1 + (p - y) ** 2).log(),
    "welsch": lambda y, p: -torch.exp(-((p - y) ** 2)),
    "log_absolute": lambda y, p: (1 + (p - y).abs()).log(),
    "euclidean": lambda y, p: ((p - y) ** 2).mean(1, keepdim=True).sqrt().expand_as(p),
    "cosine": lambda y, p: -torch.nn.functional.cosine_similarity(p, y)[:, None].expand_as(p),
    "absolute_percentage": lambda y, p: ((p - y) / (y + 1e-12)).abs(),
    "log_ratio": lambda y, p: (p.log() - torch.where(y > 0, y.log(), 0)).abs(),
    "symmetric_percentage": lambda y, p: (p - y).abs() / (p + y),
    "quantile_25": lambda y, p: torch.maximum((y - p) / 4, 3 * (p - y) / 4),
    "quantile_75": lambda y, p: torch.maximum(3 * (y - p) / 4, (p - y) / 4),
    "weighted_squares": lambda y, p: (1 + y) * (p - y) ** 2,
    "poisson": lambda y, p: torch.nn.functional.poisson_nll_loss(p, y, log_input=False, eps=0.0, reduction="none"),
    "squared_log": lambda y, p: (p.log1p() - y.log1p()) ** 2,
    # Of pairs y is 1 everywhere, and w a weight; of differences p is any number.
    "pair_exponential": lambda y, p: y * (1 / p - 1),
    "pair_sigmoid": lambda y, p: -y * p,
    "pair_brier": lambda y, p: (y - p) ** 2,
    "pair_focal": lambda y, p: (1 - p) ** 2 * cross_entropy(y, p),
    "pair_weighted_sigmoid": lambda y, p: -y * p,
    "difference_logistic": lambda y, p: y * torch.nn.functional.softplus(-p),
    "difference_exponential": lambda y, p: y * (-p).exp(),
    "difference_square": lambda y, p: (y - p) ** 2,
    "difference_hinge": lambda y, p: 2 * (y - p).clamp(min=0),
}


def test_every_loss_of_the_shelf_has_its_closed_form_here():
    assert {f"shelf/{name}" for name in FORMS} == {entry.name for entry in zoo.SHELF}


@pytest.mark.parametrize("entry", zoo.SHELF, ids=lambda entry: entry.name)
def test_a_loss_is_what_its_source_says(entry: zoo.Entry):
    generator = torch.Generator().manual_seed(0)
    y = torch.nn.functional.one_hot(torch.arange(12) % 3 // 2 + torch.arange(12) % 2, 3).double()
    p = torch.rand(12, 3, generator=generator, dtype=torch.float64).clamp(0.05, 0.95)
    expected = FORMS[entry.name.removeprefix("shelf/")](y, p)
    leaves = {"y": y[:, :, None, None], "p": p[:, :, None, None], "w": y[:, :, None, None]}
    found = autoloss.parse(entry.formula).evaluate(leaves)[:, :, 0, 0]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_a_search_starts_from_the_standard_loss_and_all_that_fit(activation: Activation):
    values = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    pair = values, values.argmax(1) if activation == "softmax" else (values > 0).float()
    task = autoloss.SupervisedTask(lambda: nn.Linear(3, 3), pair, pair, activation, lambda p, y: p.mean().item())
    found = list(parse_starting_losses(name_losses(["shelf"]), task, OPERATORS, 40)[0].values())
    assert found[0] == task.standard["main"]
    fitting = [
        one.name for one in zoo.SHELF if one.activation == activation and one.positive in ("", "several outputs")
    ]
    assert found[1:] == fitting


@pytest.mark.parametrize(
    ("lowest", "last", "expected"), [(0, nn.Softplus(), True), (-1, nn.Softplus(), False), (0, nn.Identity(), False)]
)
def test_losses_of_counts_fit_positive_predictions_of_targets_that_are_not_negative(lowest, last, expected):
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    pair = inputs, torch.arange(lowest, 64 + lowest).float()[:, None]
    task = autoloss.SupervisedTask(
        lambda: nn.Sequential(nn.Linear(3, 1), last), pair, pair, "none", lambda p, y: p.mean().item()
    )
    found = list(parse_starting_losses(name_losses(["shelf"]), task, OPERATORS, 40)[0].values())
    assert ({"shelf/poisson", "shelf/squared_log"} <= set(found)) is expected
    assert ("Poisson loss" in [one.label for one in baselines(task)]) is expected


@pytest.mark.parametrize("outputs", [1, 2])
def test_losses_of_vectors_fit_several_outputs_alone(outputs: int):
    pair = torch.randn(64, 3), torch.randn(64, outputs)
    task = autoloss.SupervisedTask(
        lambda: nn.Linear(3, outputs), pair, pair, "none", lambda p, y: -(p - y).abs().mean().item()
    )
    found = set(parse_starting_losses(name_losses(["shelf"]), task, OPERATORS, 40)[0].values())
    assert ({"shelf/euclidean", "shelf/cosine"} <= found) is (outputs == 2)
    assert ("Euclidean distance" in [one.label for one in baselines(task)]) is (outputs == 2)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1,)])
def test_structural_similarity_is_a_baseline_of_images_of_values_alone(shape: tuple[int, ...]):
    pair = torch.rand(16, *shape), torch.rand(16, *shape)
    make = (lambda: nn.Conv2d(1, 1, 3, padding=1)) if len(shape) == 3 else (lambda: nn.Linear(1, 1))
    task = autoloss.SupervisedTask(make, pair, pair, "none", lambda p, y: -(p - y).abs().mean().item())
    assert ("absolute error with SSIM" in [one.label for one in baselines(task)]) is (len(shape) == 3)


@pytest.mark.parametrize("lowest", [0.5, 0.0, -1.0])
def test_the_percentage_error_fits_positive_targets_alone(lowest):
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    pair = inputs, torch.arange(64).float()[:, None] + lowest
    task = autoloss.SupervisedTask(lambda: nn.Linear(3, 1), pair, pair, "none", lambda p, y: p.mean().item())
    found = parse_starting_losses(name_losses(["shelf"]), task, OPERATORS, 40)[0].values()
    assert ("shelf/absolute_percentage" in found) is (lowest > 0)
    assert ("absolute percentage error" in [one.label for one in baselines(task)]) is (lowest > 0)
    positive = autoloss.SupervisedTask(
        lambda: nn.Sequential(nn.Linear(3, 1), nn.Softplus()), pair, pair, "none", lambda p, y: p.mean().item()
    )
    relative = {"shelf/log_ratio", "shelf/symmetric_percentage"}
    assert {one.loss for one in baselines(task)}.isdisjoint(relative)
    assert ({one.loss for one in baselines(positive)} >= relative) is (lowest > 0)


def test_the_default_starts_from_the_shelf_the_paper_and_none_from_nothing():
    starts = {
        name: make_request("tabular", options={"data": "iris"}, **given).configuration.evolution.start
        for name, given in {
            "default": {},
            "paper": {"recipe": "paper"},
            "none": {"start": ["none"]},
        }.items()
    }
    assert len(starts["default"]) == 14
    assert starts["paper"] == starts["none"] == ()


def test_several_branches_get_a_loss_of_the_shelf_on_one_at_a_time():

    task = TwoHeadsTask()
    found = parse_starting_losses(name_losses(["shelf"]), task, OPERATORS, 100)[0]
    assert len(found) > len(task.branches)
    assert all(set(loss) == set(task.branches) for loss in found)


@pytest.mark.parametrize(("activation", "channels", "suffix"), [("softmax", 2, ""), ("sigmoid", 1, "_bce")])
def test_over_the_root_of_its_share_a_region_is_found_that_a_large_background_hides(
    activation: Activation, channels: int, suffix: str
):
    generator = torch.Generator().manual_seed(1)
    target = torch.zeros(48, 24, 24, dtype=torch.long)
    for image, (row, column) in enumerate(torch.randint(2, 20, (48, 2), generator=generator).tolist()):
        target[image, row : row + 3, column : column + 2] = 1
    images = (target + 0.5 * torch.randn(target.shape, generator=generator))[:, None]

    def measure_dice(loss: str) -> float:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.Conv2d(8, channels, 3, padding=1))
        optimizer = torch.optim.Adam(network.parameters(), 0.01)
        criterion = zoo.get(f"shelf/{loss}{suffix}").criterion(activation=activation)
        for _ in range(60):
            optimizer.zero_grad()
            criterion(network(images), target).backward()
            optimizer.step()
        raw = network(images)
        found = raw.argmax(dim=1) if channels == 2 else (raw[:, 0] > 0).long()
        return float(2 * (found * target).sum() / (found + target).sum())

    for loss in ("dice", "tversky"):
        assert measure_dice(f"root_balanced_{loss}") > measure_dice(loss) + 0.1
