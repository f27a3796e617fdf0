"""What hand-written losses of classification and segmentation have in common: probabilities beside classes, position by position.

Such a loss is a function of `Regions`, and `RegionLoss` applies it to a branch: mask, weight and precision are looked after here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch
from autoloss.space.operators import raised

POSITIONS = (0, 2, 3)
"""All dimensions of (N, C, H, W) but the classes."""
TOLERANCE = 5
"""Pixels, where the branch knows none."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Probabilities and the classes that they are held against, never in 16 bits.

    Args:
        p: Probabilities, (N, C, H, W), zero at positions that do not count.
        y: One-hot classes, (N, C, H, W), likewise. They are whole regions even where the branch trains its trees on borders:
            a hand-written loss for boundaries finds them itself.
        counted: True where a position counts, (N, 1, H, W).
        divisor: The branch's: N·H·W, or the number of positions that count.
        tolerance: Pixels, for what is said of boundaries.
    """

    p: Tensor
    y: Tensor
    counted: Tensor
    divisor: float | Tensor
    tolerance: int = TOLERANCE


@final
@dataclass(frozen=True, slots=True)
class RegionLoss:
    """A hand-written loss of one branch.

    Args:
        value: Regions → scalar.

    Raises:
        RequestError: The branch has no leaves p and y.
    """

    branch: Branch
    value: Callable[[Regions], Tensor]

    def __post_init__(self) -> None:
        if not {"p", "y"} <= set(self.branch.leaves_and_roles):
            raise RequestError(
                f"This loss compares probabilities p with classes y; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss from the raw prediction."""
        with torch.autocast(prediction.device.type, enabled=False):
            return self.branch.weight * self.value(regions(self.branch, prediction, context))


def regions(branch: Branch, prediction: Tensor, context: Mapping[str, Tensor]) -> Regions:
    """Look at a raw prediction and its target as a branch does."""
    tolerance = TOLERANCE
    if isinstance(branch, ActivatedBranch):
        tolerance = branch.tolerance
        if branch.encoding != "one_hot":
            branch = dataclasses.replace(branch, encoding="one_hot")
    leaves = branch.leaves(raised(prediction), context)
    p, y = leaves["p"], leaves["y"]
    counted = branch.mask(context)
    if counted is None:
        counted = torch.ones_like(p[:, :1], dtype=torch.bool)
    else:
        p, y = (torch.where(counted, values, torch.zeros_like(values)) for values in (p, y))
    return Regions(p, y, counted, branch.divisor(context), tolerance)


def over_classes(losses: Tensor, y: Tensor) -> Tensor:
    """Average one loss per class, (C,); a class that y lacks adds 0 and has no gradient."""
    present = y.sum(POSITIONS) > 0
    return torch.where(present, losses, torch.zeros_like(losses)).mean()
