"""What a run has recorded on disk: settings, candidates and trainings, appended and never changed.

A row is written in one transaction and synced before anything follows from it. What is in the store is therefore finished,
and what is finished is in the store. One process writes; readers (`autoloss.store.read`) disturb nobody.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Candidate, Outcome
from autoloss.store.database import Database, Say, warn
from autoloss.store.rows import (
    Row,
    StoreError,
    candidate_from_row,
    candidate_to_row,
    outcome_from_row,
    outcome_to_row,
    training_from_row,
    training_to_row,
)
from autoloss.store.run_settings import RunSettings, to_row
from autoloss.training.training import Training

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

    Its writer calls `write_settings` once; then `add_candidate` for each candidate in order, before it is trained, and
    `add_training` for each training as it ends. What is read equals what was written.

    Args:
        directory: The run's directory.
        write: Open for writing, and create the file where there is none; only the owner of the run may.
        say: Called when the disk is full or another program locks the file, and when that is over.

    Raises:
        RequestError: There is no run in the directory.
        StoreError: The file is no store, lost rows, or was written by another release.
    """

    def __init__(self, directory: Path, *, write: bool = False, say: Say = warn) -> None:
        self.path = directory / FILE
        if not write and not self.path.exists():
            raise RequestError(f"There is no run in {directory}: it holds no {FILE}. Give the folder of a search.")
        self.database = Database(self.path, write=write, say=say)

    def close(self) -> None:
        self.database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rest_with(self, rest: Callable[[float], None]) -> None:
        """Spend the time in which nothing can be written with this: seconds → None."""
        self.database.rest = rest

    def write_settings(self, settings: RunSettings) -> None:
        """Write the settings of a new run, all or none."""
        rows = [("setting", {"name": name, "value": value}) for name, value in settings.to_rows().items()]
        self.database.commit("settings", rows)

    def change_setting(self, name: str, value: Any) -> None:
        """Replace a setting that may change when a run is resumed or compared.

        Args:
            name: An attribute of `RunSettings`.
        """
        row, text = to_row(name, value)
        self.database.commit("setting", [("setting", {"name": row, "value": text})], replace=True)

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
        return {row["name"]: row["value"] for row in self.database.read_all("setting")}

    def add_candidate(self, candidate: Candidate, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None:
        """Append a candidate and the sample of what was rejected for it: (branch, attempt) → (formula, reason)."""
        rows: list[tuple[str, Row]] = [("candidate", {**candidate_to_row(candidate), "born_at": time.time()})]
        for (branch, attempt), (formula, reason) in rejected.items():
            row = {
                "candidate": candidate.id,
                "branch": branch,
                "attempt": attempt,
                "formula": formula,
                "reason": reason,
            }
            rows.append(("rejected", row))
        self.database.commit("child", rows)

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None = None) -> None:
        """Append what a training came to.

        Args:
            loss: What was trained: a formula, a loss of several branches, or a name in the zoo.
            candidate: Whose training it is; None for one beside the search.
        """
        row = {**training_to_row(loss, training, candidate), **outcome_to_row(outcome)}
        self.database.commit("trial" if candidate is None else "outcome", [("training", row)])

    def candidates(self) -> Iterator[Candidate]:
        """Read all candidates in order; a gap or a damaged row is an error that names it."""
        for position, row in enumerate(self.database.read_all("candidate")):
            if row["id"] != position:
                raise StoreError(f"{self.path}: candidate {position} is missing. Restore the file from a copy.")
            yield candidate_from_row(row)

    def outcomes(self) -> dict[int, Outcome]:
        """Read what the trainings of the search came to: candidate → outcome, at the largest fidelity that it was trained at."""
        rows = [row for row in self.database.read_all("training") if row["candidate"] is not None]
        rows.sort(key=lambda row: (row["candidate"], row["fidelity"]))
        return {row["candidate"]: outcome_from_row(row) for row in rows}

    def trainings(self) -> dict[Train, Outcome]:
        """Read what the trainings beside the search came to."""
        rows = self.database.read_rows("training", "candidate IS NULL")
        return {Train(row["loss"], training_from_row(row)): outcome_from_row(row) for row in rows}

    def search_trainings(self) -> dict[int, dict[Training, Outcome]]:
        """Read the trainings of the search: candidate → each of them with its outcome."""
        found: defaultdict[int, dict[Training, Outcome]] = defaultdict(dict)
        for row in self.database.read_all("training"):
            if row["candidate"] is not None:
                found[row["candidate"]][training_from_row(row)] = outcome_from_row(row)
        return found

    def rejected(self) -> dict[int, dict[tuple[str, int], tuple[str, str]]]:
        """Read the sample of what was rejected: candidate → (branch, attempt) → (formula, reason)."""
        found: dict[int, dict[tuple[str, int], tuple[str, str]]] = {}
        for row in self.database.read_all("rejected"):
            found.setdefault(row["candidate"], {})[row["branch"], row["attempt"]] = row["formula"], row["reason"]
        return found

    def candidates_of(self, numbers: Iterable[int]) -> dict[int, Candidate]:
        """Read some candidates; one that is missing is left out.

        Raises:
            StoreError: A row is damaged.
        """
        rows = self.database.read_rows("candidate", f"id IN ({_listed(numbers)})")
        return {row["id"]: candidate_from_row(row) for row in rows}

    def outcomes_of(self, numbers: Iterable[int]) -> dict[int, Outcome]:
        """Read what the trainings of some candidates came to; one without a training of its own is left out.

        Raises:
            StoreError: A row is damaged.
        """
        rows = list(self.database.read_rows("training", f"candidate IN ({_listed(numbers)})"))
        rows.sort(key=lambda row: row["fidelity"])
        return {row["candidate"]: outcome_from_row(row) for row in rows}


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(str(int(number)) for number in numbers)
