"""A branch of a network, its samples, and the criterion that trains it (Section 3.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from autoloss.space.options import Activation


class Role(Enum):
    """What a leaf depends on. A tree is a loss only if it depends on both prediction and target."""

    PREDICTION = "prediction"
    TARGET = "target"
    BOTH = "both"
    """Prediction and target at once, such as the areas i, u, e of two boxes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample of an untrained network: an image, the boxes of an image, or a batch of rows.

    Args:
        prediction: The raw output, before any activation, (N, C, H, W).
        context: All other tensors that the branch needs, such as the target; batch dimension first.
    """

    prediction: Tensor
    context: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


class Branch(ABC):
    """One output of a network that a loss is applied to: its leaves, mask, divisor, metric and ideal prediction.

    `prediction` is raw everywhere: logits, heatmap values, box deltas.
    """

    leaves_and_roles: Mapping[str, Role]
    """The leaves of this branch's trees and their roles, such as y and p, or i, u and e; without the constant 1."""
    activation: Activation
    """The function from the raw prediction to the leaf `p`."""
    weight: float
    """Factor of this branch's loss in the sum over branches."""

    @abstractmethod
    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the values of the leaves, (N, C, H, W), differentiable in `prediction`."""

    @abstractmethod
    def mask(self, context: Mapping[str, Tensor]) -> Tensor | None:
        """Return True where a position counts, broadcastable to (N, C, H, W), or None when all do."""

    @abstractmethod
    def divisor(self, context: Mapping[str, Tensor]) -> float | Tensor:
        """Return the divisor of the sum over all elements in training, usually N·H·W."""

    @abstractmethod
    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        """Return the metric of one sample, higher is better; NaN where it is undefined."""

    @abstractmethod
    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        """Return the raw prediction that matches the target exactly, in the shape of a prediction."""


BranchLoss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""(raw prediction, context) → scalar: a bound tree or a hand-written loss."""

Criterion = Mapping[str, BranchLoss]
"""Branch name → its loss; a network applies each to the output of that branch."""
