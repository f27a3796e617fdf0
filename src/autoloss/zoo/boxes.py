"""Hand-written baselines of object detection: smooth L1 on deltas, and the classification loss of CSE-AutoLoss-A."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.boxes import BoxRegression, encode
from autoloss.space.branch import Branch
from autoloss.space.loss import mean_over_positions
from autoloss.space.operators import signed_log, upcast

BETA = 1 / 9
"""Absolute error at which smooth L1 turns from quadratic to linear."""


@dataclass(frozen=True, slots=True)
class SmoothL1:
    """Smooth L1 on the deltas of positive boxes, divided by the number of sampled ones; the branch's weight is not used.

    Source: Ren et al., 2015, Faster R-CNN; threshold and divisor are torchvision's.
    """

    branch: Branch

    def __post_init__(self) -> None:
        if not isinstance(self.branch, BoxRegression):
            raise RequestError(
                "Smooth L1 compares the deltas of boxes; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}. Use baseline/mse for plain values."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        with torch.autocast(prediction.device.type, enabled=False):
            positive = context["target"] > 0
            deltas = upcast(prediction).flatten(1)[positive]
            box, reference = context["box"][positive], context["reference"][positive]
            wanted = encode(box, reference, context["deviations"]).to(deltas)
            return F.smooth_l1_loss(deltas, wanted, beta=BETA, reduction="sum") / max(1, len(positive))


@dataclass(frozen=True, slots=True)
class WeightedByOverlap:
    """Cross entropy with the weight 1 + sin(w), where w is the IoU of the predicted box of a positive, and 1 for a negative.

    Source: Liu et al., 2021, Loss Function Discovery for Object Detection via Convergence-Simulation Driven Search,
    CSE-AutoLoss-A; the value of w for a negative is that of the authors' code.
    """

    branch: Branch

    def __post_init__(self) -> None:
        if self.branch.pair is None:
            raise RequestError(
                "CSE-AutoLoss-A's classification compares probabilities with a target; this branch has the leaves "
                f"{', '.join(self.branch.leaves_and_roles)}. Its other half is baseline/cse_auto_a_reg."
            )

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Compute the loss from the raw prediction, in at least float32."""
        if "overlap" not in context:
            raise RequestError("CSE-AutoLoss-A's classification needs the IoU of predicted boxes: use detection.")
        with torch.autocast(prediction.device.type, enabled=False):
            leaves = self.branch.leaves(upcast(prediction), context)
            p, y = (leaves[name] for name in self.branch.pair or ())
            importance = 1 + context["overlap"].detach().to(p)[:, None, None, None].sin()
            value = -importance * y * signed_log(p)
            return self.branch.weight * mean_over_positions(
                value, self.branch.mask(context), self.branch.divisor(context)
            )
