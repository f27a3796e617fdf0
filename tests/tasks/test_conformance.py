"""Every kind of task passes the conformance suite."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from autoloss.run.resolving import freeze_branches
from autoloss.tasks import get
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.task import Task
from autoloss.training.recipe import Recipe
from tests.tasks import conformance
from tests.tasks.toy import TwoHeadsTask, accuracy


def random_rows() -> Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(120, 5, generator=generator)
    rows = (inputs, (inputs[:, 0] > 0).long())
    train, valid, test = ([part[start : start + 40] for part in rows] for start in (0, 40, 80))
    return SupervisedTask(
        lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2)),
        train,
        valid,
        "softmax",
        accuracy,
        test=test,
        data=Data(rows_per_sample=16),
        also={"agreement": lambda prediction, target: (prediction[:, 1] * target).mean()},
        recipe=Recipe(epochs=3, batch_size=8, optimizer="adam", learning_rate=0.01),
    )


def tiny_digits(metric: str) -> Task:
    return get("digits-seg", metric, train=64, valid=16, test=16, epochs=1, batch_size=16)


def tiny_detection(name: str) -> Task:
    # Four steps. Masks take most of an evaluation.
    measured = 4 if name == "digits-det" else 2
    return get(name, valid=measured, test=measured, train=4, epochs=2, batch_size=2, size=64, learning_rate=1e-5)


def tiny_figures() -> Task:
    return get("figures-pose", size=64, train=10, valid=4, test=4, epochs=2, batch_size=6, learning_rate=1e-3)


TASKS: dict[str, Callable[[], Task]] = {
    "two-heads": TwoHeadsTask,
    "rows": random_rows,
    "digits-seg": functools.partial(tiny_digits, "miou"),
    "digits-seg bf1": functools.partial(tiny_digits, "bf1"),
    "two-heads, one frozen": lambda: freeze_branches(TwoHeadsTask(), {"place": ""}),
    "digits-det": functools.partial(tiny_detection, "digits-det"),
    "digits-ins": functools.partial(tiny_detection, "digits-ins"),
    "figures-pose": tiny_figures,
}


@pytest.fixture(scope="module", params=TASKS, ids=str)
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]()


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim: Callable[[Task], None], task: Task) -> None:
    claim(task)
