"""One SQLite file per run: one writer, readers that open it read-only, append-only rows with checksums, never pickle.

A row is written in one transaction and synced before anything follows from it. What is in the file is therefore finished,
and what is finished is in the file.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError, RunError
from autoloss.run.jobs import Train
from autoloss.run.records import Child, Origin, Outcome, State

SCHEMA = 1
"""Written to `PRAGMA user_version`."""
FILE = "run.sqlite"


class StoreError(RunError):
    """A store that cannot be read, or a damaged row of it."""


Damaged = Callable[[int, StoreError], object]
"""Told the number of a damaged row, and what is to be said of it."""


def exists(directory: Path) -> bool:
    """Say whether a folder holds a run; a file that was left before its settings were written is none yet."""
    if not (directory / FILE).exists():
        return False
    try:
        with Store(directory) as store:
            return bool(store.settings())
    except RequestError:
        return False
    except StoreError:
        # Damaged, or of another release: somebody's all the same.
        return True


class Store:
    """The database of one run.

    Args:
        directory: The run's directory.
        write: Open for writing, and create the file where there is none; only the owner of the run may.

    Raises:
        RequestError: There is no run in the directory.
        StoreError: The file is no store, or was written by another release.
    """

    def __init__(self, directory: Path, *, write: bool = False) -> None:
        self.path = directory / FILE
        if not write and not self.path.exists():
            raise RequestError(
                f"There is no run in {directory}: it holds no {FILE}. Start one with: autoloss search TASK --out {directory}"
            )
        mode = "rwc" if write else "ro"
        try:
            self._connection = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=10
            )
            self._connection.row_factory = sqlite3.Row
            self._prepare(write)
        except sqlite3.Error as error:
            raise StoreError(
                f"{self.path} cannot be opened as a run: {error}. Restore it from a copy, or start a new run with another --out."
            ) from error

    def _prepare(self, write: bool) -> None:
        if write:
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        found = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if found == 0 and write:
            schema = files("autoloss.run").joinpath("schema.sql").read_text()
            self._connection.executescript(f"BEGIN; {schema} PRAGMA user_version = {SCHEMA}; COMMIT;")
        elif found == 0:
            raise RequestError(
                f"The run in {self.path.parent} was stopped before it began; start it again with the same --out."
            )
        elif found != SCHEMA:
            raise StoreError(
                f"{self.path} was written by schema {found}; this release reads schema {SCHEMA}. "
                "Open it with the release that wrote it, or start a new run with another --out."
            )

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_settings(self, settings: Mapping[str, str]) -> None:
        """Write the settings of a new run, all or none."""
        self._connection.execute("BEGIN IMMEDIATE")
        for name, value in settings.items():
            self._insert("setting", {"name": name, "value": value})
        self._connection.execute("COMMIT")

    def change_setting(self, name: str, value: str) -> None:
        """Replace a setting that a resumed run may change: its budget and its limits."""
        self._insert("setting", {"name": name, "value": value}, replace=True)

    def settings(self) -> dict[str, str]:
        """Read the settings of the run; none in a run that was stopped before it began."""
        return {row["name"]: row["value"] for row in self._rows("setting", "name")}

    def started(self) -> dict[str, str]:
        """Read the settings of a run that has begun.

        Raises:
            RequestError: It was stopped before that.
        """
        found = self.settings()
        if not found:
            raise RequestError(
                f"The run in {self.path.parent} was stopped before it began; start it again with the same --out."
            )
        return found

    def add_child(self, child: Child, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None:
        """Append a child and the sample of what was rejected for it: (branch, attempt) → (formula, reason)."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._insert(
            "child",
            {
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
                "born_at": time.time(),
            },
        )
        for (branch, attempt), (formula, reason) in rejected.items():
            row = {"child": child.id, "branch": branch, "attempt": attempt, "formula": formula, "reason": reason}
            self._insert("rejected", row)
        self._connection.execute("COMMIT")

    def add_outcome(self, child: int, outcome: Outcome) -> None:
        self._insert("outcome", {"child": child, **_outcome_row(outcome)})

    def add_trial(self, job: Train, outcome: Outcome) -> None:
        self._insert("trial", {**_trial_key(job), **_outcome_row(outcome)})

    def children(self) -> Iterator[Child]:
        """Read all children in order; a gap or a damaged row is an error that names it."""
        for position, row in enumerate(self._rows("child", "id")):
            if row["id"] != position:
                raise StoreError(f"{self.path}: child {position} is missing. Restore the file from a copy.")
            yield Child(
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

    def outcomes(self) -> dict[int, Outcome]:
        return {row["child"]: _outcome(row) for row in self._rows("outcome", "child")}

    def times(self) -> dict[int, tuple[float, float | None]]:
        """Return when each child was born and, where it was trained itself, when that finished (Unix time)."""
        query = "SELECT id, born_at, finished_at FROM child LEFT JOIN outcome ON child = id ORDER BY id"
        return {row["id"]: (row["born_at"], row["finished_at"]) for row in self._connection.execute(query)}

    def trials(self) -> dict[Train, Outcome]:
        return {_trial(row): _outcome(row) for row in self._rows("trial", "rowid")}

    def _insert(self, table: str, row: dict[str, Any], *, replace: bool = False) -> None:
        row = {**row, "checksum": _checksum(row)}
        verb = "REPLACE" if replace else "INSERT"
        marks = ", ".join("?" * len(row))
        self._connection.execute(f"{verb} INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))

    def later(self, table: str, order: str, first: int, damaged: Damaged) -> Iterator[sqlite3.Row]:
        """Read the rows of a table from a number on, for who looks again and again; damaged ones are told and left out.

        Args:
            order: The column that is numbered; `rowid` in a table without one.
        """
        return self._rows(table, order, f"WHERE {order} >= {int(first)}", damaged)

    def later_trials(self, first: int, damaged: Damaged) -> Iterator[tuple[int, Train, Outcome, float]]:
        """Read trials from a row's number on, each with that number and when it finished (Unix time)."""
        for row in self.later("trial", "rowid", first, damaged):
            yield row["rowid"], _trial(row), _outcome(row), row["finished_at"]

    def outcome(self, child: int) -> Outcome | None:
        """Read the outcome of one child, or None where it has none of its own yet."""
        return next(map(_outcome, self._rows("outcome", "child", f"WHERE child = {int(child)}")), None)

    def sampled(self) -> Iterator[tuple[int, str, str, str]]:
        """Read what was kept of the rejected: (child, branch, formula, name of the reason)."""
        for row in self._rows("rejected", "child, branch, attempt"):
            yield row["child"], row["branch"], row["formula"], row["reason"]

    def _rows(self, table: str, order: str, where: str = "", damaged: Damaged | None = None) -> Iterator[sqlite3.Row]:
        number = "rowid AS rowid, " if order == "rowid" else ""
        try:
            for row in self._connection.execute(f"SELECT {number}* FROM {table} {where} ORDER BY {order}"):
                values = dict(row)
                if number:
                    del values["rowid"]
                if values.pop("checksum") != _checksum(values):
                    error = StoreError(
                        f"{self.path}: the row of {table} with {order} {row[0]!r} is damaged (its checksum does not fit). "
                        "Restore the file from a copy."
                    )
                    if damaged is None:
                        raise error
                    damaged(row[0], error)
                    continue
                yield row
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self.path}: {table} cannot be read: {error}. Restore the file from a copy.") from error


def _checksum(row: Mapping[str, Any]) -> str:
    return hashlib.blake2b(repr(sorted(row.items())).encode(), digest_size=8).hexdigest()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _trial(row: sqlite3.Row) -> Train:
    return Train(**{key: row[key] for key in ("loss", "seed", "split", "schedule", "learning_rate", "scale")})


def _trial_key(job: Train) -> dict[str, Any]:
    return {
        "loss": job.loss,
        "seed": job.seed,
        "split": job.split,
        "schedule": job.schedule,
        "learning_rate": float(job.learning_rate),
        "scale": float(job.scale),
    }


def _outcome_row(outcome: Outcome) -> dict[str, Any]:
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


def _outcome(row: sqlite3.Row) -> Outcome:
    return Outcome(
        state=State(row["state"]),
        score=row["score"],
        also=json.loads(row["also"]),
        curve=tuple((step, loss) for step, loss in json.loads(row["curve"])),
        step=row["step"],
        reason=row["reason"],
        seconds=row["seconds"],
    )
