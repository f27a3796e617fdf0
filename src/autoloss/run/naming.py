"""A task by name: one of the catalogue's, or `file.py:name` of a person's own."""

from __future__ import annotations

import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from autoloss import tasks
from autoloss.errors import RequestError, unknown
from autoloss.run.frozen import with_frozen
from autoloss.store.run_settings import TaskReference
from autoloss.tasks.task import Task


def load_task(reference: TaskReference, task: Task | None = None) -> Task:
    """Return the task that a run refers to, with its frozen branches.

    Args:
        task: The task itself, where the caller has it; it is made otherwise.

    Raises:
        RequestError: There is none of that name, its options do not fit, or it was given as an object when the run was started.
    """
    if task is None:
        task = _make_task(reference)
    return with_frozen(task, reference.frozen) if reference.frozen else task


def _make_task(reference: TaskReference) -> Task:
    if reference.name is None:
        raise RequestError(
            "This run's task was handed over in Python; resume it with autoloss.resume(directory, task=…)."
        )
    if ".py:" in reference.name:
        return _task(reference.name, reference.options)
    return tasks.get(reference.name, **reference.options)


def inspect_data(reference: TaskReference) -> None:
    """Look over the data of a task of the catalogue, before the task is made.

    Raises:
        RequestError: Files are faulty; up to twenty are named.
    """
    if reference.name is not None and ".py:" not in reference.name:
        tasks.inspect(reference.name, **reference.options)


def resolve_task(
    task: str | Task,
    metric: str | None,
    options: Mapping[str, Any] | None,
    frozen: Mapping[str, str] | None = None,
) -> tuple[Task, TaskReference]:
    """Return the task and how to name it."""
    reference = task_reference(task, metric, options, frozen)
    return load_task(reference, task if isinstance(task, Task) else None), reference


def task_reference(
    task: str | Task,
    metric: str | None,
    options: Mapping[str, Any] | None,
    frozen: Mapping[str, str] | None = None,
) -> TaskReference:
    """Return how to name a task, which is not made yet.

    Raises:
        RequestError: A task object was given options.
    """
    options = {**({} if metric is None else {"metric": metric}), **(options or {})}
    if not isinstance(task, Task):
        return TaskReference(absolute(task), {option: _found(value) for option, value in options.items()}, frozen or {})
    if options:
        raise RequestError(f"A task object takes no options; found {', '.join(options)}. Give them when you make it.")
    return TaskReference(None, {}, frozen or {})


def absolute(name: str) -> str:
    """Return `file.py:name` with the file's full path, so that a run can be resumed from any folder."""
    path, colon, attribute = name.rpartition(":")
    return f"{Path(path).resolve()}:{attribute}" if colon and path.endswith(".py") else name


def _found(value: Any) -> Any:
    """Return the full path of a file or folder that exists, so that a run can be resumed from elsewhere."""
    looks_like_one = isinstance(value, str) and (os.sep in value or Path(value).suffix != "")
    return str(Path(value).resolve()) if looks_like_one and Path(value).exists() else value


def from_file(name: str, kind: str) -> Any:
    """Return what `file.py:name` names.

    Args:
        kind: What it should be, for messages.

    Raises:
        RequestError: There is no such file or name, or the file fails.
    """
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        article = "An" if kind[0] in "aeiou" else "A"
        raise RequestError(f"There is no file {path}. {article} {kind} of your own is named file.py:name.")
    specification = importlib.util.spec_from_file_location(f"autoloss_{kind}_{file.stem}", file)
    if specification is None or specification.loader is None:
        raise RequestError(f"{path} cannot be imported as Python.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[module.__name__] = module
    # Files beside the task's can be imported as they could from a script.
    sys.path.insert(0, str(file.resolve().parent))
    try:
        specification.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise RequestError(f"{path} fails on import: {type(error).__name__}: {error}") from error
    # Workers get what is in this file by value: they do not import it.
    cloudpickle.register_pickle_by_value(module)
    public = [key for key in vars(module) if not key.startswith("_")]
    if attribute not in public:
        raise unknown(f"{kind} in {file.name}", attribute, public)
    return getattr(module, attribute)


def _task(name: str, options: Mapping[str, Any]) -> Task:
    file, _, attribute = Path(name).name.rpartition(":")
    found = from_file(name, "task")
    if not isinstance(found, Task) and callable(found):
        try:
            inspect.signature(found).bind(**options)
        except TypeError as error:
            raise RequestError(f"{name} does not take the options {dict(options)}: {error}") from error
        try:
            found = found(**options)
        except RequestError:
            raise
        except Exception as error:
            raise RequestError(f"{name} fails: {type(error).__name__}: {error}") from error
    elif options:
        raise RequestError(f"{attribute} in {file} is no function, so it takes no options; found {', '.join(options)}.")
    if not isinstance(found, Task):
        raise RequestError(
            f"{attribute} in {file} is a {type(found).__name__}; expected a Task or a function that returns one."
        )
    return found
