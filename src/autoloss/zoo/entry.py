"""One named loss, and how it fits the branches of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autoloss.errors import RequestError
from autoloss.space.loss_text import MAIN
from autoloss.zoo.branches import check_leaves, only_branch

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss
    from autoloss.space.expression import Expression
    from autoloss.space.loss import Loss
    from autoloss.zoo.handwritten import HandWritten


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One named loss: a tree, a hand-written loss, or one member per branch.

    Args:
        description: What the loss is, in one line.
        source: Where it comes from.
        metric: The metric it was found for; a dash where it was made for none.
        target: The encoding of y it was found for, as in `Loss.criterion`, or what the areas are of.
        activation: What turns the raw prediction into `p`.
        formula: The tree of a loss for one branch.
        factory: Makes the hand-written loss of one branch; it looks after weight, mask and precision itself.
        members: Branch → the entry for it, of a loss for several branches.
    """

    name: str
    description: str
    source: str
    metric: str = "—"
    target: str = "one_hot"
    activation: str = "softmax"
    formula: str = ""
    factory: Callable[[Branch], BranchLoss] | None = None
    members: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def formulas(self) -> Mapping[str, str]:
        """Branch → formula; `main` for a loss of one branch, nothing for a hand-written one."""
        if self.members:
            return {branch: member.formula for branch, member in self.members.items()}
        return {MAIN: self.formula} if self.formula else {}

    def loss(self) -> Loss | HandWritten:
        """Return the loss without a task; both kinds have `criterion()`."""
        from autoloss.space.loss import Loss
        from autoloss.zoo.handwritten import HandWritten

        return Loss(self.formulas) if self.factory is None else HandWritten(self.name, self.factory)

    def losses(self, branches: Mapping[str, Branch]) -> dict[str, Expression | BranchLoss]:
        """Return what `autoloss.bind` takes: one loss for each of a task's branches.

        Raises:
            RequestError: The task has other branches, or their leaves are not those of the formula.
        """
        if self.members:
            if set(branches) != set(self.members):
                raise RequestError(
                    f"{self.name!r} is a loss for the branches {', '.join(self.members)}; "
                    f"this task has {', '.join(branches)}."
                )
            return {name: self.members[name].one(name, branch) for name, branch in branches.items()}
        name, branch = only_branch(branches, self.name)
        return {name: self.one(name, branch)}

    def one(self, name: str, branch: Branch) -> Expression | BranchLoss:
        """Return the loss of one branch.

        Raises:
            RequestError: The entry has several members, or the branch has other leaves.
        """
        from autoloss.space.parsing import parse

        if self.members:
            raise RequestError(
                f"{self.name!r} is a loss for the branches {', '.join(self.members)}; "
                f"branch {name!r} takes one of {', '.join(member.name for member in self.members.values())}."
            )
        return check_leaves(parse(self.formula), name, branch) if self.factory is None else self.factory(branch)
