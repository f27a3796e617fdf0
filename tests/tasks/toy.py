"""A task with two heads, in one file: the example for a task of your own with several branches.

One head classifies, the other predicts a heatmap. Each calls the criterion with its raw prediction and its own context, in its own
place of the network. Nothing outside this file knows of the task; `test_two_heads.py` searches losses for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from autoloss import (
    ActivatedBranch,
    Branch,
    Diverged,
    Execution,
    Recipe,
    Role,
    Sample,
    Scored,
    Task,
    Training,
    check_training,
    fit,
    seed_generators,
    shuffle_batches,
)

Criterion = Mapping[str, Callable[[Tensor, Mapping[str, Tensor]], Tensor]]
Observe = Callable[[int, float], None]

SIDE = 4
"""Pixels of a heatmap's side."""
CLASSES = 3
FEATURES = 6


@dataclass(frozen=True, slots=True)
class HeatmapBranch(Branch):
    """Raw heatmap values (N, 1, H, W) against a target map; the context says which rows are visible."""

    kernel = "none"
    weight: float = 2.0
    leaves_and_roles: Mapping[str, Role] = field(
        default_factory=lambda: {"y": Role.TARGET, "p": Role.PREDICTION}, init=False
    )

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"p": prediction, "y": context["target"] * self.mask(context)}

    def mask(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["visible"][:, None, None, None]

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        return float(context["target"][:, 0].numel())

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        """Return the share of the target map that is explained, from 0 upwards, over visible rows."""
        mask = self.mask(context)
        error = ((prediction - context["target"]) * mask).square().sum()
        return (1 / (1 + error / mask.sum())).item()

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["target"]


class Kind(nn.Module):
    """The first place where a criterion is called: inside the head, as in an RPN."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, features: Tensor, kind: Tensor, criterion: Criterion | None) -> tuple[Tensor, Tensor | None]:
        logits = self.head(features)
        return logits, criterion and criterion["kind"](logits, {"target": kind})


class Place(nn.Module):
    """The second place: another head, another context."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, SIDE * SIDE)

    def forward(
        self, features: Tensor, context: Mapping[str, Tensor], criterion: Criterion | None
    ) -> tuple[Tensor, Tensor | None]:
        heatmap = self.head(features).reshape(-1, 1, SIDE, SIDE)
        return heatmap, criterion and criterion["place"](heatmap, context)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh())
        self.kind = Kind()
        self.place = Place()

    def forward(self, batch: Mapping[str, Tensor], criterion: Criterion | None = None) -> dict[str, Tensor]:
        """Return the raw predictions, and with a criterion the sum of its losses."""
        features = self.body(batch["input"])
        kind, kind_loss = self.kind(features, batch["kind"], criterion)
        place, place_loss = self.place(features, context_of(batch), criterion)
        found = {"kind": kind, "place": place}
        return found if criterion is None else {**found, "loss": kind_loss + place_loss}


def context_of(batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"target": batch["heatmap"], "visible": batch["visible"]}


def drawn(count: int, seed: int) -> dict[str, Tensor]:
    """Draw rows whose kind and place both follow from the input."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, FEATURES, generator=generator)
    kind = inputs[:, :CLASSES].argmax(dim=1)
    spot = inputs[:, 2:].argmax(dim=1) * (SIDE * SIDE // 4)
    heatmap = nn.functional.one_hot(spot, SIDE * SIDE).float().reshape(-1, 1, SIDE, SIDE)
    return {"input": inputs, "kind": kind, "heatmap": heatmap, "visible": torch.rand(count, generator=generator) < 0.8}


class TwoHeadsTask(Task):
    name = "two-heads"
    standard = {"kind": "-y * log(p)", "place": "(p - y) ** 2"}

    def __init__(self) -> None:
        self._splits = {name: drawn(count, seed) for seed, (name, count) in enumerate(SIZES.items())}
        self._branches = {
            "kind": ActivatedBranch(channels=CLASSES, measure=accuracy),
            "place": HeatmapBranch(),
        }

    @property
    def branches(self) -> Mapping[str, Branch]:
        return self._branches

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        with seed_generators(seed) as generator, torch.no_grad():
            network = TwoHeads().eval()
            order = torch.randperm(SIZES["train"], generator=generator)[: count * 16].split(16)
            batches = [{name: column[rows] for name, column in self._splits["train"].items()} for rows in order]
            found = [network(batch) for batch in batches]
        kinds = [
            Sample(prediction["kind"][:, :, None, None], {"target": batch["kind"]})
            for prediction, batch in zip(found, batches, strict=True)
        ]
        places = [
            Sample(prediction["place"], context_of(batch)) for prediction, batch in zip(found, batches, strict=True)
        ]
        return {"kind": kinds, "place": places}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged:
        check_training(self, criterion, training)
        data, recipe = self._splits["train"], RECIPES[training.schedule]
        with seed_generators(training.seed) as generator:
            network = TwoHeads()
            order = shuffle_batches(SIZES["train"], recipe, generator)
            batches = ({name: column[rows] for name, column in data.items()} for rows in order)
            curve = fit(
                network, batches, lambda batch: network(batch, criterion)["loss"], recipe, len(order), observe=observe
            )
        if isinstance(curve, Diverged):
            return curve
        with torch.no_grad():
            found = network.eval()(self._splits[training.split])
        held = self._splits[training.split]
        kind = self._branches["kind"].metric(found["kind"], {"target": held["kind"]})
        place = self._branches["place"].metric(found["place"], context_of(held))
        return Scored((kind + place) / 2, {"kind": kind, "place": place}, curve)


SIZES = {"train": 160, "valid": 96, "test": 96}
RECIPES = {"proxy": Recipe(epochs=2, batch_size=16, learning_rate=0.1), "full": Recipe(batch_size=16)}


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(dim=1) == target).float().mean().item()


class Items(Dataset):
    """A data set in Python, its targets plain numbers."""

    def __init__(self, pair: tuple[Tensor, Tensor]) -> None:
        self.pair = pair

    def __len__(self) -> int:
        return len(self.pair[0])

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.pair[0][index], int(self.pair[1][index])


class Noisy(Items):
    """Examples that draw from every global generator, as augmentation does."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row, label = super().__getitem__(index)
        return row + torch.rand(()) + random.random() + np.random.random(), label
