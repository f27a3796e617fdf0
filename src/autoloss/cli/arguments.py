"""Arguments shared by several commands, parsed and checked before torch is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autoloss.errors import RequestError, quote

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="A name of `autoloss tasks`, or file.py:name.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]
Metric = Annotated[str | None, typer.Option(help="Metric to maximise; the task's default if omitted.")]
Data = Annotated[str | None, typer.Option(help="Folder or file of the data set.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="An option of the task or a setting of a search; repeatable."),
]
Workers = Annotated[int, typer.Option(min=0, help="Number of worker processes; 0 runs everything in this process.")]
Ray = Annotated[
    str | None,
    typer.Option(metavar="auto|ADDRESS", help="Use a Ray cluster: one started here (auto), or the one at host:port."),
]
RayInsecure = Annotated[
    bool, typer.Option("--ray-insecure", help="Allow a cluster that accepts commands from anyone who can reach it.")
]
Inject = Annotated[
    str | None,
    typer.Option(metavar="FAULT=RATE,…", help="Faults to inject, like worker-crash=0.05,hang=0.01,seed=7."),
]
Final = Annotated[
    bool, typer.Option(help="At the end, train the best losses on new seeds and compare them with baselines.")
]
Individual = Annotated[int | None, typer.Argument(metavar="ID", help="Number of a loss; the best found by default.")]
Frozen = Annotated[
    list[str] | None,
    typer.Option(metavar="BRANCH=LOSS", help="Fix the loss of a branch (zoo name or formula); repeatable."),
]
Operators = Annotated[list[str] | None, typer.Option(metavar="FILE.PY:NAME", help="Operators of your own; repeatable.")]
Vouched = Annotated[
    list[str] | None,
    typer.Option("--operators", metavar="FILE.PY:NAME", help="Operators of the run that may be loaded; repeatable."),
]
Trust = Annotated[
    bool, typer.Option("--trust", help="Run the files that a run names, even if another user started it.")
]
Also = Annotated[str | None, typer.Option(help="Further metrics to show, separated by commas.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def read(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command as those of the function that it calls: its `locals()`, with texts parsed.

    `--set` and `--data` become settings and options; a task's name is checked before torch is imported.
    """
    found = {name: value for name, value in given.items() if name not in ("context", "as_json")}
    if "assignments" in found:
        found["settings"], found["options"] = parse_assignments(found.pop("assignments"), found.pop("data"))
    if "task" in found:
        check_task_name(found["task"], found["metric"])
    parsers = {"frozen": parse_frozen, "also": parse_list, "operators": tuple, "start": tuple}
    return found | {name: parse(found[name] or "") for name, parse in parsers.items() if name in found}


def refuse_settings(settings: Mapping[str, str], sentence: str) -> None:
    """Refuse settings of a search where only options of the task belong."""
    if settings:
        raise RequestError(f"{sentence} takes options of the task; found the setting {', '.join(settings)}.")


def parse_assignments(assignments: list[str] | None, data: str | None) -> tuple[dict[str, str], dict[str, Any]]:
    """Split `--set` into settings of the run, which have a dot, and options of the task.

    >>> parse_assignments(["evolution.lag=2", "size=16"], data=None)
    ({'evolution.lag': '2'}, {'size': '16'})
    """
    found: dict[str, str] = {}
    for assignment in assignments or ():
        key, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise RequestError(f"--set takes key=value, like evolution.lag=2; found {quote(assignment)}.")
        if key in found:
            raise RequestError(f"--set {key} is given twice; keep one of them.")
        found[key] = value
    settings = {key: value for key, value in found.items() if "." in key}
    options: dict[str, Any] = {key: value for key, value in found.items() if "." not in key}
    return settings, options | ({} if data is None else {"data": data})


def check_task_name(task: str, metric: str | None) -> None:
    """Raise for an unknown task or metric, before torch is imported."""
    from autoloss.tasks.catalogue import CATALOGUE, find_entry

    if task.endswith(".py") and not Path(task).exists():
        raise RequestError(f"There is no file {task}. A task of your own is named file.py:name.")
    if task.endswith(".py"):
        raise RequestError(f"{task} is a file; name the task in it as well: {_suggest_objects(task)}.")
    if ".py:" not in task:
        if task not in CATALOGUE and Path(task).exists():
            named = (
                f"folder-seg --data {task}" if Path(task).is_dir() else f"tabular --data {task} --set target=<column>"
            )
            raise RequestError(f"{task} is data, not a task. Name a task first, such as: {named}")
        find_entry(task, metric)


def _suggest_objects(path: str) -> str:
    """Return `file.py:name` for likely tasks among the top-level definitions of a file, without running it."""
    import ast

    try:
        body = ast.parse(Path(path).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return f"{path}:name"
    found = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    targets = (target for node in body if isinstance(node, ast.Assign) for target in node.targets)
    found += [target.id for target in targets if isinstance(target, ast.Name)]
    # A task usually has the word in its name, or is the last object of a file.
    likely = [name for name in found if "task" in name.lower()] or found[-1:]
    return " or ".join(f"{path}:{name}" for name in likely[:3]) or f"{path}:name"


def parse_frozen(texts: Sequence[str]) -> dict[str, str]:
    """Parse `branch=loss`; a branch without a loss keeps the task's standard one."""
    losses: dict[str, str] = {}
    for text in texts:
        branch, _, loss = (part.strip() for part in text.partition("="))
        if not branch:
            raise RequestError(f"--frozen takes branch=loss, like rpn_cls=baseline/ce; found {text!r}.")
        if branch in losses:
            raise RequestError(f"The branch {branch!r} is frozen twice; keep one of its losses.")
        losses[branch] = loss
    return losses


def parse_budget(text: str | None, directory: Path) -> int | None:
    """Parse a budget: a number, or `+N` for N trainings more than the budget of the run."""
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise RequestError(f"--evaluations takes a number, or +N for N more; found {quote(text)}.") from None
    if not text.startswith("+"):
        return number
    from autoloss.run.results import open_run

    return open_run(directory).configuration.evaluations + number


def parse_list(text: str) -> list[str]:
    """Split at commas; `none` is an empty list.

    >>> parse_list("exp, log"), parse_list("none")
    (['exp', 'log'], [])
    """
    return [] if text.strip() == "none" else [name for name in map(str.strip, text.split(",")) if name]
