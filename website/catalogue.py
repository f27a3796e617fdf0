"""The page of tasks with their options, from the catalogue and the functions that make them."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from inspect import Parameter
from typing import Any

from autoloss.tasks import catalogue
from autoloss.tasks.segmentation.task import SegmentationFactory
from autoloss.tasks.stages import PREFIXES
from autoloss.training.recipe import Recipe
from website.documented import cell, code, docstring, fields_of, format_value, table

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
    options = {key: value for key, value in listed.items() if _is_option(value)}
    said = _find_meanings(factory)
    rows = [
        [code(key), _default(option), _default(options.get(FULL + key)), cell(said.get(key, ""))]
        for key, option in options.items()
        if not key.startswith(FULL)
    ]
    return table(["option", "default", f"of retraining, {code(FULL + '…')}", "meaning"], rows)


def _is_option(parameter: Parameter) -> bool:
    return parameter.name != "metric" and parameter.kind is not Parameter.VAR_KEYWORD


def _default(parameter: Parameter | None) -> str:
    return "" if parameter is None else code(format_value(parameter.default))


def _find_meanings(factory: Any) -> Mapping[str, str]:
    """Return the meaning of each option; of several declarations the last one counts."""
    said: dict[str, str] = fields_of(Recipe)
    for entries in _find_declarations(factory):
        said |= {name: text for name, text in entries.items() if text}
    return said


def _find_declarations(factory: Any) -> Iterator[Mapping[str, str]]:
    module = import_module(factory.__module__)
    for kind in vars(module).values():
        own = isinstance(kind, type) and kind.__module__ == module.__name__
        if own and dataclasses.is_dataclass(kind) and kind is not type(factory):
            yield fields_of(kind)
    if isinstance(factory, SegmentationFactory):
        yield docstring(factory.find_splits).entries("Args")
    elif inspect.isfunction(factory):
        yield docstring(factory).entries("Args")
