"""A task with a fixed loss on some branches, while the others are searched (Section 4.2, the variant with two branches)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import final

from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.task import Picture, Task
from autoloss.training.execution import Execution
from autoloss.training.training import Diverged, Observe, Scored, Stopped, Training

_DECLARED = {name for name in (*vars(Task), *Task.__annotations__) if not name.startswith("_")}
"""Public attributes and methods of a task."""


@final
class FrozenTask(Task):
    """A task without the branches in `losses`, which keep their loss; all other members are those of the wrapped task."""

    def __init__(self, task: Task, losses: Criterion) -> None:
        self._task = task
        self._losses = losses
        forwarded = sorted(_DECLARED - vars(FrozenTask).keys())
        vars(self).update(zip(forwarded, attrgetter(*forwarded)(task), strict=True))
        self.standard = {branch: loss for branch, loss in task.standard.items() if branch not in losses}
        self.baselines = [other for other in task.baselines if not other.keys() & losses.keys()]

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {name: branch for name, branch in self._task.branches.items() if name not in self._losses}

    def measuring(self, names: Sequence[str]) -> Task:
        return FrozenTask(self._task.measuring(names), self._losses)

    def lengthen(self, factor: float) -> Task:
        return FrozenTask(self._task.lengthen(factor), self._losses)

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        samples = self._task.samples(count, seed)
        return {name: samples[name] for name in self.branches}

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
        pacing: Criterion | None = None,
    ) -> Scored | Diverged | Stopped:
        paced = {} if pacing is None else {"pacing": {**self._losses, **pacing}}
        return self._task.train({**self._losses, **criterion}, training, execution, observe, **paced)

    def pictures(self, criterion: Criterion, training: Training, count: int) -> Sequence[Picture] | Diverged | Stopped:
        return self._task.pictures({**self._losses, **criterion}, training, count)
