"""A task some of whose branches keep a given loss; a search sees the others only (Section 4.2, the 2-branch variant)."""

from __future__ import annotations

from collections.abc import Mapping

from autoloss import zoo
from autoloss.errors import RequestError, unknown
from autoloss.space.loss import bind
from autoloss.tasks.frozen import FrozenTask
from autoloss.tasks.task import Task


def freeze_branches(task: Task, losses: Mapping[str, str]) -> Task:
    """Return a task in which branches keep a loss.

    Args:
        losses: Branch → name of the zoo or formula; empty for the task's standard loss. `rpn` stands for all branches whose
            names begin with `rpn_`.

    Raises:
        RequestError: There is no such branch, its loss does not fit, or no branch is left.
    """
    kept: dict[str, str] = {}
    for name, text in losses.items():
        named = [branch for branch in task.branches if branch == name or branch.startswith(f"{name}_")]
        if not named:
            raise unknown("branch", name, task.branches)
        for branch in named:
            if not text and branch not in task.standard:
                raise RequestError(
                    f"The task names no standard loss for the branch {branch!r}; name the loss that it keeps.",
                    argument="frozen",
                )
            kept[branch] = text or task.standard[branch]
    if set(kept) == set(task.branches):
        raise RequestError(
            f"The task has the branches {', '.join(task.branches)}, and all of them are frozen; leave at least one to the search."
        )
    branches = {branch: task.branches[branch] for branch in kept}
    return FrozenTask(task, bind(zoo.resolve(kept, branches)[1], branches))
