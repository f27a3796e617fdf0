"""A small segmentation branch to try the protocol on: blobs of five classes on 16×16, logits as an untrained network's."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.rejection.protocol import Reference, measure_reference
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample

CLASSES = 5
SIZE = 16


def mean_iou(prediction: Tensor, target: Tensor) -> float:
    """mIoU of one scene over the classes of its target."""
    found = prediction.argmax(dim=1)
    ratios = [
        ((found == k) & (target == k)).sum() / ((found == k) | (target == k)).sum() for k in target.unique().tolist()
    ]
    return float(torch.stack(ratios).mean())


BRANCH = ActivatedBranch(measure=mean_iou, channels=CLASSES)


def scene(generator: torch.Generator) -> Tensor:
    """Background with one disc of each other class, some of them hidden by later ones; (1, H, W)."""
    target = torch.zeros(SIZE, SIZE, dtype=torch.long)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    for label in range(1, CLASSES):
        row, column, radius = torch.randint(2, SIZE - 2, (3,), generator=generator).tolist()
        target[(rows - row) ** 2 + (columns - column) ** 2 <= (2 + radius / 5) ** 2] = label
    return target.unsqueeze(0)


@cache
def samples(count: int = 2, seed: int = 0) -> tuple[Sample, ...]:
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for _ in range(count):
        target = scene(generator)
        coarse = torch.randn(1, CLASSES, SIZE // 4, SIZE // 4, generator=generator)
        prediction = 0.3 * F.interpolate(coarse, size=(SIZE, SIZE), mode="bilinear")
        drawn.append(Sample(prediction, {"target": target}))
    return tuple(drawn)


@cache
def reference(count: int = 2, seed: int = 0) -> Reference:
    return measure_reference(BRANCH, samples(count, seed))
