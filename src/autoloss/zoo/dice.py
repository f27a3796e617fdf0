"""Soft Dice, a loss that is no tree: it divides one sum over the batch by another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.branch import Branch
from autoloss.space.operators import raised

SMALLEST = 1e-7
"""Keeps the quotient finite for a class that is neither predicted nor there."""


@dataclass(frozen=True, slots=True)
class SoftDice:
    """One minus the Dice coefficient of probabilities, averaged over classes.

    Each class has one coefficient 2·Σpy / Σ(p + y) over all positions of the batch that count. A class that the batch's
    target lacks adds 0 and has no gradient.

    Raises:
        RequestError: The branch has no leaves p and y.

    Source: Milletari et al., 2016, V-Net, Section 3, with plain sums below the line; the class average and the silence of absent
    classes are those of `DiceLoss` in segmentation-models-pytorch.
    """

    branch: Branch

    def __post_init__(self) -> None:
        if not {"p", "y"} <= set(self.branch.leaves_and_roles):
            raise RequestError(
                f"Soft Dice compares probabilities p with a target y; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss from the raw prediction; never in 16 bits."""
        with torch.autocast(prediction.device.type, enabled=False):
            leaves = self.branch.leaves(raised(prediction), context)
            p, y = leaves["p"], leaves["y"]
            mask = self.branch.mask(context)
            if mask is not None:
                p, y = (torch.where(mask, values, torch.zeros_like(values)) for values in (p, y))
            positions = (0, 2, 3)
            overlap, size = (p * y).sum(positions), (p + y).sum(positions)
            distance = 1 - 2 * overlap / size.clamp(min=SMALLEST)
            present = y.sum(positions) > 0
            return self.branch.weight * torch.where(present, distance, torch.zeros_like(distance)).mean()
