"""A small segmentation branch for tests of the protocol: blobs of five classes on 16×16, logits as of an untrained network.

Below it, the engines' batch functions for one loss.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.rejection.engine import Engine, Gradient
from autoloss.rejection.protocol import Reference, Verdict, measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import ReferenceDescent
from autoloss.rejection.screen import screen_losses
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Expression

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


def decide(engine: Engine, expression: Expression) -> Verdict:
    (verdict,) = engine.verdicts([expression])
    return verdict


def screen(engine: Engine, expression: Expression) -> Verdict:
    (verdict,) = screen_losses(engine, [expression])
    return verdict


def differentiate(engine: Engine, expression: Expression) -> Gradient:
    (gradient,) = engine.gradients([expression])
    return gradient


def descend(expression: Expression, branch: Branch, sample: Sample, settings: ProtocolSettings) -> Tensor | Reason:
    """Return the reference's prediction p* after all steps, or why there is none."""
    descent = ReferenceDescent(expression, branch, Reference((sample,), (0.0,), (1.0,)), settings)
    end = descent.advance(0, settings.steps)
    return descent.prediction(0) if end is None else end
