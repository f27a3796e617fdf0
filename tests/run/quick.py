"""A task whose trainings take milliseconds, with everything a history must cope with: divergence, equal losses, delays."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.task import Task
from autoloss.training.loop import Execution
from autoloss.training.training import Diverged, Observe, Scored, Training

ROWS, CLASSES = 6, 3
PAPER = {
    "search.proposer": "evolution",
    "evolution.tournament": 0.05,
    "offspring.fresh": 0.5,
    "offspring.sum": 0.0,
    "offspring.refine": 0.0,
    "search.rungs": (1.0,),
    "search.scale": False,
    "rejection.admit_standard": False,
    "evolution.start": (),
    "search.promote_start": 0.0,
    "ladder.share": 0.0,
    "evolution.valid_draws": False,
}
"""What the recipe of the paper stands for, where the recipe itself cannot be named."""
SETTINGS = {
    **PAPER,
    "evolution.initial": 5,
    "rejection.steps": 15,
    "rejection.learning_rate": 0.1,
    "rejection.samples": 2,
    "rejection.threshold": 0.5,
}
"""Make a search quick: about one simulated candidate in three passes."""


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(1) == target).double().mean().item()


class QuickTask(Task):
    """'Trains' by looking at the criterion's gradient on a fixed batch; a hash decides which losses diverge.

    Args:
        branches: Names of the branches; each is a small classification.
        delay_seconds: Trainings sleep up to so long, each for a time of its own.
        diverging: One loss in so many diverges.
    """

    name = "quick"
    standard = {"main": "baseline/ce"}

    def __init__(self, branches: Sequence[str] = ("main",), delay_seconds: float = 0.0, diverging: int = 5) -> None:
        self._branches = {
            name: ActivatedBranch(activation="softmax", measure=accuracy, channels=CLASSES) for name in branches
        }
        self._delay_seconds = delay_seconds
        self._diverging = diverging

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        generator = torch.Generator().manual_seed(seed)
        return {name: [_sample(generator) for _ in range(count)] for name in self._branches}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        generator = torch.Generator().manual_seed(training.seed % 2**32 + (training.split == "test"))
        total = 0.0
        for name in self._branches:
            sample = _sample(generator)
            prediction = sample.prediction.requires_grad_(True)
            value = criterion[name](prediction, sample.context)
            (slope,) = torch.autograd.grad(value, prediction)
            total += math.tanh(float((slope * sample.context["towards"]).sum()))
        digest = hashlib.blake2b(f"{total:.9e}".encode(), digest_size=2).digest()
        time.sleep(self._delay_seconds * digest[1] / 255)
        if not math.isfinite(total):
            return Diverged(1, "loss is not finite")
        if digest[0] % self._diverging == 0:
            return Diverged(2, "a hash said so")
        return Scored(total, {"digest": digest[0] / 255}, ((1, total),))


def _sample(generator: torch.Generator) -> Sample:
    prediction = 0.1 * torch.randn(ROWS, CLASSES, 1, 1, generator=generator)
    towards = torch.randn(ROWS, CLASSES, 1, 1, generator=generator)
    # Targets that the prediction does not hit yet: there is always something to gain.
    target = (prediction[:, :, 0, 0].argmax(1) + 1) % CLASSES
    return Sample(prediction, {"target": target, "towards": towards})


TASK = QuickTask()
