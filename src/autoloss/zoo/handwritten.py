"""A loss that is no tree, with the methods of a `Loss`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from autoloss.space.activated import ActivatedBranch, Divisor, Encoding, fitting
from autoloss.space.branch import Activation, Branch, BranchLoss
from autoloss.zoo.branches import only_branch


@dataclass(frozen=True, slots=True)
class HandWritten:
    """A named loss that is no tree; its text form is its name.

    Args:
        make: Returns the loss of a branch.
    """

    name: str
    make: Callable[[Branch], BranchLoss]

    def __str__(self) -> str:
        return self.name

    def losses(self, branches: Mapping[str, Branch]) -> dict[str, BranchLoss]:
        """Return what `autoloss.bind` takes, for a task with one branch."""
        name, branch = only_branch(branches, self.name)
        return {name: self.make(branch)}

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
    """A hand-written loss in the form of torch's own: called with raw predictions and targets, gives a scalar."""

    def __init__(self, name: str, loss: BranchLoss, branch: ActivatedBranch) -> None:
        super().__init__()
        self.name = name
        self.branch = branch
        self._loss = loss

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Compute the loss; shapes are those of `LossModule.forward`."""
        return self._loss(prediction, {"target": fitting(target, prediction)})

    def extra_repr(self) -> str:
        return f"{self.name}, activation={self.branch.activation!r}"
