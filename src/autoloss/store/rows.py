"""The rows of a store: children, outcomes and trainings as text and numbers, never pickle, with a checksum in every row."""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any, final

from autoloss.search.jobs import Train
from autoloss.search.records import Candidate, Origin, Outcome, State
from autoloss.space.loss_text import split_branches
from autoloss.tasks.task import Training

CHECKSUM = "checksum"
TRIAL_KEY = ("loss", "seed", "split", "schedule", "learning_rate", "scale")

Row = Mapping[str, Any]


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
    """Tells the rows of one table that are what was written, a hundred thousand of them in about a second.

    What a checksum is of is put together from a template, in which texts stand as they are: most of a run's bytes are JSON
    without quotes or backslashes that `repr` would write differently. A row that does not fit is looked at as `intact` does, so
    the verdict is the same.

    Args:
        columns: Name → declared type, as the table has them.

    Attributes:
        names: The columns in the order in which a row is given; the checksum is the last.
    """

    def __init__(self, columns: Mapping[str, str]) -> None:
        summed = sorted(name for name in columns if name != CHECKSUM)
        self.names = (*summed, CHECKSUM)
        written = (repr(name).replace("%", "%%") for name in summed)
        values = ("'%s'" if columns[name] == "TEXT" else "%r" for name in summed)
        self._text = f"[{', '.join(f'({name}, {value})' for name, value in zip(written, values, strict=True))}]"

    def fits(self, row: Sequence[Any]) -> bool:
        text = self._text % tuple(row[:-1])
        if hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == row[-1]:
            return True
        return intact(dict(zip(self.names, row, strict=True)))


def child_row(child: Candidate) -> dict[str, Any]:
    """Return all of a child but the time of its birth, which is for people."""
    return {
        "id": child.id,
        "parent": child.parent,
        "kinds": _json(child.kinds),
        "attempts": _json(child.attempts),
        "loss": child.loss,
        "origin": child.origin.value,
        "source": child.source,
        "signature": _json(child.signature),
        "scores": _json(child.scores),
        "counts": _json(dict(sorted(child.counts.items()))),
        "rejected": _json({branch: keys.hex() for branch, keys in child.rejected.items()}),
        "passed": _json({branch: keys.hex() for branch, keys in child.accepted.items()}),
    }


def child_of(row: Row) -> Candidate:
    return Candidate(
        id=row["id"],
        parent=row["parent"],
        kinds=json.loads(row["kinds"]),
        attempts=json.loads(row["attempts"]),
        loss=row["loss"],
        origin=Origin(row["origin"]),
        source=row["source"],
        signature={branch: tuple(norms) for branch, norms in json.loads(row["signature"]).items()},
        scores={branch: tuple(scores) for branch, scores in json.loads(row["scores"]).items()},
        counts=json.loads(row["counts"]),
        rejected={branch: bytes.fromhex(keys) for branch, keys in json.loads(row["rejected"]).items()},
        accepted={branch: bytes.fromhex(keys) for branch, keys in json.loads(row["passed"]).items()},
    )


def trial_row(job: Train) -> dict[str, Any]:
    """Return what a training beside the search is known by."""
    training = job.training
    return {
        "loss": job.loss,
        "seed": training.seed,
        "split": training.split,
        "schedule": training.schedule,
        "learning_rate": float(training.learning_rate),
        # The schema has one factor for all branches.
        "scale": float(next(iter(training.scale.values()), 1.0)),
    }


def trial_of(row: Row) -> Train:
    scale = {branch: float(row["scale"]) for branch in split_branches(row["loss"])}
    values = {key: row[key] for key in TRIAL_KEY if key not in ("loss", "scale")}
    return Train(row["loss"], Training(**values, scale=scale))


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    curve = [(step, loss) for step, loss in outcome.curve if math.isfinite(loss)]
    return {
        "state": outcome.state.value,
        "score": outcome.score,
        "also": _json(dict(outcome.also)),
        "curve": _json(curve),
        "step": outcome.step,
        "reason": outcome.reason,
        "seconds": float(outcome.seconds),
        "finished_at": time.time(),
    }


def outcome_of(row: Row) -> Outcome:
    return Outcome(
        state=State(row["state"]),
        score=row["score"],
        also=json.loads(row["also"]),
        curve=tuple((step, loss) for step, loss in json.loads(row["curve"])),
        step=row["step"],
        reason=row["reason"],
        seconds=row["seconds"],
    )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
