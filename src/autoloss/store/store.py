"""The record of a run on disk: settings, candidates and trainings as text and numbers, appended and never changed.

A row is written in one transaction and synced before anything follows from it. What is in the store is therefore finished,
and what is finished is in the store. One process writes; readers (`autoloss.store.read`) disturb nobody. The writer's lock is a
separate file, which names it: opening and closing the database file a second time would release SQLite's own locks.
"""

from __future__ import annotations

import fcntl
import functools
import json
import math
import os
import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import IO, Any, Literal, TypeVar, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from autoloss.errors import OwnedError, RequestError, RunError, keep_text
from autoloss.proposing.records import REASON_CHARACTERS, Candidate, Outcome, Train
from autoloss.store.database import Database, Row, Say, SchemaError, StoreError, before_it_began, warn
from autoloss.store.run_settings import RunSettings, encode_setting
from autoloss.training.training import Training

FILE = "run.sqlite"

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


def exists(directory: Path) -> bool:
    """Say whether a folder holds a run; a damaged or foreign file also counts as a run, one without settings does not."""
    try:
        with Store(directory) as store:
            return bool(store.texts())
    except (StoreError, SchemaError):
        return True
    except RequestError:
        return False


class Store:
    """The store in a run's directory.

    Args:
        directory: The run's directory.
        write: Open for writing, and create the file where there is none; only the owner of the run may.
        say: Called when the disk is full or another program locks the file, and when that is over.
        file: Name of the file.
    """

    def __init__(self, directory: Path, *, write: bool = False, say: Say = warn, file: str = FILE) -> None:
        self.path = directory / file
        if not write and not self.path.exists():
            raise RequestError(f"There is no run in {directory}: it holds no {file}. Give the folder of a search.")
        self.database = Database(self.path, write=write, say=say)

    def close(self) -> None:
        """Close the file; an open store is also closed when nothing refers to it any more."""
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write_settings(self, settings: RunSettings, *, replace: bool = False) -> None:
        """Write the settings of a new run, or replace them when its search may begin, all or none."""
        rows = settings.to_rows().items()
        self.database.append([("setting", {"name": name, "value": value}) for name, value in rows], replace=replace)

    def change_setting(self, name: str, value: Any) -> None:
        """Replace a setting that may change when a run is resumed or compared.

        Args:
            name: An attribute of `RunSettings`.
        """
        self.database.append([("setting", {"name": name, "value": encode_setting(value)})], replace=True)

    def settings(self) -> RunSettings:
        """Read the settings of the run."""
        rows = self.texts()
        if not rows:
            raise before_it_began(self.path)
        return RunSettings.from_rows(rows, self.path)

    def texts(self) -> dict[str, str]:
        """Return the texts of the settings by their names."""
        return {row["name"]: row["value"] for row in self.database.read("setting")}

    def add_candidate(self, candidate: Candidate, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None:
        """Append a candidate and a sample of the formulas rejected for it: (branch, attempt) → (formula, reason)."""
        root = candidate.id
        if candidate.source is not None:
            query = "SELECT root FROM main.candidate WHERE id = ?"
            (root,) = self.database.connection.execute(query, (candidate.source,)).fetchone() or (None,)
        made = {**candidate_to_row(candidate), "root": root, "born_at": time.time()}
        rows: list[tuple[str, Row]] = [("candidate", made)]
        for (branch, attempt), (formula, reason) in rejected.items():
            values = {"branch": branch, "attempt": attempt, "formula": formula, "reason": reason}
            rows.append(("rejected", {"candidate": candidate.id, **values}))
        self.database.append(rows)

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None = None) -> None:
        """Append the outcome of a training.

        Args:
            loss: The loss that was trained: a formula, a loss of several branches, or a name in the zoo.
            candidate: Whose training it is; None for one beside the search.
        """
        curve = tuple((step, value) for step, value in outcome.curve if math.isfinite(value))
        ended = _encode(replace(outcome, curve=curve), OF_OUTCOME)
        decided = {"candidate": candidate, "loss": loss, **_encode(training, OF_TRAINING)}
        written = {"finished_at": time.time(), "task_version": self._read_task_version()}
        self.database.append([("training", {**decided, **ended, **written})])

    def candidates(self, where: str = "TRUE") -> Iterator[Candidate]:
        """Read candidates in order; a gap or a damaged row is an error that names it."""
        for position, row in enumerate(self.database.read("candidate", where)):
            if where == "TRUE" and row["id"] != position:
                raise StoreError(f"{self.path}: candidate {position} is missing. Restore the file from a copy.")
            yield candidate_from_row(row)

    def outcomes(self, where: str = "TRUE") -> dict[int, Outcome]:
        """Read the outcomes of the search: candidate → all its trainings, pooled, at the largest fidelity of them."""
        found: defaultdict[int, defaultdict[float, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
        for row in self.database.read("training", f"candidate IS NOT NULL AND {where}"):
            found[row["candidate"]][row["fidelity"]].append(outcome_from_row(row))
        return {number: Outcome.pool(shares[max(shares)]) for number, shares in sorted(found.items())}

    def trainings(self, where: str = "TRUE") -> dict[Train, Outcome]:
        """Read the outcomes of the trainings beside the search, on the task as it is now."""
        where = f"candidate IS NULL AND task_version = {self._read_task_version()} AND {where}"
        rows = self.database.read("training", where)
        return {Train(row["loss"], training_from_row(row)): outcome_from_row(row) for row in rows}

    def _read_task_version(self) -> int:
        return int(self.texts().get("task_version", "0"))

    def search_trainings(self) -> dict[int, dict[Training, Outcome]]:
        """Read the trainings of the search: candidate → each of them with its outcome."""
        found: defaultdict[int, dict[Training, Outcome]] = defaultdict(dict)
        for row in self.database.read("training", "candidate IS NOT NULL"):
            found[row["candidate"]][training_from_row(row)] = outcome_from_row(row)
        return found

    def rejected(self) -> dict[int, dict[tuple[str, int], tuple[str, str]]]:
        """Read the sample of rejected formulas: candidate → (branch, attempt) → (formula, reason)."""
        found: dict[int, dict[tuple[str, int], tuple[str, str]]] = {}
        for row in self.database.read("rejected"):
            found.setdefault(row["candidate"], {})[row["branch"], row["attempt"]] = row["formula"], row["reason"]
        return found


LOCK = "owner.lock"
NAME_SECONDS = 1.0
"""Seconds that a new owner may take to write its name."""


def lock_run(directory: Path) -> IO[str]:
    """Make this process the one that drives a run, until the returned file is closed.

    The operating system releases the run however the process ends.

    Raises:
        OwnedError: Another process drives the run.
        RequestError: The folder cannot be written.
        RunError: There is no room for the owner's name.
    """
    path = directory / LOCK
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be written: {error.strerror}. Use another folder.") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        owner = _owner(file)
        file.close()
        raise OwnedError(f"{directory} is driven by {owner}. Wait for it to end, or stop it first.") from None
    try:
        file.truncate(0)
        os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode())
    except OSError as error:
        file.close()
        raise RunError(f"{path} cannot be written: {error.strerror}. Free disk space and try again.") from None
    return file


def refuse_owned(directory: Path) -> None:
    """Refuse a run that another process drives, before anything else is done; the lock is not kept.

    Raises:
        OwnedError: Another process drives the run.
    """
    if (directory / LOCK).exists():
        lock_run(directory).close()


def owner_lives(directory: Path) -> bool | None:
    """Return whether the last owner of a run is still running; None when it runs on another machine.

    The lock itself is not tried: a reader that held it for a moment would keep a driver out.
    """
    try:
        return _lives((directory / LOCK).read_text().strip())
    except OSError:
        return False


def _owner(file: IO[str]) -> str:
    """Return who holds a lock, waiting while the file still names the owner before."""
    end = time.monotonic() + NAME_SECONDS
    while True:
        file.seek(0)
        name = file.read().strip()
        if _lives(name) is not False or time.monotonic() > end:
            return name or "another process"
        time.sleep(0.01)


def _lives(name: str) -> bool | None:
    """Return whether a named owner is running; None for one on another host."""
    found = re.fullmatch(r"process (\d{1,9}) on (.+)", name)
    if found is None:
        return False
    if found[2] != socket.gethostname():
        return None
    import psutil

    return psutil.pid_exists(int(found[1]))
