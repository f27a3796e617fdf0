"""Tasks and operators as values: by a name of the catalogue, by `file.py:name`, or as the objects that a caller has."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from torch import nn

from autoloss import tasks, zoo
from autoloss.errors import FAILURES, RequestError, describe_user_error, name_kind, unknown
from autoloss.run.user_files import absolute_name, importable_files, load_object
from autoloss.space.loss import bind
from autoloss.space.operators import Operator
from autoloss.space.own_operators import build_operator_table
from autoloss.store.run_settings import TaskReference
from autoloss.tasks.task import FrozenTask, Task


def refer_to_task(
    task: str | Task,
    metric: str | None = None,
    options: Mapping[str, Any] | None = None,
    frozen: Mapping[str, str] | None = None,
) -> TaskReference:
    """Return how a run refers to its task, which is not made yet."""
    options = {**({} if metric is None else {"metric": absolute_name(metric)}), **(options or {})}
    if not isinstance(task, Task):
        absolute = {option: _absolute_path(value) for option, value in options.items()}
        return TaskReference(absolute_name(task), absolute, frozen or {})
    if options:
        raise RequestError(f"A task object takes no options; found {', '.join(options)}. Give them when you make it.")
    return TaskReference(None, {}, frozen or {})


@importable_files()
def load_task(reference: TaskReference, task: str | Task | None = None) -> Task:
    """Return the task that a reference stands for, with its frozen branches.

    Args:
        task: The task itself, where the caller has it; it is made otherwise.

    Raises:
        RequestError: There is none of that name, its options do not fit, or it was given as an object when the run was started.
    """
    if isinstance(task, Task):
        made = task
    elif reference.name is None:
        raise RequestError(
            "This run's task was given as an object; give it again, as in autoloss.resume(directory, task=…) or "
            "autoloss.retrain(directory, task=…)."
        )
    elif ".py:" in reference.name:
        # Of a command with --json, the document alone goes to stdout.
        with redirect_stdout(sys.stderr):
            made = _load_own_task(reference.name, reference.options)
    else:
        made = tasks.get(reference.name, **reference.options)
    return freeze_branches(made, reference.frozen) if reference.frozen else made


def freeze_branches(task: Task, losses: Mapping[str, str]) -> Task:
    """Return a task in which branches keep a loss.

    Args:
        losses: Branch → name of the zoo or formula; empty for the task's standard loss. `rpn` stands for all branches whose
            names begin with `rpn_`.
    """
    kept: dict[str, str] = {}
    for name, text in losses.items():
        named = [branch for branch in task.branches if branch == name or branch.startswith(f"{name}_")]
        if not named:
            raise unknown("branch", name, task.branches)
        for branch in named:
            if not text and branch not in task.standard:
                raise RequestError(
                    f"The branch {branch!r} has no standard loss; name the loss that it keeps.", argument="frozen"
                )
            kept[branch] = text or task.standard[branch]
    if set(kept) == set(task.branches):
        raise RequestError(f"All branches ({', '.join(task.branches)}) are frozen; leave at least one to search.")
    branches = {branch: task.branches[branch] for branch in kept}
    return FrozenTask(task, bind(zoo.resolve(kept, branches)[1], branches))


def operator_table(operators: Sequence[Operator | str], given: Sequence[Operator] = ()) -> Mapping[str, Operator]:
    """Return Table 1, followed by a run's own operators, by name.

    Args:
        operators: Objects, `file.py:name` of an operator or of several, or names of those that are given.
        given: Objects that stand for the names.

    Raises:
        RequestError: A file or a name is not there, an object must be given, or an operator cannot be used.

    >>> list(operator_table([]))[:3]
    ['add', 'mul', 'neg']
    """
    objects = {operator.name: operator for operator in given}
    if strangers := [name for name in objects if name not in operators]:
        raise RequestError(f"This run has no operators named {', '.join(strangers)}; leave them out.")
    own: list[Operator] = []
    for reference in operators:
        if isinstance(reference, Operator):
            own.append(reference)
        elif ".py:" in reference:
            own += _load_operators(reference)
        elif reference in objects:
            own.append(objects[reference])
        else:
            raise RequestError(
                f"The run's operator {reference!r} was given as an object in Python; give it again with operators=[…]."
            )
    return build_operator_table(own)


def _load_operators(name: str) -> list[Operator]:
    loaded = load_object(name, "operator", (Operator, list, tuple))
    operators = list(loaded) if isinstance(loaded, list | tuple) else [loaded]
    if not operators or not all(isinstance(operator, Operator) for operator in operators):
        raise RequestError(f"{name} is {name_kind(loaded)}; expected autoloss.Operator objects.")
    return operators


def _load_own_task(name: str, options: Mapping[str, Any]) -> Task:
    path, _, attribute = name.rpartition(":")
    loaded, what = load_object(name, "task", (Task,)), f"{attribute} in {Path(path).name}"
    from autoloss.tasks.supervised import SupervisedTask

    metric, others = None, dict(options)
    # A network can be called, and is no function that returns a task.
    function = loaded if callable(loaded) and not isinstance(loaded, Task | nn.Module) else None
    # The metric of a task that is none of its function's arguments is chosen afterwards.
    if function is None or "metric" not in inspect.signature(function).parameters:
        metric = others.pop("metric", None)
    if function is not None:
        try:
            inspect.signature(function).bind(**others)
        except TypeError as error:
            raise RequestError(
                f"{name} cannot be called with {f'the options {others}' if others else 'no options'}: {error}. Options are given "
                "as --set NAME=VALUE or options={…}."
            ) from error
        try:
            loaded = function(**others)
        except RequestError:
            raise
        except FAILURES as error:
            raise RequestError(f"{name} fails: {describe_user_error(error)}.") from error
    elif others:
        raise RequestError(
            f"{what} is not a function, so it takes no options; found {', '.join(others)}. Settings have a group, such as "
            "search.learning_rate; the budget is --evaluations, in Python evaluations=…."
        )
    if not isinstance(loaded, Task):
        raise RequestError(f"{what} is {name_kind(loaded)}; expected a Task or a function that returns one.")
    if isinstance(loaded, SupervisedTask):
        loaded.suggest_name(Path(path).stem if attribute == "task" else attribute)
    return loaded if metric is None else _choose_metric(loaded, str(metric), path)


def _choose_metric(task: Task, metric: str, file: str) -> Task:
    """Return the task with a metric of its own file, of another one (`file.py:name`), or among those that it reports."""
    from autoloss.tasks.supervised import SupervisedTask

    if not isinstance(task, SupervisedTask):
        raise RequestError(
            f"The task {task.name} computes its own score, so metric={metric} cannot be chosen. Define a function with an argument "
            "metric that returns the task."
        )
    if metric in (task.also or ()):
        return task.with_metric(metric)
    reference = metric if ".py:" in metric else f"{file}:{metric}"
    return task.with_metric(metric.rpartition(":")[2], load_object(reference, "metric"))


def _absolute_path(value: Any) -> Any:
    """Return the full path of a file or folder that exists, as text, so that a run can be resumed from elsewhere."""
    is_path = isinstance(value, Path) or (isinstance(value, str) and (os.sep in value or Path(value).suffix != ""))
    found = Path(value).resolve() if is_path and Path(value).exists() else value
    return str(found) if isinstance(found, Path) else found
