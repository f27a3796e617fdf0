"""A task whose trainings take a millisecond and leave a trace: what a search survives shows in which of them ran, and how often."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from autoloss import recipes
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.task import Task
from autoloss.training.loop import Execution
from autoloss.training.training import Diverged, Observe, Scored, Training

ROWS, CLASSES = 6, 3
DIVERGING = 6
"""One loss in so many diverges."""
SETTINGS = {
    "search.proposer": "evolution",
    "search.rungs": (1.0,),
    "evolution.initial": 4,
    "rejection.steps": 15,
    "rejection.learning_rate": 0.1,
    "rejection.samples": 2,
    "rejection.threshold": 0.5,
    "final.confirm": 2,
    "final.confirm_seeds": 2,
    "final.finalists": 1,
    "final.finalist_seeds": 1,
    "final.compare": 1,
    "final.compare_seeds": 1,
}
"""Make a search quick: about one simulated candidate in three passes."""
BY_DEFAULT = {
    **SETTINGS,
    **recipes.DEFAULT,
    # The toy's searches are small: more of them are promoted, and chosen from fewer.
    "search.rungs": (0.5, 1.0),
    "search.promote": 0.25,
    "search.pool": 2,
}
"""The same with all that searches do by default."""
TRACE, HOLD = "TOY_TRACE", "TOY_HOLD"
"""Variables: a file that every training is written to; a file that trainings wait for."""


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(1) == target).double().mean().item()


class Toy(Task):
    """'Trains' by looking at the criterion's value and gradient on a fixed batch; a hash decides which losses diverge."""

    name = "toy"
    shortens = True
    standard = {"main": "baseline/ce"}

    def __init__(self) -> None:
        self._branch = ActivatedBranch(activation="softmax", measure=accuracy, channels=CLASSES)

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {"main": self._branch}

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        generator = torch.Generator().manual_seed(seed)
        return {"main": [_sample(generator) for _ in range(count)]}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        sample = _sample(torch.Generator().manual_seed(training.seed % 2**32 + (training.split == "test")))
        prediction = sample.prediction.requires_grad_(True)
        value = criterion["main"](prediction, sample.context)
        (slope,) = torch.autograd.grad(value, prediction)
        total = math.tanh(float((slope * sample.context["towards"]).sum()))
        # A short training comes to something else, though not in another order.
        total *= 1 - (1 - training.fidelity) / 4
        mark = _mark(float(value.detach()), total, training.seed, training.split)
        _trace(f"begin {mark}")
        _hold()
        outcome = _outcome(total, mark)
        _trace(f"end {mark}")
        return outcome


def _outcome(total: float, mark: int) -> Scored | Diverged:
    if not math.isfinite(total) or mark % DIVERGING == 0:
        return Diverged(2, f"mark {mark}")
    return Scored(total, {"mark": float(mark)}, ((1, total),))


def _mark(value: float, total: float, seed: int, split: str) -> int:
    """Return a number, exact as a float, that tells trainings apart."""
    text = f"{value!r} {total!r} {seed} {split}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest())


def _trace(text: str) -> None:
    if path := os.environ.get(TRACE):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(file, f"{text}\n".encode())
        os.close(file)


def _hold() -> None:
    if path := os.environ.get(HOLD):
        while not Path(path).exists():
            time.sleep(0.005)


def _sample(generator: torch.Generator) -> Sample:
    prediction = 0.1 * torch.randn(ROWS, CLASSES, 1, 1, generator=generator)
    towards = torch.randn(ROWS, CLASSES, 1, 1, generator=generator)
    # Targets that the prediction does not hit yet: there is always something to gain.
    target = (prediction[:, :, 0, 0].argmax(1) + 1) % CLASSES
    return Sample(prediction, {"target": target, "towards": towards})


TASK = Toy()
