"""The interface of hand-written losses for classification and segmentation.

Such a loss is a function of `Regions`; `RegionLoss` applies it to a branch with mask, weight and precision.
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
from autoloss.space.operators import upcast

POSITIONS = (0, 2, 3)
"""All dimensions of (N, C, H, W) except the classes."""
TOLERANCE = 5
"""Default tolerance in pixels, for branches without one."""


@dataclass(frozen=True, slots=True)
class Regions:
    """Probabilities and target classes at each position, in at least float32.

    Args:
        p: Probabilities, (N, C, H, W), zero at positions that do not count.
        y: One-hot classes, (N, C, H, W), zero at the same positions. They are whole regions even if the branch trains trees on
            borders: a hand-written loss for borders derives them itself.
        counted: True at positions that count, (N, 1, H, W).
        divisor: Divisor of the branch: N·H·W, or the number of positions that count.
        tolerance: Tolerance of border metrics, in pixels.
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
    """

    branch: Branch
    value: Callable[[Regions], Tensor]

    def __post_init__(self) -> None:
        if self.branch.pair is None:
            raise RequestError(
                f"This loss needs probabilities and classes; the branch has {', '.join(self.branch.leaves_and_roles)}."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss from the raw prediction."""
        with torch.autocast(prediction.device.type, enabled=False):
            return self.branch.weight * self.value(read_regions(self.branch, prediction, context))


def read_regions(branch: Branch, prediction: Tensor, context: Mapping[str, Tensor]) -> Regions:
    """Return the regions of a raw prediction and its target; those of a volume are its slices."""
    tolerance = TOLERANCE
    if isinstance(branch, ActivatedBranch):
        tolerance = branch.tolerance
        if branch.encoding != "one_hot":
            branch = dataclasses.replace(branch, encoding="one_hot")
    leaves = branch.leaves(upcast(prediction), context)
    p, y = (leaves[name] for name in branch.pair or ())
    counted = branch.mask(context)
    if counted is None:
        counted = torch.ones_like(p[:, :1], dtype=torch.bool)
    else:
        p, y = (torch.where(counted, values, torch.zeros_like(values)) for values in (p, y))
    p, y, counted = map(_flatten_depth, (p, y, counted))
    return Regions(p, y, counted, branch.divisor(context), tolerance)


def _flatten_depth(values: Tensor) -> Tensor:
    """Return volumes (N, C, D, H, W) as their slices, (N·D, C, H, W)."""
    return values.movedim(2, 1).flatten(0, 1) if values.ndim > len(POSITIONS) + 1 else values


def average_over_classes(losses: Tensor, y: Tensor) -> Tensor:
    """Average the losses of the classes, (C,); a class that is not in y adds 0 and has no gradient."""
    present = y.sum(POSITIONS) > 0
    return torch.where(present, losses, torch.zeros_like(losses)).mean()
