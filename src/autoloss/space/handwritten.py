"""A hand-written loss with the interface of `Loss`, and the module that both are for a training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch, fitting
from autoloss.space.branch import Branch, BranchLoss
from autoloss.space.options import Activation, Divisor, Encoding


@dataclass(frozen=True, slots=True)
class HandWritten:
    """A named loss that is not a tree; its text form is its name.

    Args:
        make: Returns the loss of a branch.
    """

    name: str
    make: Callable[[Branch], BranchLoss]

    def __str__(self) -> str:
        return self.name

    def criterion(
        self,
        activation: Activation = "softmax",
        *,
        ignore_index: int | None = None,
        target: Encoding = "one_hot",
        tolerance: int = 5,
        divisor: Divisor = "all",
    ) -> LossModule:
        """Return the loss as an `nn.Module`; the arguments are those of `Loss.criterion`."""
        branch = ActivatedBranch(
            activation=activation, ignore_index=ignore_index, encoding=target, tolerance=tolerance, divide_by=divisor
        )
        return LossModule(self.name, self.make(branch), branch)


class LossModule(nn.Module):
    """A loss as a module like those of torch: (raw prediction, target) → scalar.

    Args:
        name: The formula of a tree, or the name of a hand-written loss.
        loss: The loss on the branch.
    """

    def __init__(self, name: str, loss: BranchLoss, branch: ActivatedBranch) -> None:
        super().__init__()
        self.name = name
        self.branch = branch
        self._loss = loss

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Compute the loss.

        Args:
            prediction: Raw, (N, C, H, W), (N, C, D, H, W), (N, C, L), (N, C) or (N,).
            target: Class indices without the channel dimension, or values of the prediction's shape.

        Raises:
            RequestError: Shapes do not fit, a class index is out of range, or the target holds values although
                `ignore_index` is set.
        """
        fitted = fitting(target, prediction)
        if self.branch.ignore_index is not None and fitted.dtype != target.dtype and fitted.is_floating_point():
            raise RequestError(
                f"A target of integers with the prediction's shape {tuple(target.shape)} holds values, so no index can be "
                "ignored. Drop the channel dimension to give class indices, or leave ignore_index out."
            )
        return self._loss(prediction, {"target": fitted})

    def extra_repr(self) -> str:
        return f"{self.name}, activation={self.branch.activation!r}"
