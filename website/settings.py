"""The page of settings, from the dataclasses that hold them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from autoloss import recipes, tasks
from autoloss.options import describe, list_types
from autoloss.settings import Configuration
from website.documented import cell, code, docstring, fields_of, format_value, table

INTRODUCTION = """\
# Settings of a run

`--set name=value` changes one on the command line, `settings={"name": value}` in `autoloss.search`. They belong to the run:
with the seed they decide its history, and a resumed run keeps them. [The paper](../paper.md) says where a value is the paper's.
Options of a task, which have no dot in their name, are on the page of [tasks](tasks.md).
"""
OF_TASKS = """\
## What a search begins with

A search begins with the settings of the recipe `default`: these, over the defaults above, which are the paper's. `--recipe paper`
leaves the row of every task out. `--set` goes over both.
"""


def page() -> str:
    """Return the page."""
    defaults = Configuration()
    hints = list_types(Configuration)
    groups = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    own = {name: text for name, text in fields_of(Configuration).items() if name not in groups}
    parts = [INTRODUCTION, "## The run", _table("", own, defaults, hints)]
    for group, kind in groups.items():
        assert isinstance(kind, type)
        parts += [f"## {group}", docstring(kind).text]
        parts.append(_table(f"{group}.", fields_of(kind), getattr(defaults, group), list_types(kind)))
    return "\n\n".join([*parts, OF_TASKS, _of_tasks()]) + "\n"


def _of_tasks() -> str:
    rows = [["every task", _list_settings(recipes.DEFAULT)]]
    for task in tasks.names():
        changed = recipes.get_search_settings(task).items() - recipes.DEFAULT.items()
        if changed:
            rows.append([code(task), _list_settings(dict(sorted(changed)))])
    return table(["task", "settings"], rows)


def _list_settings(settings: Mapping[str, object]) -> str:
    return ", ".join(code(f"{name}={format_value(value)}") for name, value in settings.items())


def _table(prefix: str, said: dict[str, str], values: object, hints: Mapping[str, object]) -> str:
    rows = [
        [code(prefix + name), cell(text), code(format_value(getattr(values, name))), describe(hints[name])]
        for name, text in said.items()
    ]
    return table(["setting", "meaning", "default", "takes"], rows)
