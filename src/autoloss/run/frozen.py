"""A task some of whose branches keep a given loss; a search sees the others only (Section 4.2, the 2-branch variant)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from autoloss import zoo
from autoloss.errors import RequestError, unknown
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.space.loss import bind
from autoloss.tasks.task import Diverged, Observe, Picture, Scored, Stopped, Task, Training
from autoloss.tasks.training.execution import Execution


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


@final
class FrozenTask(Task):
    """A task some of whose branches keep a loss and are not searched. All else is the task's own."""

    def __init__(self, task: Task, losses: Criterion) -> None:
        self._task = task
        self._losses = losses
        self.name = task.name
        self.standard = {branch: loss for branch, loss in task.standard.items() if branch not in losses}
        self.splits = task.splits
        self.schedules = task.schedules
        self.also = task.also
        self.tunes_learning_rate = task.tunes_learning_rate
        self.shortens = task.shortens
        self.execution = task.execution

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {name: branch for name, branch in self._task.branches.items() if name not in self._losses}

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        found = self._task.samples(count, seed)
        return {name: found[name] for name in self.branches}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
    ) -> Scored | Diverged | Stopped:
        return self._task.train({**self._losses, **criterion}, training, execution, observe)

    def steps(self, training: Training) -> int | None:
        return self._task.steps(training)

    def untrained(self, seed: int) -> float | None:
        return self._task.untrained(seed)

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        return self._task.recipe(schedule)

    def pictures(self, criterion: Criterion, training: Training, count: int) -> Sequence[Picture] | Diverged | Stopped:
        return self._task.pictures({**self._losses, **criterion}, training, count)
