"""Soft Dice, a loss that is no tree: it divides one sum over the batch by another."""

from __future__ import annotations

from torch import Tensor

from autoloss.zoo.regions import POSITIONS, Regions, over_classes

SMALLEST = 1e-7
"""Keeps the quotient finite for a class that is neither predicted nor there."""


def soft_dice(regions: Regions) -> Tensor:
    """Return one minus the Dice coefficient of probabilities, averaged over classes.

    Each class has one coefficient 2·Σpy / Σ(p + y) over all positions of the batch that count. A class that the batch's
    target lacks adds 0 and has no gradient.

    Source: Milletari et al., 2016, V-Net, Section 3, with plain sums below the line; the class average and the silence of absent
    classes are those of `DiceLoss` in segmentation-models-pytorch.
    """
    p, y = regions.p, regions.y
    overlap, size = (p * y).sum(POSITIONS), (p + y).sum(POSITIONS)
    return over_classes(1 - 2 * overlap / size.clamp(min=SMALLEST), y)
