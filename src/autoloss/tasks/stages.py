"""Options of a task that has a proxy and a retraining: every value of either, the retraining's behind `full_`.

A stage is a frozen dataclass with a `recipe`; its other fields and those of the recipe are options by their names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from inspect import Parameter, Signature
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from autoloss.errors import unknown
from autoloss.tasks.training.recipe import Recipe

PREFIXES = {"proxy": "", "full": "full_"}
"""Schedule → what the names of its options begin with."""
RECIPE = "recipe"


class Stage(Protocol):
    """What a schedule trains, and how."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def recipe(self) -> Recipe: ...


AnyStage = TypeVar("AnyStage", bound=Stage)
Values = TypeVar("Values")


def list_parameters(common: Any, stages: Mapping[str, Stage]) -> Iterator[Parameter]:
    """Yield all options with their defaults.

    Args:
        common: A dataclass of options of both schedules.
        stages: Schedule → its defaults.
    """
    yield from _list_fields("", common)
    for schedule, stage in stages.items():
        for values in (stage, stage.recipe):
            yield from _list_fields(PREFIXES[schedule], values)


def make_parameter(name: str, annotation: str, default: Any) -> Parameter:
    """Return one option."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def check_options(task: str, options: Iterable[str], signature: Signature) -> None:
    """Refuse an option that a task does not have.

    Raises:
        RequestError: There is none of that name.
    """
    for name in options:
        if name not in signature.parameters:
            raise unknown(f"option of the task {task}", name, signature.parameters)


def apply_options(stages: Mapping[str, AnyStage], options: Mapping[str, Any]) -> list[AnyStage]:
    """Return the stages with what the options say."""
    found: list[AnyStage] = []
    for schedule, stage in stages.items():
        prefix = PREFIXES[schedule]
        own = {name.removeprefix(prefix): options[name] for name in options if name.startswith(prefix)}
        recipe = dataclasses.replace(stage.recipe, **select_fields(Recipe, own))
        found.append(dataclasses.replace(stage, recipe=recipe, **select_fields(type(stage), own)))
    return found


def select_fields(kind: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a dataclass."""
    return {setting.name: options[setting.name] for setting in fields(kind) if setting.name in options}


def resolve_device(asked: str) -> str:
    """Return a device by name; auto is a GPU if there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked


def _list_fields(prefix: str, values: Any) -> Iterator[Parameter]:
    for setting in fields(values):
        if setting.name != RECIPE:
            yield make_parameter(prefix + setting.name, str(setting.type), getattr(values, setting.name))
