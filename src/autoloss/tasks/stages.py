"""Options of tasks that have a proxy and a retraining: all values of both, those of the retraining with the prefix `full_`.

A stage is a frozen dataclass with a `recipe`; its other fields and those of the recipe are options of the same names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from autoloss.errors import unknown
from autoloss.training.recipe import Recipe

PREFIXES = {"proxy": "", "full": "full_"}
"""Schedule → prefix of its options."""
RECIPE = "recipe"


class Stage(Protocol):
    """Network, data and recipe of a schedule."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def recipe(self) -> Recipe: ...


AnyStage = TypeVar("AnyStage", bound=Stage)
Values = TypeVar("Values")


def list_parameters(common: Any, stages: Mapping[str, Stage]) -> Iterator[Parameter]:
    """Yield all options with their defaults.

    Args:
        common: A dataclass of the options that both schedules share.
        stages: Schedule → its defaults.
    """
    yield from list_fields(common)
    for schedule, stage in stages.items():
        for values in (stage, stage.recipe):
            yield from list_fields(values, PREFIXES[schedule])


def make_parameter(name: str, annotation: str, default: Any) -> Parameter:
    """Return an option as a keyword-only parameter."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def check_options(task: str, options: Iterable[str], signature: Signature) -> None:
    """Check that a task has all options.

    Raises:
        RequestError: It does not have one of them.
    """
    for name in options:
        if name not in signature.parameters:
            raise unknown(f"option of the task {task}", name, signature.parameters)


def apply_options(stages: Mapping[str, AnyStage], options: Mapping[str, Any]) -> list[AnyStage]:
    """Return the stages with the values of the options."""
    changed: list[AnyStage] = []
    for schedule, stage in stages.items():
        prefix = PREFIXES[schedule]
        own = {name.removeprefix(prefix): options[name] for name in options if name.startswith(prefix)}
        recipe = dataclasses.replace(stage.recipe, **select_fields(Recipe, own))
        changed.append(dataclasses.replace(stage, recipe=recipe, **select_fields(type(stage), own)))
    return changed


def select_fields(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return those options that are fields of a dataclass."""
    return {setting.name: options[setting.name] for setting in fields(kind) if setting.name in options}


def resolve_device(name: str) -> str:
    """Return the name of a device; `auto` is a GPU if there is one, else the CPU."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def list_fields(values: Any, prefix: str = "") -> Iterator[Parameter]:
    """Yield the fields of a dataclass as options, except its recipe."""
    for setting in fields(values):
        if setting.name != RECIPE:
            yield make_parameter(prefix + setting.name, str(setting.type), getattr(values, setting.name))
