"""How a run was started: decoded and checked here, encoded here, and read by attribute everywhere else; no torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from autoloss.conversion import parse_json
from autoloss.settings import Configuration
from autoloss.space.form import BranchForm
from autoloss.store.database import StoreError


@dataclass(frozen=True, slots=True)
class TaskReference:
    """How a run refers to its task, so that the task can be made again.

    Args:
        name: A name of the catalogue or `file.py:name`; None for a task that was given as an object.
        options: Keyword arguments, such as `metric`.
        frozen: Branch → name or formula of the loss that it keeps.
    """

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TaskReference:
        return cls(**parse_json(text))


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """What the rejection protocol says of a loss that a search was to start from.

    Args:
        label: The loss as the user wrote it.
        loss: Its text.
        g: Branch → correlation score, None where there is none.
        reason: Why it was rejected, with the branch, or None when it passed.
    """

    label: str
    loss: str
    g: Mapping[str, float | None]
    reason: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was compared on the test split.

    Args:
        seeds: The number of training seeds.
        entrants: Each as the keyword arguments of an entrant.
    """

    seeds: int = 0
    entrants: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All that a store keeps of how its run was started.

    Args:
        title: Name of the task, for people.
        branches: Branch → form, so that its losses are read without the task.
        release: That started the run.
        samples_digest: Of the file of samples; None in a run of schema 1.
        untrained: Score of the network with which the trainings begin, where the task tells it.
        standard: Score of the standard loss at the first of several rungs.
        standard_loss: Branch → formula or name in the zoo of the task's standard loss; empty in older runs.
        recipe: Of the proxy trainings, as plain values; empty in older runs and where the task does not tell.
        start: What became of the losses to start from.
        also: Further metrics that tables show.
        comparison: The only one that is changed when the search is over.
        final: Whether the best candidates are confirmed and compared when the budget is spent.
        workers: Processes that train and test.
    """

    configuration: Configuration
    task: TaskReference
    title: str
    branches: Mapping[str, BranchForm]
    release: str
    samples_digest: str | None = None
    untrained: float | None = None
    standard: float | None = None
    standard_loss: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    start: Sequence[StartVerdict] = ()
    also: Sequence[str] = ()
    comparison: Comparison = Comparison()
    final: bool = True
    workers: int = 2

    @property
    def leaves(self) -> dict[str, tuple[str, ...]]:
        """The names of each branch's leaves."""
        return {name: form.leaves for name, form in self.branches.items()}

    def to_rows(self) -> dict[str, str]:
        """Encode the settings as rows of a store: name → text.

        >>> settings = RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
        >>> settings.to_rows()["task"]
        '{"frozen": {}, "name": "x", "options": {}}'
        """
        defaults = {
            one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(self)
        }
        values = {name: getattr(self, name) for name in _CODECS}
        return dict(to_row(name, value) for name, value in values.items() if value != defaults[name])

    @classmethod
    def from_rows(cls, rows: Mapping[str, str], path: Path) -> RunSettings:
        """Decode the rows of a store.

        Args:
            path: Of the store, for messages.

        Raises:
            StoreError: A row is missing, or this release cannot read it.
        """
        found: dict[str, Any] = {}
        for name, (_, decode) in _CODECS.items():
            row = ROWS.get(name, name)
            try:
                if row in rows:
                    found[name] = decode(rows[row])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise StoreError(
                    f"{path}: the setting {row!r} cannot be read ({error}). Restore the file from a copy, or open it with the "
                    "release that wrote it."
                ) from error
            if row not in rows and name in NEEDED:
                raise StoreError(
                    f"{path}: the row of setting with name {row!r} is missing. Restore the file from a copy."
                )
        return cls(**found)


def to_row(name: str, value: Any) -> tuple[str, str]:
    """Encode one of the settings as the name and the text of its row."""
    return ROWS.get(name, name), _CODECS[name][0](value)


NEEDED = ("configuration", "task", "title", "branches", "release")
"""Settings that every run has."""
ROWS = {"samples_digest": "samples"}
"""Settings whose row has another name."""


def _encode_branches(branches: Mapping[str, BranchForm]) -> str:
    return json.dumps({name: form.to_dict() for name, form in branches.items()})


def _decode_branches(text: str) -> dict[str, BranchForm]:
    return {name: BranchForm.from_dict(form) for name, form in parse_json(text).items()}


def _decode_comparison(seeds: int, entrants: Sequence[Mapping[str, Any]]) -> Comparison:
    return Comparison(seeds, tuple(entrants))


_CODECS: Mapping[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    "configuration": (Configuration.to_json, Configuration.from_json),
    "task": (TaskReference.to_json, TaskReference.from_json),
    "title": (str, str),
    "branches": (_encode_branches, _decode_branches),
    "release": (str, str),
    "samples_digest": (str, str),
    "untrained": (json.dumps, parse_json),
    "standard": (json.dumps, parse_json),
    "standard_loss": (json.dumps, parse_json),
    "recipe": (json.dumps, parse_json),
    "start": (
        lambda start: json.dumps([asdict(one) for one in start]),
        lambda text: tuple(StartVerdict(**values) for values in parse_json(text)),
    ),
    "also": (lambda also: json.dumps(list(also)), lambda text: tuple(parse_json(text))),
    "final": (json.dumps, parse_json),
    "workers": (json.dumps, parse_json),
    "comparison": (lambda compared: json.dumps(asdict(compared)), lambda text: _decode_comparison(**parse_json(text))),
}
"""Setting → how its text is written and read."""
