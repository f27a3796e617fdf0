"""The rows of a store: candidates and trainings as text and numbers, never pickle."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

from autoloss.errors import keep_text, quote
from autoloss.proposing.records import REASON_CHARACTERS, Candidate, Origin, Outcome, State
from autoloss.store.database import Row, StoreError
from autoloss.training.training import ItemWeights, Replicates, Training
from autoloss.untrusted_json import parse_json

NUMBERS = (float, int)


def candidate_to_row(candidate: Candidate) -> dict[str, Any]:
    """Return all of a candidate but its root and the time when it was made."""
    return {
        "id": candidate.id,
        "parent": candidate.parent,
        "kinds": to_json(candidate.kinds),
        "attempts": to_json(candidate.attempts),
        "loss": candidate.loss,
        "origin": candidate.origin.value,
        "source": candidate.source,
        "signature": to_json(candidate.signature),
        "scores": to_json(candidate.scores),
        "counts": to_json(dict(sorted(candidate.counts.items()))),
        "rejected": to_json({branch: keys.hex() for branch, keys in candidate.rejected.items()}),
        "passed": to_json({branch: keys.hex() for branch, keys in candidate.accepted.items()}),
        "fidelity": float(candidate.fidelity),
        "pool": to_json(dict(candidate.pool)),
        "seeds": to_json(candidate.seeds),
        "folds": to_json(candidate.folds),
    }


@contextmanager
def _decoding(row: Row) -> Iterator[None]:
    """Name a row that holds something else than this release writes, whatever its checksum says."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        number = row.get("candidate", row.get("id"))
        raise StoreError(
            f"The row of candidate {number} cannot be read ({keep_text(str(error), 200)}). Restore the run's folder from a copy."
        ) from error


def candidate_from_row(row: Row) -> Candidate:
    """Decode a candidate.

    Raises:
        StoreError: The row holds something else.
    """
    with _decoding(row):
        return Candidate(
            id=row["id"],
            parent=row["parent"],
            kinds=_by_name(row["kinds"], str),
            attempts=_by_name(row["attempts"], (int, NoneType)),
            loss=row["loss"],
            origin=Origin(row["origin"]),
            source=row["source"],
            signature={branch: _tuple(norms, str) for branch, norms in _by_name(row["signature"], list).items()},
            scores={branch: _tuple(scores, NUMBERS) for branch, scores in _by_name(row["scores"], list).items()},
            counts=_by_name(row["counts"], int),
            rejected={branch: bytes.fromhex(keys) for branch, keys in _by_name(row["rejected"], str).items()},
            accepted={branch: bytes.fromhex(keys) for branch, keys in _by_name(row["passed"], str).items()},
            fidelity=row["fidelity"],
            pool={
                branch: tuple((number, _tuple(signature, str)) for number, signature in attempts)
                for branch, attempts in _by_name(row["pool"], list).items()
            },
            seeds=_tuple(parse_json(row["seeds"]), int),
            folds=_tuple(parse_json(row["folds"]), int),
        )


def _by_name(text: str, kind: Any) -> dict[str, Any]:
    """Read values of one kind by their names.

    Raises:
        ValueError: It is something else.
    """
    found = parse_json(text)
    if not isinstance(found, dict) or not all(isinstance(value, kind) for value in found.values()):
        raise ValueError(f"found {quote(text)}, expected values by name")
    return found


def _tuple(values: Iterable[Any], kind: Any) -> tuple[Any, ...]:
    found = tuple(values)
    if not all(isinstance(value, kind) for value in found):
        raise ValueError(f"found {quote(found)}, expected a list of {kind}")
    return found


def training_to_row(loss: str, training: Training, outcome: Outcome, candidate: int | None = None) -> dict[str, Any]:
    """Return what decides a training, its outcome, and the time of writing.

    Args:
        candidate: Number of the candidate; None beside the search.
    """
    curve = [(step, loss) for step, loss in outcome.curve if math.isfinite(loss)]
    return {
        "candidate": candidate,
        "loss": loss,
        "seed": training.seed,
        "split": training.split,
        "fold": training.fold,
        "schedule": training.schedule,
        "fidelity": float(training.fidelity),
        "learning_rate": float(training.learning_rate),
        "scale": to_json(dict(training.scale)),
        "step_rule": training.step_rule,
        "length": float(training.length),
        "tuned_threshold": int(training.tuned_threshold),
        "paced_by": training.paced_by,
        "item_weights": to_json(training.item_weights),
        "state": outcome.state.value,
        "score": outcome.score,
        "also": to_json(dict(outcome.also)),
        "replicates": to_json(outcome.replicates and (outcome.replicates.examples, outcome.replicates.scores)),
        "curve": to_json(curve),
        "step": outcome.step,
        "reason": outcome.reason,
        "seconds": float(outcome.seconds),
        "finished_at": time.time(),
    }


def training_from_row(row: Row) -> Training:
    """Decode what decides a training.

    Raises:
        StoreError: The row holds something else.
    """
    with _decoding(row):
        names = ("seed", "split", "fold", "schedule", "fidelity", "learning_rate", "step_rule", "length", "paced_by")
        values = {name: row[name] for name in names}
        weights = parse_json(row["item_weights"])
        return Training(
            **values,
            scale=parse_json(row["scale"]),
            tuned_threshold=bool(row["tuned_threshold"]),
            item_weights=tuple(ItemWeights(branch, grouping, tuple(each)) for branch, grouping, each in weights),
        )


def outcome_from_row(row: Row) -> Outcome:
    """Decode the outcome of one training.

    Raises:
        StoreError: The row holds something else.
    """
    with _decoding(row):
        return Outcome(
            state=State(row["state"]),
            score=row["score"],
            also=read_figures(row["also"]),
            curve=tuple((step, loss) for step, loss in parse_json(row["curve"])),
            step=row["step"],
            reason=keep_text(row["reason"], REASON_CHARACTERS),
            seconds=row["seconds"],
            fidelity=row["fidelity"],
            replicates=_read_replicates(row["replicates"]),
        )


def _read_replicates(text: str) -> Replicates | None:
    found = parse_json(text)
    if found is None:
        return None
    examples, scores = found
    return Replicates(_tuple([examples], int)[0], _tuple(scores, (*NUMBERS, NoneType)))


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
    """Read what `Outcome.also` was written as.

    Raises:
        StoreError: It is something else.
    """
    try:
        return _by_name(text, NUMBERS)
    except ValueError as error:
        raise StoreError(f"The metrics of a training cannot be read: {error}. Restore the run from a copy.") from error


def to_json(value: Any) -> str:
    """Write a value as JSON without spaces.

    Raises:
        ValueError: A number is not finite.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
