"""The page of tasks with their options, from the catalogue and the functions that make them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from inspect import Parameter

from autoloss.tasks import catalogue
from autoloss.tasks.factory import PREFIXES, TaskFactory
from website.documented import cell, code, fields_of, format_value, table

INTRODUCTION = """\
# Tasks and their options

`--metric` and `--data` are options of the command line; `--set name=value` gives any other one, and in Python
`autoloss.tasks.get("digits-seg", metric="bf1", tail=2.0)`. The first metric is the default.
"""
FULL = PREFIXES["full"]


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for name, row in catalogue.CATALOGUE.items():
        needs = f" Needs `pip install autoloss[{row.extra}]`." if row.extra else ""
        metrics = ", ".join(map(code, row.metrics))
        parts += [f"## {name}", f"{row.description}.{needs}\n\nMetrics: {metrics}.", _options(name)]
    return "\n\n".join(parts) + "\n"


def _options(name: str) -> str:
    factory = catalogue.find_factory(name)
    listed = inspect.signature(factory).parameters
    options = {key: value for key, value in listed.items() if key != "metric"}
    said = _find_meanings(factory)
    rows = [
        [code(key), cell(said.get(key, "")), _default(option), _default(options.get(FULL + key))]
        for key, option in options.items()
        if not key.startswith(FULL)
    ]
    return table(["option", "meaning", "default", f"of retraining, {code(FULL + '…')}"], rows)


def _default(parameter: Parameter | None) -> str:
    return "" if parameter is None else code(format_value(parameter.default))


def _find_meanings(factory: TaskFactory) -> Mapping[str, str]:
    """Return the meaning of each option; of several declarations the first one counts."""
    said: dict[str, str] = {}
    for _, values in factory.declarations():
        said = fields_of(type(values)) | said
    return said
