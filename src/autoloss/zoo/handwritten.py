"""A loss that is no tree, with the same uses as a `Loss`: in a task and in anybody's own training loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from autoloss.space.activated import ActivatedBranch, Divisor, Encoding, fitting
from autoloss.space.branch import Activation, Branch, BranchLoss
from autoloss.space.expression import Expression
from autoloss.space.loss import MAIN

if TYPE_CHECKING:
    from autoloss.zoo.entries import Entry


@dataclass(frozen=True, slots=True)
class HandWritten:
    """A named loss that is written by hand; its text form is its name."""

    entry: Entry

    def __str__(self) -> str:
        return self.entry.name

    def losses(self, branches: Mapping[str, Branch]) -> dict[str, Expression | BranchLoss]:
        """Return what `autoloss.bind` takes, for a task with one branch."""
        return self.entry.losses(branches)

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
        return HandWrittenModule(self.entry, branch)


class HandWrittenModule(nn.Module):
    """A hand-written loss in the form of torch's own: called with raw predictions and targets, gives a scalar."""

    def __init__(self, entry: Entry, branch: ActivatedBranch) -> None:
        super().__init__()
        self.name = entry.name
        self.branch = branch
        loss = entry.one(MAIN, branch)
        assert not isinstance(loss, Expression)
        self._loss = loss

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Compute the loss; shapes are those of `LossModule.forward`."""
        return self._loss(prediction, {"target": fitting(target, prediction)})

    def extra_repr(self) -> str:
        return f"{self.name}, activation={self.branch.activation!r}"
