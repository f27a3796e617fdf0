"""The rows of a store: candidates and trainings as text and numbers, never pickle."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from autoloss.errors import keep_text
from autoloss.proposing.records import REASON_CHARACTERS, Candidate, Outcome
from autoloss.store.database import Row, StoreError
from autoloss.training.training import Training

JSON = ConfigDict(
    strict=True, allow_inf_nan=False, ser_json_bytes="hex", val_json_bytes="hex", ser_json_inf_nan="constants"
)
PLAIN = (int, float, str, int | None, float | None)
"""Types of fields that are columns as they are; flags and enumerations are their values, all else is JSON."""
COLUMNS = {"accepted": "passed"}
"""Field → its column, where that has another name."""
OF_CANDIDATE = tuple(one.name for one in fields(Candidate))
OF_TRAINING = tuple(one.name for one in fields(Training) if one.compare)
OF_OUTCOME = ("state", "score", "also", "replicates", "curve", "step", "reason", "seconds")

Record = TypeVar("Record", Candidate, Training, Outcome)


@functools.cache
def _list_types(cls: type) -> Mapping[str, Any]:
    return get_type_hints(cls)


@functools.cache
def _adapt(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind, config=JSON)


def _encode(record: Candidate | Training | Outcome, names: Sequence[str]) -> dict[str, Any]:
    """Return fields of a record as columns."""
    found: dict[str, Any] = {}
    for name in names:
        kind, value = _list_types(type(record))[name], getattr(record, name)
        if kind is float:
            value = float(value)
        elif isinstance(value, Enum):
            value = value.value
        elif kind is bool:
            value = int(value)
        elif kind not in PLAIN and not isinstance(value, str):
            value = to_json(_adapt(kind).dump_python(value, mode="json"))
        found[COLUMNS.get(name, name)] = value
    return found


def _decode(cls: type[Record], row: Row, names: Sequence[str]) -> Record:
    """Read a record from columns."""
    try:
        found: dict[str, Any] = {}
        for name in names:
            kind, value = _list_types(cls)[name], row[COLUMNS.get(name, name)]
            if kind is bool or (isinstance(kind, type) and issubclass(kind, Enum)):
                value = kind(value)
            elif kind not in PLAIN and get_origin(kind) is not Literal:
                value = _adapt(kind).validate_json(value)
            found[name] = value
        return cls(**found)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        number = row.get("candidate", row.get("id"))
        raise StoreError(
            f"The row of candidate {number} cannot be read ({keep_text(str(error), 200)}). Restore the run's folder from a copy."
        ) from error


def candidate_to_row(candidate: Candidate) -> dict[str, Any]:
    """Return all of a candidate but its root and the time when it was made."""
    return _encode(replace(candidate, counts=dict(sorted(candidate.counts.items()))), OF_CANDIDATE)


def training_to_row(loss: str, training: Training, outcome: Outcome, candidate: int | None = None) -> dict[str, Any]:
    """Return what decides a training, its outcome, and the time of writing.

    Args:
        candidate: Number of the candidate; None beside the search.
    """
    curve = tuple((step, loss) for step, loss in outcome.curve if math.isfinite(loss))
    ended = _encode(replace(outcome, curve=curve), OF_OUTCOME)
    decided = {"candidate": candidate, "loss": loss, **_encode(training, OF_TRAINING)}
    return {**decided, **ended, "finished_at": time.time()}


candidate_from_row = functools.partial(_decode, Candidate, names=OF_CANDIDATE)
training_from_row = functools.partial(_decode, Training, names=OF_TRAINING)
"""Decode a candidate; decode what decides a training."""


def outcome_from_row(row: Row) -> Outcome:
    """Decode the outcome of one training."""
    found = _decode(Outcome, row, (*OF_OUTCOME, "fidelity"))
    if len(found.reason) <= REASON_CHARACTERS:
        return found
    return replace(found, reason=keep_text(found.reason, REASON_CHARACTERS))


class Pool:
    """`Outcome.pool` as an aggregate function of SQL; null for a single training."""

    def __init__(self) -> None:
        self._rows: list[Sequence[Any]] = []

    def step(self, *row: Any) -> None:
        """Take one training."""
        self._rows.append(row)

    def finalize(self) -> str | None:
        """Return the pooled outcome as JSON; None for a single training."""
        if len(self._rows) == 1:
            return None
        names = ("fidelity", "state", "score", "also", "step", "reason")
        rest = {"curve": "[]", "seconds": 0.0, "replicates": "null"}
        pooled = Outcome.pool([outcome_from_row({**dict(zip(names, row, strict=True)), **rest}) for row in self._rows])
        values = {name: getattr(pooled, name) for name in ("score", "deviation", "step", "reason")}
        return to_json({**values, "state": pooled.state.value, "also": to_json(dict(pooled.also))})


def read_figures(text: str) -> dict[str, float]:
    """Read what `Outcome.also` was written as."""
    try:
        return _adapt(dict[str, float]).validate_json(text)
    except ValueError as error:
        raise StoreError(f"The metrics of a training cannot be read: {error}. Restore the run from a copy.") from error


def to_json(value: Any) -> str:
    """Write a value as JSON without spaces.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
