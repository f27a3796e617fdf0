"""What a loss is applied to: a branch of a network, its samples, and the criterion that trains it (Section 3.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from torch import Tensor


class Role(Enum):
    """What a leaf tells about. A tree that lacks a prediction or a target cannot be a loss."""

    PREDICTION = "prediction"
    TARGET = "target"
    BOTH = "both"
    """Of prediction and target at once: the areas i, u, e of two boxes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample of an untrained network: an image, the boxes of an image, or a batch of rows.

    Args:
        prediction: The raw output, before any activation, (N, C, H, W).
        context: All else the branch needs, such as the target; batch dimension first.

    >>> import torch
    >>> sample = Sample(torch.zeros(1, 3, 8, 8), {"target": torch.zeros(1, 8, 8, dtype=torch.long)})
    >>> sample.prediction.shape
    torch.Size([1, 3, 8, 8])
    """

    prediction: Tensor
    context: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


Activation = Literal["softmax", "sigmoid", "none", "box"]


class Branch(ABC):
    """One place of a network that a loss is applied to; the one owner of every question that a task raises there.

    `prediction` is raw everywhere: logits, heatmap values, box deltas.

    >>> import torch
    >>> from autoloss import ActivatedBranch
    >>> branch = ActivatedBranch(activation="softmax", channels=2)
    >>> leaves = branch.leaves(torch.zeros(1, 2, 1, 1), {"target": torch.tensor([1])})
    >>> leaves["p"].flatten().tolist(), leaves["y"].flatten().tolist()
    ([0.5, 0.5], [0.0, 1.0])
    """

    leaves_and_roles: Mapping[str, Role]
    """The leaves of this branch's trees, such as y and p, or i, u and e; the constant 1 is always there besides."""
    activation: Activation
    """What stands between the raw prediction and the leaf `p`; the compiled engine knows these."""
    weight: float
    """Factor of this branch's tree in the sum over branches."""

    @abstractmethod
    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the tensors that the tree's leaves stand for, (N, C, H, W), differentiable in `prediction`."""

    @abstractmethod
    def mask(self, context: Mapping[str, Tensor]) -> Tensor | None:
        """Return True where a position counts, broadcastable to (N, C, H, W), or None when all do."""

    @abstractmethod
    def divisor(self, context: Mapping[str, Tensor]) -> float | Tensor:
        """Return what the sum over all elements is divided by in training: N·H·W unless the branch says otherwise."""

    @abstractmethod
    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        """Return the metric of one sample: finite where it is defined, NaN where not; higher is better."""

    @abstractmethod
    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        """Return the raw prediction that equals the target, of the prediction's shape."""


BranchLoss = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""(raw prediction, context) → scalar: a bound tree or a hand-written loss."""

Criterion = Mapping[str, BranchLoss]
"""One loss per branch, called wherever the network computes that branch."""
