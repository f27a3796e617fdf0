"""A hand-written loss with the interface of `Loss`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

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
    ) -> HandWrittenModule:
        """Return the loss as an `nn.Module`; the arguments are those of `Loss.criterion`."""
        branch = ActivatedBranch(
            activation=activation, ignore_index=ignore_index, encoding=target, tolerance=tolerance, divide_by=divisor
        )
        return HandWrittenModule(self.name, self.make(branch), branch)


class HandWrittenModule(nn.Module):
    """A hand-written loss as a module like those of torch: (raw prediction, target) → scalar."""

    def __init__(self, name: str, loss: BranchLoss, branch: ActivatedBranch) -> None:
        super().__init__()
        self.name = name
        self.branch = branch
        self._loss = loss

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Compute the loss; the arguments are those of `LossModule.forward`."""
        return self._loss(prediction, {"target": fitting(target, prediction)})

    def extra_repr(self) -> str:
        return f"{self.name}, activation={self.branch.activation!r}"
