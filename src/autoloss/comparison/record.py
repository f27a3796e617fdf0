"""Trainings that are asked for, run once, and losses trained on the same seeds; a recorded training is not repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from autoloss.comparison.entrant import Entrant
from autoloss.comparison.table import Row, collect_rows
from autoloss.evaluation.dispatch import Dispatcher, run_jobs
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome
from autoloss.training.training import Training


class Record(Protocol):
    """Where trainings beside a search are recorded: a run's store, or memory."""

    def trainings(self) -> dict[Train, Outcome]:
        """Return all that is recorded."""
        ...

    def add_training(self, loss: str, training: Training, outcome: Outcome) -> None:
        """Record the outcome of a training."""
        ...


class Memory:
    """A record that ends with the process."""

    def __init__(self) -> None:
        self._outcomes: dict[Train, Outcome] = {}

    def trainings(self) -> dict[Train, Outcome]:
        return dict(self._outcomes)

    def add_training(self, loss: str, training: Training, outcome: Outcome) -> None:
        self._outcomes[Train(loss, training)] = outcome


class Counted:
    """A record that tells how many trainings are recorded, each time that one is added.

    Args:
        expected: Trainings at the end, those that are recorded already included.
        observe: Called with (recorded, expected); `expected` grows where more are recorded.
    """

    def __init__(self, record: Record, expected: int, observe: Callable[[int, int], None]) -> None:
        self._record = record
        self._expected = expected
        self._observe = observe
        self._count = len(record.trainings())
        observe(self._count, max(expected, self._count))

    def trainings(self) -> dict[Train, Outcome]:
        return self._record.trainings()

    def add_training(self, loss: str, training: Training, outcome: Outcome) -> None:
        self._record.add_training(loss, training, outcome)
        self._count += 1
        self._observe(self._count, max(self._expected, self._count))


def run_trainings(jobs: Iterable[Train], dispatcher: Dispatcher, record: Record) -> Mapping[Train, Outcome]:
    """Run the trainings that are not recorded, record each as it ends, and return all that is recorded."""
    recorded = record.trainings()
    missing = [job for job in dict.fromkeys(jobs) if job not in recorded]
    for done in run_jobs(missing, dispatcher):
        # Rejection tests that a search left under way end here as well; nobody needs them any more.
        if isinstance(done.job, Train) and isinstance(done.result, Outcome):
            record.add_training(done.job.loss, done.job.training, done.result)
            recorded[done.job] = done.result
    return recorded


def compare_losses(
    entrants: Sequence[Entrant], seeds: Sequence[int], split: str, dispatcher: Dispatcher, record: Record
) -> list[Row]:
    """Train every entrant on the same seeds; the first baseline is the reference of the others.

    Returns:
        One row per entrant, in their order.
    """
    jobs = [entrant.job(seed, split) for seed in seeds for entrant in entrants]
    return collect_rows(entrants, seeds, split, run_trainings(jobs, dispatcher, record))
