"""Check that a loss fits the branches of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from autoloss.errors import RequestError
from autoloss.space.loss_text import join_branches

if TYPE_CHECKING:
    from autoloss.space.branch import Branch
    from autoloss.space.expression import Expression


def get_only_branch(branches: Mapping[str, Branch], text: str) -> tuple[str, Branch]:
    """Return the name and the branch of a task that has only one.

    Args:
        text: The loss, for the message.

    Raises:
        RequestError: The task has several branches.
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
        raise RequestError(
            f"{str(tree)!r} has the leaves {', '.join(strange)}; branch {name!r} has {', '.join(roles)} and 1."
        )
    if all(roles[leaf] is Role.TARGET for leaf in tree.leaves - {CONSTANT}):
        raise RequestError(f"{str(tree)!r} does not depend on the prediction, so nothing can be trained with it.")
    return tree
