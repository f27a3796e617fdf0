"""All settings of a run in one value, grouped by the paper's headings; `--set group.name=value` changes any of them."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autoloss.algorithm.evolution import EvolutionSettings
from autoloss.algorithm.mutation import OffspringSettings
from autoloss.algorithm.rejection.protocol import ProtocolSettings
from autoloss.errors import RequestError, shown, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """When a run ends before its budget, and when a training does.

    Raises:
        RequestError: A limit is not above 0.
    """

    wall_clock_seconds: float | None = None
    """Ends the search at its first unfinished loss."""
    explored: int | None = None
    """Ends the search when so many losses were drawn."""
    training_seconds: float = 3600.0
    """Deadline of one proxy training; past it the training is killed and counts as failed."""
    testing_seconds: float = 900.0
    """Deadline of one batch of rejection tests."""
    memory_gigabytes: float | None = None
    """Resident memory of one worker with all its processes, in 2**30 bytes; past it the worker is killed and its job is tried
    again. None: what the machine has."""
    charge_diverged: bool = False
    """Count diverged trainings into the budget."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gigabytes is None else round(self.memory_gigabytes * 2**30)

    def __post_init__(self) -> None:
        for name in ("wall_clock_seconds", "explored", "training_seconds", "testing_seconds", "memory_gigabytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RequestError(f"limits.{name} is {value}; it needs to be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """Section 3.1: what trees are drawn from besides the branch's leaves."""

    without: tuple[str, ...] = ()
    """Operators that are switched off."""
    operators: tuple[str, ...] = ()
    """A person's own: `file.py:name`, or the name of one that was handed over in Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSettings:
    """What is trained again when the budget is spent, before a winner is named.

    Raises:
        RequestError: A count is negative.
    """

    confirm: int = 10
    """So many of the best are re-trained on fresh seeds, on the valid split."""
    confirm_seeds: int = 2
    finalists: int = 4
    """So many of the best on those seeds are trained on further ones: a loss that fails one training in five shows it."""
    finalist_seeds: int = 3
    compare: int = 3
    """So many of these stand beside the baselines on the test split."""
    compare_seeds: int = 3

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            if getattr(self, setting.name) < 0:
                raise RequestError(f"final.{setting.name} is {getattr(self, setting.name)}; it cannot be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """What a run's history is a function of, with its limits.

    Raises:
        RequestError: `evaluations` is below 1, or the seed negative.
    """

    evaluations: int = 500
    """N, the number of proxy trainings that are charged."""
    seed: int = 0
    """Decides everything that is drawn."""
    space: SpaceSettings = field(default_factory=SpaceSettings)
    evolution: EvolutionSettings = field(default_factory=EvolutionSettings)
    offspring: OffspringSettings = field(default_factory=OffspringSettings)
    rejection: ProtocolSettings = field(default_factory=ProtocolSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    final: FinalSettings = field(default_factory=FinalSettings)

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise RequestError(f"evaluations is {self.evaluations}; a search needs at least 1.")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed is {self.seed}; it needs to be from 0 to 2**63 - 1.")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Configuration:
        """Read what `to_json` wrote; what this release does not know is an error.

        Raises:
            RequestError: It is no configuration, or has an unknown group or setting.
        """
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"This is no configuration of a run: {error}; found {shown(text)}.") from None
        groups = _groups()
        for part in (values, *(values.get(name, {}) for name in groups)) if isinstance(values, dict) else (values,):
            if not isinstance(part, dict):
                raise RequestError(
                    f"This is no configuration of a run: expected groups of settings, found {shown(part)}."
                )
        changes = {name: values.pop(name) for name in list(values) if name not in groups}
        for group, settings in values.items():
            changes.update({f"{group}.{name}": value for name, value in settings.items()})
        return cls().changed(changes)

    def changed(self, settings: Mapping[str, Any]) -> Configuration:
        """Return a configuration with some settings changed; texts are read as the setting's type.

        Args:
            settings: `evolution.lag` and the like → value or its text.

        Raises:
            RequestError: An unknown setting, or a value that does not fit.
        """
        top: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            group, dot, name = key.rpartition(".")
            if dot:
                groups.setdefault(group, {})[name] = _read(key, value)
            else:
                top[name] = _read(key, value)
        for group, values in groups.items():
            top[group] = dataclasses.replace(getattr(self, group), **values)
        return dataclasses.replace(self, **top)


def setting_names() -> list[str]:
    """Return every setting as `--set` names it."""
    plain = [setting.name for setting in dataclasses.fields(Configuration) if setting.name not in _groups()]
    grouped = [f"{group}.{setting.name}" for group, kind in _groups().items() for setting in dataclasses.fields(kind)]
    return plain + grouped


def _groups() -> dict[str, type]:
    hints = typing.get_type_hints(Configuration)
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}


def _read(key: str, value: Any) -> Any:
    """Return a value as its setting's type."""
    if key not in setting_names():
        raise unknown("setting", key, setting_names())
    group, _, name = key.rpartition(".")
    hint = typing.get_type_hints(_groups()[group] if group else Configuration)[name]
    alternatives = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    for kind in alternatives:
        try:
            return _converted(kind, value)
        except (ValueError, TypeError, KeyError):
            continue
    expected = " or ".join(_described(kind) for kind in alternatives)
    raise RequestError(f"{key} takes {expected}; found {shown(value)}.")


def _converted(kind: Any, value: Any) -> Any:
    if kind is type(None):
        if value in (None, "none", ""):
            return None
        raise ValueError
    if typing.get_origin(kind) is typing.Literal:
        if value in typing.get_args(kind):
            return value
        raise ValueError
    if typing.get_origin(kind) is tuple:
        return _texts(value)
    if kind is bool:
        return {"true": True, "false": False, True: True, False: False}[
            value.lower() if isinstance(value, str) else value
        ]
    if value is None or isinstance(value, bool):
        raise ValueError
    found = kind(value)
    if (kind is int and float(value) != found) or (kind is float and not math.isfinite(found)):
        raise ValueError
    return found


def _texts(value: Any) -> tuple[str, ...]:
    """Read a list of texts; a text is one with commas between."""
    if isinstance(value, str):
        value = [part for part in map(str.strip, value.strip("()").split(",")) if part]
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError
    return tuple(value)


def _described(kind: Any) -> str:
    if kind is type(None):
        return "none"
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(map(repr, typing.get_args(kind)))
    if typing.get_origin(kind) is tuple:
        return "texts with commas between"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
