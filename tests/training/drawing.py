"""A task whose training draws from every global generator: augmentation, dropout, batch statistics, Adam's memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from autoloss.space.branch import Criterion
from autoloss.space.loss import Loss, bind
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.checkpoints import Checkpoints
from autoloss.training.loop import Execution
from autoloss.training.recipe import Recipe

STEPS = 24


class Augmented(Dataset):
    """Rows that are shown with another error each time."""

    def __init__(self, count: int, seed: int, error: float) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(count, 4, generator=generator)
        self.error = error

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        drawn = random.random() + float(np.random.random()) + torch.rand(4)
        return self.inputs[index] + self.error * drawn, int(self.inputs[index, 0] > 0)


def certainty(prediction: Tensor, target: Tensor) -> float:
    """Return the mean probability of the right class: every bit of every weight shows in it."""
    return prediction.double().gather(1, target[:, None]).mean().item()


class Noise(nn.Module):
    """Draws from the generators that are not torch's, as somebody's layer may."""

    def forward(self, features: Tensor) -> Tensor:
        return features * (1 + 0.1 * random.random() * float(np.random.normal())) if self.training else features


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), Noise(), nn.Linear(8, 2))


def drawing_task() -> SupervisedTask:
    return SupervisedTask(
        network,
        Augmented(32, 0, 0.5),
        Augmented(32, 1, 0.0),
        "softmax",
        certainty,
        data=Data(rows_per_sample=8),
        recipe=Recipe(epochs=6, batch_size=8, optimizer="adam", learning_rate=0.02),
    )


def kept_in(directory: Path, due: Callable[[int], bool] = lambda step: step % 5 == 0, **belongs: str) -> Execution:
    """Return an execution that keeps checkpoints and the trained network in a folder."""
    return Execution(checkpoints=Checkpoints(directory=directory, is_due=due, metadata=belongs))


def cross_entropy(task: SupervisedTask) -> Criterion:
    return bind(Loss("-y * log(p)"), task.branches)
