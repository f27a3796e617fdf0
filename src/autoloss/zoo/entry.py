"""One named loss, and its application to the branches of a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from autoloss.errors import RequestError
from autoloss.space.loss_text import MAIN, join_branches

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss
    from autoloss.space.expression import Expression
    from autoloss.space.form import Activation
    from autoloss.space.loss import HandWritten, Loss


@dataclass(frozen=True, slots=True)
class Entry:
    """One named loss: a tree, a hand-written loss, or one entry per branch.

    Args:
        description: Description in one line.
        source: The publication.
        metric: The metric that it was found or made for; a dash if there is none.
        target: The encoding of y that it was found for, as in `Loss.criterion`, or a description of the target.
        activation: The activation that turns the raw prediction into `p`.
        formula: The tree of a loss for one branch.
        factory: Returns the hand-written loss of one branch, which applies weight and mask and sets the precision itself.
        members: Branch → its entry, for a loss of several branches.
        title: Common name, if it differs from `name`.
        positive: What it needs: `positive` predictions with targets from 0 on, `positive targets`, or both, with a comma between;
            or `several outputs`.
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
    title: str = ""
    positive: str = ""

    @property
    def formulas(self) -> Mapping[str, str]:
        """Branch → formula, with `main` for a loss of one branch; empty for a hand-written loss."""
        if self.members:
            return {branch: member.formula for branch, member in self.members.items()}
        return {MAIN: self.formula} if self.formula else {}

    def make_loss(self) -> Loss | HandWritten:
        """Return the loss independently of any task; both kinds have `criterion()`."""
        from autoloss.space.loss import HandWritten, Loss

        if self.factory is None:
            return Loss(self.formulas, activation=cast("Activation", self.activation))
        return HandWritten(self.name, self.factory, cast("Activation", self.activation))

    def make_losses(self, branches: Mapping[str, Branch]) -> dict[str, Expression | BranchLoss]:
        """Return one loss for each branch of a task, as `autoloss.bind` takes them."""
        if self.members:
            if set(branches) != set(self.members):
                raise RequestError(
                    f"{self.name!r} has the branches {', '.join(self.members)}; this task has {', '.join(branches)}."
                )
            return {name: self.members[name].make_branch_loss(name, branch) for name, branch in branches.items()}
        name, branch = get_only_branch(branches, self.name)
        return {name: self.make_branch_loss(name, branch)}

    def make_branch_loss(self, name: str, branch: Branch) -> Expression | BranchLoss:
        """Return the loss of one branch."""
        from autoloss.space.form import PAIR_KERNELS
        from autoloss.space.loss import bind
        from autoloss.space.parsing import parse

        if self.members:
            raise RequestError(
                f"{self.name!r} is a loss for the branches {', '.join(self.members)}; "
                f"branch {name!r} takes one of {', '.join(member.name for member in self.members.values())}."
            )
        if self.factory is not None:
            return self.factory(branch)
        twin = branch.with_kernel(self.activation)
        if self.activation in PAIR_KERNELS.values() and twin.kernel != self.activation:
            raise RequestError(
                f"{self.name!r} is a loss of pairs of items; the branch {name!r} has one element for each position. It is for the "
                "tasks ranking and survival, or an autoloss.PairBranch."
            )
        tree = check_leaves(parse(self.formula), name, twin)
        # A tree of other leaves of the same place is no tree of this branch, but a loss of it.
        return tree if twin is branch else bind({name: tree}, {name: twin})[name]


def get_only_branch(branches: Mapping[str, Branch], text: str) -> tuple[str, Branch]:
    """Return the name and the branch of a task that has only one.

    Args:
        text: The loss, for the message.
    """
    if len(branches) != 1:
        wanted = join_branches(dict.fromkeys(branches, "…"))
        raise RequestError(
            f"{text!r} is a loss for one branch; this task has {len(branches)}: {', '.join(branches)}. "
            f"Give a formula for each: '{wanted}'."
        )
    return next(iter(branches.items()))


def check_leaves(tree: Expression, name: str, branch: Branch) -> Expression:
    """Return the tree unchanged if it can train this branch.

    Raises:
        RequestError: The branch lacks one of the leaves, or none of them depends on the prediction.
    """
    from autoloss.space.branch import Role
    from autoloss.space.expression import CONSTANT

    roles = branch.leaves_and_roles
    if strange := sorted(tree.leaves - {CONSTANT} - set(roles)):
        raise RequestError(f"{str(tree)!r} needs {', '.join(strange)}; the branch {name!r} has {', '.join(roles)}.")
    if all(roles[leaf] is Role.TARGET for leaf in tree.leaves - {CONSTANT}):
        raise RequestError(f"{str(tree)!r} does not depend on the prediction, so nothing can be trained with it.")
    return tree
