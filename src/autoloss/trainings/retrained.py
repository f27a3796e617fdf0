"""What retrainings came to: one small file per training, written once it is finished, and the rows of a table.

Reading them needs no torch.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from autoloss.errors import RequestError
from autoloss.search.records import Outcome, State
from autoloss.trainings.evidence import Entrant, Row, by_mean

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
class Beside:
    """A published row as it stands in a table.

    Args:
        figures: Metric → value, in the metric's own unit.
    """

    label: str
    figures: Mapping[str, float]

    @classmethod
    def of(cls, row: Published) -> Beside:
        label = row.loss if row.target is None else f"{row.loss} for {row.target}"
        return cls(label, {metric: percent / 100 for metric, percent in row.figures.items()})


@dataclass(frozen=True, slots=True)
class Retrained:
    """A loss with what its trainings came to.

    Args:
        seeds: Of the trainings, in the order of their outcomes.
    """

    entrant: Entrant
    seeds: tuple[int, ...]
    outcomes: tuple[Outcome, ...]

    def row(self, figure: str, score: str = SCORE) -> Row:
        """Return one column of the trainings; its mean and deviation are over the seeds.

        Args:
            score: The name of the column of scores.
        """
        scores = tuple(outcome.score if figure == score else outcome.also.get(figure) for outcome in self.outcomes)
        reasons = dict.fromkeys(
            f"{outcome.state.value}: {outcome.reason}" for outcome in self.outcomes if outcome.reason
        )
        return Row(self.entrant, scores, reasons=tuple(reasons))


@dataclass(frozen=True, slots=True)
class Retraining:
    """Losses that were trained with the full schedule, the best first.

    Args:
        settings: What all trainings share: task, options, schedule, split, recipe, precision.
        metric: The name of the score's column.
        published: The paper's rows, if a recipe of it was asked for.
    """

    directory: Path
    settings: Mapping[str, Any]
    metric: str
    rows: Sequence[Retrained]
    published: Sequence[Beside] = field(default=())

    @property
    def figures(self) -> tuple[str, ...]:
        """The columns: the score, then whatever else was measured or published."""
        also = (name for row in self.rows for outcome in row.outcomes for name in outcome.also)
        known = (name for row in self.published for name in row.figures)
        return tuple(dict.fromkeys((self.metric, *also, *known)))

    def values(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "directory": str(self.directory),
            "settings": dict(self.settings),
            "metric": self.metric,
            "rows": [self._plain(row) for row in self.rows],
            "published": [{"label": row.label, "figures": dict(row.figures)} for row in self.published],
        }

    def _plain(self, retrained: Retrained) -> dict[str, Any]:
        columns = {figure: retrained.row(figure, self.metric) for figure in self.figures}
        return {
            "label": retrained.entrant.label,
            "loss": retrained.entrant.loss,
            "baseline": retrained.entrant.baseline,
            "seeds": list(retrained.seeds),
            "reasons": list(columns[self.metric].reasons),
            "figures": {
                figure: {"mean": row.mean, "sd": row.deviation, "values": list(row.scores)}
                for figure, row in columns.items()
                if row.finite
            },
        }


def ordered(rows: Sequence[Retrained]) -> list[Retrained]:
    """Order rows by the mean of their scores, the best first, those without one last."""
    by_entrant = {row.entrant: row for row in rows}
    return [by_entrant[row.entrant] for row in by_mean([row.row(SCORE) for row in rows])]


def write_result(folder: Path, belongs: Mapping[str, Any], outcome: Outcome) -> None:
    """Write what a training came to, whole or not at all."""
    values = {**dataclasses.asdict(outcome), "state": outcome.state.value}
    write_whole(folder / RESULT, json.dumps({**belongs, **values}, indent=1))


def result(folder: Path, belongs: Mapping[str, Any]) -> Outcome | None:
    """Return what a training came to, or None when it is not finished.

    Raises:
        RequestError: The file is damaged, or that of another training.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        there = {name: found.pop(name) for name in belongs}
        curve = tuple((int(step), float(loss)) for step, loss in found.pop("curve"))
        outcome = Outcome(**{**found, "state": State(found["state"])}, curve=curve)
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{path} is damaged ({error!r}). Delete {folder} to train it again.") from None
    refuse_another(path, there, belongs)
    return outcome


def agree(directory: Path, settings: Mapping[str, Any]) -> None:
    """Write down what all retrainings of a folder share, or hold what is asked against it.

    Raises:
        RequestError: The folder holds retrainings of another kind, or the file is damaged.
    """
    path = directory / SETTINGS
    if not path.exists():
        write_whole(path, json.dumps(settings, indent=1))
        return
    try:
        there = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RequestError(
            f"{path} is damaged ({error}). Restore it from a copy, or name a new folder: --out."
        ) from None
    refuse_another(path, there, json.loads(json.dumps(settings)))


def refuse_another(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Refuse to mix trainings that differ in more than loss and seed."""
    one, other = _flat(there), _flat(here)
    differing = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
    if differing:
        listed = "; ".join(f"{name} is {one.get(name)!r} there and {other.get(name)!r} here" for name in differing)
        raise RequestError(f"{path} is of another retraining: {listed}. Ask for the same, or name a new folder: --out.")


def write_whole(path: Path, text: str) -> None:
    """Write a text file, whole or not at all.

    Raises:
        RequestError: It cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Name another folder with --out.") from None


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
