"""The rows of a store: candidates, trainings and outcomes as text and numbers, never pickle, with a checksum in every row."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import NoneType
from typing import Any, final

from autoloss.conversion import parse_json
from autoloss.errors import RunError, keep_text, quote
from autoloss.proposing.records import REASON_CHARACTERS, Candidate, Origin, Outcome, State
from autoloss.training.training import Training

CHECKSUM = "checksum"
NUMBER = (float, int)
Row = Mapping[str, Any]


class StoreError(RunError):
    """A store that cannot be read, or a damaged row of it."""


def insert(connection: sqlite3.Connection, table: str, row: Row, *, replace: bool = False) -> None:
    """Write a row with its checksum."""
    row = {**row, CHECKSUM: checksum(row)}
    verb = "REPLACE" if replace else "INSERT"
    marks = ", ".join("?" * len(row))
    connection.execute(f"{verb} INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def checksum(row: Row) -> str:
    """Return sixteen hexadecimal digits of a row without its checksum; names of columns count too."""
    return hashlib.blake2b(repr(sorted(row.items())).encode(), digest_size=8).hexdigest()


def intact(row: Row) -> bool:
    """Say whether a row is what was written."""
    values = dict(row)
    return values.pop(CHECKSUM, None) == checksum(values)


@final
class Template:
    """Checks the rows of one table, a hundred thousand of them in about a second.

    The text under a checksum is formatted from a template, in which texts are inserted as they are: most of a run's bytes are
    JSON without quotes or backslashes that `repr` would escape. A row that does not fit is checked again by `intact`, so the
    verdict is the same.

    Args:
        columns: Name → declared type, as the table has them.

    Attributes:
        names: The columns in the order in which a row is given: the checksum follows the others.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        summed = sorted(name for name in columns if name != CHECKSUM)
        self.names = (*summed, CHECKSUM)
        written = (repr(name).replace("%", "%%") for name in summed)
        values = ("'%s'" if columns[name] == "TEXT" else "%r" for name in summed)
        self._text = f"[{', '.join(f'({name}, {value})' for name, value in zip(written, values, strict=True))}]"

    def check(self, rows: Iterable[tuple[Any, ...]], damaged: Callable[[tuple[Any, ...]], object]) -> Iterator[Any]:
        """Yield the rows that are what was written; a row may have further columns.

        Args:
            damaged: Called with each other row.
        """
        text, count, digest = self._text, len(self.names) - 1, hashlib.blake2b
        for row in rows:
            fits = digest((text % row[:count]).encode(), digest_size=8).hexdigest() == row[count]
            if fits or intact(dict(zip(self.names, row, strict=False))):
                yield row
            else:
                damaged(row)


def candidate_to_row(candidate: Candidate) -> dict[str, Any]:
    """Return all of a candidate but the time when it was made, which is for people."""
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
    with _decoding(row):
        return _candidate_from_row(row)


def _candidate_from_row(row: Row) -> Candidate:
    return Candidate(
        id=row["id"],
        parent=row["parent"],
        kinds=_by_name(row["kinds"], str),
        attempts=_by_name(row["attempts"], (int, NoneType)),
        loss=row["loss"],
        origin=Origin(row["origin"]),
        source=row["source"],
        signature={branch: _tuple(norms, str) for branch, norms in _by_name(row["signature"], list).items()},
        scores={branch: _tuple(scores, NUMBER) for branch, scores in _by_name(row["scores"], list).items()},
        counts=_by_name(row["counts"], int),
        rejected={branch: bytes.fromhex(keys) for branch, keys in _by_name(row["rejected"], str).items()},
        accepted={branch: bytes.fromhex(keys) for branch, keys in _by_name(row["passed"], str).items()},
        fidelity=row["fidelity"],
        pool={
            branch: tuple((number, _tuple(signature, str)) for number, signature in attempts)
            for branch, attempts in _by_name(row["pool"], list).items()
        },
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


def training_to_row(loss: str, training: Training, candidate: int | None) -> dict[str, Any]:
    """Return what decides a training's outcome; `candidate` is None beside the search."""
    return {
        "candidate": candidate,
        "loss": loss,
        "seed": training.seed,
        "split": training.split,
        "schedule": training.schedule,
        "fidelity": float(training.fidelity),
        "learning_rate": float(training.learning_rate),
        "scale": to_json(dict(training.scale)),
    }


def training_from_row(row: Row) -> Training:
    with _decoding(row):
        values = {name: row[name] for name in ("seed", "split", "schedule", "fidelity", "learning_rate")}
        return Training(**values, scale=parse_json(row["scale"]))


def outcome_to_row(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome with the time of writing."""
    curve = [(step, loss) for step, loss in outcome.curve if math.isfinite(loss)]
    return {
        "state": outcome.state.value,
        "score": outcome.score,
        "also": to_json(dict(outcome.also)),
        "curve": to_json(curve),
        "step": outcome.step,
        "reason": outcome.reason,
        "seconds": float(outcome.seconds),
        "finished_at": time.time(),
    }


def outcome_from_row(row: Row) -> Outcome:
    with _decoding(row):
        return _outcome_from_row(row)


def _outcome_from_row(row: Row) -> Outcome:
    return Outcome(
        state=State(row["state"]),
        score=row["score"],
        also=read_figures(row["also"]),
        curve=tuple((step, loss) for step, loss in parse_json(row["curve"])),
        step=row["step"],
        # Earlier releases kept reasons of any length.
        reason=keep_text(row["reason"], REASON_CHARACTERS),
        seconds=row["seconds"],
        fidelity=row["fidelity"],
    )


def read_figures(text: str) -> dict[str, float]:
    """Read what `Outcome.also` was written as.

    Raises:
        StoreError: It is something else.
    """
    try:
        return _by_name(text, NUMBER)
    except ValueError as error:
        raise StoreError(f"The metrics of a training cannot be read: {error}. Restore the run from a copy.") from error


def to_json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
