"""What retrainings came to: one small file per training, written once it is finished, and the table of all of them.

Reading them needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autoloss.atomic_files import write_text
from autoloss.comparison.table import Measurements, Row
from autoloss.conversion import parse_json
from autoloss.errors import RequestError
from autoloss.proposing.records import Outcome, State

RESULT = "result.json"
SETTINGS = "retraining.json"
SCORE = "score"
"""The column of the task's own metric where its name is not known."""


class Published(Protocol):
    """A row of the paper's table to set beside one's own; a recipe has such."""

    @property
    def loss(self) -> str: ...
    @property
    def target(self) -> str | None:
        """The metric that the loss was made for, if for one."""
        ...

    @property
    def figures(self) -> Mapping[str, float]:
        """Metric → percent."""
        ...


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A published row of results in the unit of the table.

    Args:
        figures: Metric → value, in the metric's own unit.
    """

    label: str
    figures: Mapping[str, float]

    @classmethod
    def of(cls, row: Published) -> PublishedRow:
        label = row.loss if row.target is None else f"{row.loss} for {row.target}"
        return cls(label, {metric: percent / 100 for metric, percent in row.figures.items()})


@dataclass(frozen=True, slots=True)
class Retraining:
    """Losses that were trained with the full schedule, the best first.

    Args:
        settings: What all trainings share: task, options, schedule, split, recipe, precision.
        metric: The name of the score's column.
        seeds: The training seeds, in the order of the outcomes of each row.
        published: The paper's rows, if a recipe of it was asked for.
    """

    directory: Path
    settings: Mapping[str, Any]
    metric: str
    seeds: tuple[int, ...]
    rows: Sequence[Row]
    published: Sequence[PublishedRow] = field(default=())

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns: the score, then whatever else was measured or published."""
        also = (name for row in self.rows for outcome in row.outcomes for name in outcome.also)
        published = (name for row in self.published for name in row.figures)
        return tuple(dict.fromkeys((self.metric, *also, *published)))

    def column(self, row: Row, figure: str) -> Measurements:
        """Return one column of a row; its mean and standard deviation are over the seeds."""
        return row.score if figure == self.metric else row.figure(figure)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "directory": str(self.directory),
            "settings": dict(self.settings),
            "metric": self.metric,
            "rows": [self._row_to_dict(row) for row in self.rows],
            "published": [{"label": row.label, "figures": dict(row.figures)} for row in self.published],
        }

    def _row_to_dict(self, row: Row) -> dict[str, Any]:
        columns = {figure: self.column(row, figure) for figure in self.figures}
        return {
            "label": row.entrant.label,
            "loss": row.entrant.loss,
            "baseline": row.entrant.baseline,
            "learning_rate": row.entrant.learning_rate,
            "scale": row.entrant.scale,
            "seeds": list(self.seeds),
            "reasons": list(row.reasons),
            "figures": {
                figure: {"mean": column.mean, "sd": column.deviation, "values": list(column.values)}
                for figure, column in columns.items()
                if column.finite
            },
        }


def write_result(folder: Path, belongs: Mapping[str, Any], outcome: Outcome) -> None:
    """Write what a training came to, whole or not at all."""
    values = {**dataclasses.asdict(outcome), "state": outcome.state.value}
    write_text(folder / RESULT, json.dumps({**belongs, **values}, indent=1))


def read_result(folder: Path, belongs: Mapping[str, Any]) -> Outcome | None:
    """Return what a training came to, or None when it is not finished.

    Raises:
        RequestError: The file is damaged, or that of another training.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        there = {name: found.pop(name) for name in belongs}
        curve = tuple((int(step), float(loss)) for step, loss in found.pop("curve"))
        outcome = Outcome(**{**found, "state": State(found["state"])}, curve=curve)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path} is damaged ({error!r}). Delete {folder} to train it again.") from None
    check_same(path, there, belongs)
    return outcome


def check_settings(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write what all trainings of a folder share, or compare it with what stands there.

    Raises:
        RequestError: The folder holds other retrainings, or the file is damaged.
    """
    path = directory / SETTINGS
    if not path.exists():
        write_text(path, json.dumps(settings, indent=1))
        return
    try:
        there = parse_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RequestError(f"{path} is damaged ({error}). Restore it from a copy, or give another directory.") from None
    check_same(path, there, json.loads(json.dumps(settings)))


def check_same(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to mix trainings that differ in more than loss and seed."""
    one, other = _flat(there), _flat(here)
    differing = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
    if differing:
        listed = "; ".join(f"{name} is {one.get(name)!r} there and {other.get(name)!r} here" for name in differing)
        raise RequestError(f"{path} is of another retraining: {listed}. Ask for the same, or give another directory.")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
