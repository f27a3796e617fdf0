"""The best constant prediction: what a metric gives to a network that ignores its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.task import Task
from tests.tasks.toy import TwoHeadsTask, accuracy

ROWS = 50


def task(network: Callable[[], nn.Module], target: Tensor, activation: str, metric, **others) -> SupervisedTask:
    pair = torch.randn(len(target), 4, generator=torch.Generator().manual_seed(0)), target
    data = Data(rows_per_sample=16, **others)
    return SupervisedTask(network, pair, pair, activation, metric, data=data)


def f1(prediction: Tensor, target: Tensor) -> float:
    found = (prediction > 0.5) if prediction.shape == target.shape else prediction.argmax(1) == 1
    hits = (found & (target == 1)).sum()
    return (2 * hits / (found.sum() + (target == 1).sum()).clamp(min=1)).item()


CLASSES = (torch.arange(ROWS) % 10 > 6).long()
"""Of ten, three are of the class 1."""


def test_of_classes_it_is_the_most_frequent_one_or_the_one_that_the_metric_wants():
    assert task(lambda: nn.Linear(4, 3), CLASSES, "softmax", accuracy).constant_score() == pytest.approx(0.7)
    assert task(lambda: nn.Linear(4, 2), CLASSES, "softmax", f1).constant_score() == pytest.approx(0.6 / 1.3)
    ignored = torch.where(torch.arange(ROWS) % 10 > 3, 255, CLASSES)

    def of_counted(prediction: Tensor, target: Tensor) -> float:
        return accuracy(prediction[target != 255], target[target != 255])

    assert task(lambda: nn.Linear(4, 2), ignored, "softmax", of_counted, ignore_index=255).constant_score() == 1.0


def test_missing_labels_are_no_part_of_it():
    target = torch.stack([CLASSES, 1 - CLASSES], dim=1).float()
    target[torch.arange(ROWS) % 10 < 7, 0] = -1

    def of_known(prediction: Tensor, target: Tensor) -> float:
        return accuracy_of_labels(prediction[target != -1], target[target != -1])

    def accuracy_of_labels(prediction: Tensor, target: Tensor) -> float:
        return ((prediction > 0.5) == (target == 1)).double().mean().item()

    made = task(lambda: nn.Linear(4, 2), target, "sigmoid", of_known, ignore_index=-1)
    assert made.constant_score() == pytest.approx((15 + 35) / 65)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("flat", [False, True])
def test_of_one_logit_it_is_always_yes_or_always_no(activation: str, flat: bool):
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)) if flat else nn.Linear(4, 1)

    target = CLASSES.float() if flat else CLASSES.float()[:, None]
    assert task(network, target, activation, f1).constant_score() == pytest.approx(0.6 / 1.3)

    def brier(prediction: Tensor, target: Tensor) -> float:
        return -(prediction - target).square().mean().item()

    assert task(network, target, activation, brier).constant_score() == pytest.approx(-0.21)


def test_of_values_it_is_the_mean_or_a_quantile():
    target = torch.cat([torch.zeros(40), torch.full((10,), 100.0)])[:, None]
    for power, best in ((2, -1600.0), (1, -20.0)):

        def metric(prediction: Tensor, target: Tensor, power: int = power) -> float:
            return -(prediction - target).abs().pow(power).mean().item()

        assert task(lambda: nn.Linear(4, 1), target, "none", metric).constant_score() == pytest.approx(best)


def test_of_pixels_it_is_one_class_for_every_position_of_pictures_of_any_size():
    sizes = [(1, 4 + row % 3, 5) for row in range(12)]
    items = [(torch.randn(size), (torch.arange(math.prod(size)) < 4).long().reshape(size[1:])) for size in sizes]
    branch = ActivatedBranch(ignore_index=None, encoding="edge")
    data = Data(collate_fn=lambda items: tuple(torch.stack(parts) for parts in zip(*items, strict=True)))
    made = SupervisedTask(lambda: nn.Conv2d(1, 2, 1), items[::3], items[::3], metric=accuracy, branch=branch, data=data)
    assert made.constant_score() == pytest.approx(0.8)


def test_it_is_unknown_where_the_metric_is_undefined_or_the_task_does_not_tell():
    def undefined(prediction: Tensor, target: Tensor) -> float:
        return math.nan if len(prediction.unique()) < 8 else accuracy(prediction, target)

    assert task(lambda: nn.Linear(4, 2), CLASSES, "softmax", undefined).constant_score() is None
    two_heads: Task = TwoHeadsTask()
    assert two_heads.constant_score() is None
