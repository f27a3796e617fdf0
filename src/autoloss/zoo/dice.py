"""Soft Dice, written by hand since it divides one sum over the batch by another."""

from __future__ import annotations

from torch import Tensor

from autoloss.zoo.regions import POSITIONS, Regions, average_over_classes

SMALLEST = 1e-7
"""Keeps the quotient finite for a class that is neither predicted nor in the target."""


def soft_dice(regions: Regions) -> Tensor:
    """Return one minus the Dice coefficient of probabilities, averaged over classes.

    The coefficient of a class is 2·Σpy / Σ(p + y) over all positions of the batch that count. A class that is not in the
    target of the batch adds 0 and has no gradient.

    Source: Milletari et al., 2016, V-Net, Section 3, with plain sums in the denominator; the class average and the treatment of
    absent classes are those of `DiceLoss` in segmentation-models-pytorch.
    """
    p, y = regions.p, regions.y
    overlap, size = (p * y).sum(POSITIONS), (p + y).sum(POSITIONS)
    return average_over_classes(1 - 2 * overlap / size.clamp(min=SMALLEST), y)
