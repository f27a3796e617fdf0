"""The start of a run: decoded and checked here, encoded here, and read by attribute everywhere else; no torch."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError
from autoloss.files import parse_json
from autoloss.settings import Configuration
from autoloss.space.form import BranchForm
from autoloss.store.database import StoreError


@dataclass(frozen=True, slots=True)
class TaskReference:
    """A reference to the task of a run, from which the task can be made again.

    Args:
        name: A name of the catalogue or `file.py:name`; None for a task that was given as an object.
        options: Keyword arguments, such as `metric`.
        frozen: Branch → name or formula of the loss that it keeps.
    """

    name: str | None
    options: Mapping[str, Any] = field(default_factory=dict)
    frozen: Mapping[str, str] = field(default_factory=dict)

    def with_data(self, place: str) -> TaskReference:
        """Return a reference to the task with its data in another place."""
        if "data" not in self.options:
            raise RequestError("The task of this run has no option data; leave data out.")
        return replace(self, options={**self.options, "data": os.path.abspath(place)})

    def to_arguments(self) -> list[str]:
        """Return the arguments of a command that name the task with its options, the name first.

        >>> TaskReference("tabular", {"data": "my data.csv", "steps": 20}).to_arguments()
        ['tabular', '--data', "'my data.csv'", '--set steps=20']
        """
        options, parts = dict(self.options), [shlex.quote(self.name or "TASK")]
        for name in ("metric", "data"):
            if name in options:
                parts += [f"--{name}", shlex.quote(str(options.pop(name)))]
        return [*parts, *(f"--set {shlex.quote(f'{name}={value}')}" for name, value in options.items())]


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """Verdict of the rejection protocol on a loss that a search was to start from.

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

    @property
    def is_compared(self) -> bool:
        """Whether a comparison has it among the baselines: the loss of an only branch, rejected, but not known to harm."""
        return self.reason is not None and len(self.g) == 1 and all(g is None or g > 0 for g in self.g.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    """The losses compared on the test split.

    Args:
        seeds: The number of training seeds.
        entrants: Each as the keyword arguments of an entrant.
        notes: Sentences on what was not compared.
    """

    seeds: int = 0
    entrants: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """All that a store keeps of how its run was started.

    Args:
        title: Name of the task, for people.
        branches: Branch → form, so that its losses are read without the task.
        release: That started the run.
        build: Releases that decide the last digits of its results.
        samples_digest: Digest of the file of samples.
        untrained: Score of the network with which the trainings begin, where the task tells it.
        untrained_on_test: Likewise on the test split, by which a later comparison knows that it is the same.
        half_right: Branch → metric of the samples with half of their positions right, by which another metric is noticed.
        fingerprints: Split → numbers that change with its data, if they are in memory.
        standard: Score of the standard loss at the first of several rungs.
        standard_loss: Branch → formula or name in the zoo of the task's standard loss.
        recipe: Settings of the proxy trainings as plain values; empty where the task does not tell.
        start: Verdicts on the losses to start from.
        also: Further metrics that tables show.
        comparison: Losses compared on the test split; the only setting that changes when the search is over.
        final: Whether the best candidates are confirmed and compared when the budget is spent.
        workers: Processes that train and test.
        ladder: The expert's ladder as plain values; None where there is none.
        alphabets: Branch → the leaves with their roles and the operators that its trees are drawn from, as plain values.
        explanation: What was trained to explain a loss, as plain values; None where nothing was explained.
        prepared: Whether the ladder and what follows from it are done, so that the search itself may begin.
        author: Signature of the code that the run names, by the user who started it; empty where it names none.
        data: Sentences on the data that were read and on what the task chose.
        changes: Sentences on how the task differed when the run was resumed or compared.
        task_version: 0 for the task that the run began with, else the number of the sentence on how it differs.
    """

    configuration: Configuration
    task: TaskReference
    title: str
    branches: Mapping[str, BranchForm]
    release: str
    build: Sequence[str] = ()
    samples_digest: str = ""
    untrained: float | None = None
    untrained_on_test: float | None = None
    half_right: Mapping[str, Sequence[float]] = field(default_factory=dict)
    fingerprints: Mapping[str, Sequence[float]] = field(default_factory=dict)
    standard: float | None = None
    standard_loss: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    start: Sequence[StartVerdict] = ()
    also: Sequence[str] = ()
    comparison: Comparison = Comparison()
    final: bool = True
    workers: int = 2
    ladder: Mapping[str, Any] | None = None
    alphabets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    explanation: Mapping[str, Any] | None = None
    prepared: bool = False
    author: str = ""
    data: Sequence[str] = ()
    changes: Sequence[str] = ()
    task_version: int = 0

    @property
    def leaves(self) -> dict[str, tuple[str, ...]]:
        """The names of each branch's leaves."""
        return {name: form.leaves for name, form in self.branches.items()}

    def to_rows(self) -> dict[str, str]:
        """Encode the settings as rows of a store: name → text.

        >>> settings = RunSettings(configuration=Configuration(), task=TaskReference("x"), title="x", branches={}, release="1")
        >>> settings.to_rows()["task"]
        '{"name": "x", "options": {}, "frozen": {}}'
        """
        defaults = {
            one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(self)
        }
        changed = {name: getattr(self, name) for name in defaults if getattr(self, name) != defaults[name]}
        return {name: encode_setting(value) for name, value in changed.items()}

    @classmethod
    def from_rows(cls, rows: Mapping[str, str], path: Path) -> RunSettings:
        """Decode the rows of a store."""
        found: dict[str, Any] = {}
        for one in fields(cls):
            name = one.name
            if name not in rows:
                if one.default is MISSING and one.default_factory is MISSING:
                    raise StoreError(f"{path}: the setting {name!r} is missing. Restore the file from a copy.")
                continue
            try:
                found[name] = _DECODERS.get(name, parse_json)(rows[name])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise StoreError(
                    f"{path}: the setting {name!r} cannot be read ({error}). Restore the file from a copy, or open it with the "
                    "release that wrote it."
                ) from error
        return cls(**found)


def encode_setting(value: Any) -> str:
    """Encode one of the settings as the text of its row."""
    if isinstance(value, Configuration):
        return value.to_json()
    if isinstance(value, str):
        return value
    return json.dumps(value, default=lambda one: one.to_dict() if isinstance(one, BranchForm) else asdict(one))


_DECODERS: Mapping[str, Callable[[str], Any]] = {
    "configuration": Configuration.from_json,
    "task": lambda text: TaskReference(**parse_json(text)),
    **dict.fromkeys(("title", "release", "samples_digest", "author"), str),
    "branches": lambda text: {name: BranchForm(**form) for name, form in parse_json(text).items()},
    "start": lambda text: tuple(StartVerdict(**values) for values in parse_json(text)),
    **dict.fromkeys(("also", "build", "data", "changes"), lambda text: tuple(parse_json(text))),
    "comparison": lambda text: replace(
        Comparison(),
        **{name: tuple(value) if isinstance(value, list) else value for name, value in parse_json(text).items()},
    ),
}
"""Setting → how its text is read, where it is not plain JSON."""
