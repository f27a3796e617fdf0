"""What a run has come to, on disk: children, outcomes, trainings beside the search and settings, appended and never changed.

A row is written in one transaction and synced before anything follows from it. What is in the store is therefore finished,
and what is finished is in the store. One process writes; readers disturb nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError
from autoloss.search.jobs import Train
from autoloss.search.records import Candidate, Outcome
from autoloss.store.database import Damaged, Database, Say, StoreError, warn
from autoloss.store.rows import Row, child_of, child_row, outcome_of, outcome_row, trial_of, trial_row
from autoloss.store.run_settings import RunSettings, to_row

__all__ = ["FILE", "Store", "StoreError", "exists"]

FILE = "run.sqlite"


def exists(directory: Path) -> bool:
    """Say whether a folder holds a run; a file that was left before its settings were written is none yet."""
    if not (directory / FILE).exists():
        return False
    try:
        with Store(directory) as store:
            return store.has_settings()
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
        say: Told when the disk is full, and when there is room again.

    Raises:
        RequestError: There is no run in the directory.
        StoreError: The file is no store, lost rows, or was written by another release.
    """

    def __init__(self, directory: Path, *, write: bool = False, say: Say = warn) -> None:
        self.path = directory / FILE
        if not write and not self.path.exists():
            raise RequestError(
                f"There is no run in {directory}: it holds no {FILE}. A search with this directory starts one."
            )
        self._database = Database(self.path, write=write, say=say)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rest_with(self, rest: Callable[[float], None]) -> None:
        """Spend the time in which the disk is full with this: seconds → None."""
        self._database.rest = rest

    def write_settings(self, settings: RunSettings) -> None:
        """Write the settings of a new run, all or none."""
        rows = [("setting", {"name": name, "value": value}) for name, value in settings.to_rows().items()]
        self._database.commit("settings", rows)

    def change_setting(self, name: str, value: Any) -> None:
        """Replace a setting that may change when a run is resumed or compared.

        Args:
            name: An attribute of `RunSettings`.
        """
        row, text = to_row(name, value)
        self._database.commit("setting", [("setting", {"name": row, "value": text})], replace=True)

    def settings(self) -> RunSettings:
        """Read the settings of the run.

        Raises:
            RequestError: It was stopped before they were written.
            StoreError: One of them is missing or cannot be read.
        """
        rows = self._setting_rows()
        if not rows:
            raise RequestError(
                f"The run in {self.path.parent} was stopped before it began; start it again in the same directory."
            )
        return RunSettings.from_rows(rows, self.path)

    def has_settings(self) -> bool:
        return bool(self._setting_rows())

    def _setting_rows(self) -> dict[str, str]:
        return {row["name"]: row["value"] for row in self._database.rows("setting", "name")}

    def add_child(self, child: Candidate, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None:
        """Append a child and the sample of what was rejected for it: (branch, attempt) → (formula, reason)."""
        rows: list[tuple[str, Row]] = [("child", {**child_row(child), "born_at": time.time()})]
        for (branch, attempt), (formula, reason) in rejected.items():
            row = {"child": child.id, "branch": branch, "attempt": attempt, "formula": formula, "reason": reason}
            rows.append(("rejected", row))
        self._database.commit("child", rows)

    def add_outcome(self, child: int, outcome: Outcome) -> None:
        self._database.commit("outcome", [("outcome", {"child": child, **outcome_row(outcome)})])

    def add_trial(self, job: Train, outcome: Outcome) -> None:
        self._database.commit("trial", [("trial", {**trial_row(job), **outcome_row(outcome)})])

    def children(self) -> Iterator[Candidate]:
        """Read all children in order; a gap or a damaged row is an error that names it."""
        for position, row in enumerate(self._database.rows("child", "id")):
            if row["id"] != position:
                raise StoreError(f"{self.path}: child {position} is missing. Restore the file from a copy.")
            yield child_of(row)

    def rejected(self) -> dict[int, dict[tuple[str, int], tuple[str, str]]]:
        """Return the sample of what was rejected: child → (branch, attempt) → (formula, reason)."""
        found: dict[int, dict[tuple[str, int], tuple[str, str]]] = {}
        for row in self._database.rows("rejected", "rowid"):
            found.setdefault(row["child"], {})[row["branch"], row["attempt"]] = row["formula"], row["reason"]
        return found

    def outcomes(self) -> dict[int, Outcome]:
        return {row["child"]: outcome_of(row) for row in self._database.rows("outcome", "child")}

    def times(self) -> dict[int, tuple[float, float | None]]:
        """Return when each child was born and, where it was trained itself, when that finished (Unix time)."""
        query = "SELECT id, born_at, finished_at FROM child LEFT JOIN outcome ON child = id ORDER BY id"
        return {row["id"]: (row["born_at"], row["finished_at"]) for row in self._database.select(query)}

    def trials(self) -> dict[Train, Outcome]:
        return {trial_of(row): outcome_of(row) for row in self._database.rows("trial", "rowid")}

    def columns(
        self, table: str, order: str, first: int, wanted: Sequence[str], damaged: Damaged
    ) -> Iterator[tuple[Any, ...]]:
        """Read some columns of a table from a number on, for who looks again and again; damaged rows are told and left out.

        Args:
            order: The column that is numbered.
            wanted: At least two.
        """
        return self._database.columns(table, order, first, wanted, damaged)

    def later_trials(self, first: int, damaged: Damaged) -> Iterator[tuple[int, Train, Outcome, float]]:
        """Read trials from a row's number on, each with that number and when it finished (Unix time)."""
        for row in self._database.later("trial", "rowid", first, damaged):
            yield row["rowid"], trial_of(row), outcome_of(row), row["finished_at"]

    def written(self, table: str) -> int:
        """Return how many rows a table has at least."""
        return self._database.written(table)

    def check_count(self, table: str, found: int, least: int) -> None:
        """Hold what was found of a table to what was written.

        Raises:
            StoreError: It lost rows.
        """
        self._database.check_count(table, found, least)

    def child(self, number: int) -> Candidate | None:
        """Read one child, or None where there is none.

        Raises:
            StoreError: Its row is damaged.
        """
        row = self._database.row("child", "id", number)
        return None if row is None else child_of(row)

    def outcome(self, child: int) -> Outcome | None:
        """Read the outcome of one child, or None where it has none of its own yet.

        Raises:
            StoreError: Its row is damaged.
        """
        row = self._database.row("outcome", "child", child)
        return None if row is None else outcome_of(row)

    def sampled(self) -> Iterator[tuple[int, str, str, str]]:
        """Read what was kept of the rejected: (child, branch, formula, name of the reason)."""
        for row in self._database.rows("rejected", "child, branch, attempt"):
            yield row["child"], row["branch"], row["formula"], row["reason"]
