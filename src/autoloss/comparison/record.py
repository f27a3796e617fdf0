"""Trainings that are asked for, run once, and losses trained on the same seeds; a recorded training is not repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from autoloss.comparison.entrant import Entrant
from autoloss.comparison.table import Row, collect_rows
from autoloss.evaluation.dispatch import Dispatcher, run_jobs
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome
from autoloss.store.store import Store


class Record:
    """Trainings outside a search, recorded in a run's store or, without one, in memory.

    Args:
        expected: Trainings at the end, those that are recorded already included.
        observe: Called with (recorded, expected) now and after each training; `expected` grows where more are recorded.

    Attributes:
        outcomes: All that is recorded.
    """

    def __init__(
        self,
        store: Store | None = None,
        expected: int = 0,
        observe: Callable[[int, int], None] = lambda recorded, expected: None,
    ) -> None:
        self.outcomes: dict[Train, Outcome] = {} if store is None else store.trainings()
        self._store, self._expected, self._observe = store, expected, observe
        self._tell()

    def add(self, job: Train, outcome: Outcome) -> None:
        """Record the outcome of a training."""
        if self._store is not None:
            self._store.add_training(job.loss, job.training, outcome)
        self.outcomes[job] = outcome
        self._tell()

    def _tell(self) -> None:
        count = len(self.outcomes)
        self._observe(count, max(self._expected, count))


def run_trainings(jobs: Iterable[Train], dispatcher: Dispatcher, record: Record) -> Mapping[Train, Outcome]:
    """Run the trainings that are not recorded, record each as it ends, and return all that is recorded."""
    missing = [job for job in dict.fromkeys(jobs) if job not in record.outcomes]
    for done in run_jobs(missing, dispatcher):
        # Rejection tests that a search left under way end here as well; nobody needs them any more.
        if isinstance(done.job, Train) and isinstance(done.result, Outcome):
            record.add(done.job, done.result)
    return record.outcomes


def compare_losses(
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    split: str,
    dispatcher: Dispatcher,
    record: Record,
    fidelity: float = 1.0,
) -> list[Row]:
    """Train every entrant on the same seeds; the first baseline is the reference of the others.

    Args:
        fidelity: Share of the schedule.

    Returns:
        One row per entrant, in their order.
    """
    jobs = [entrant.job(seed, split, fidelity=fidelity) for seed in seeds for entrant in entrants]
    return collect_rows(entrants, seeds, split, run_trainings(jobs, dispatcher, record), fidelity=fidelity)
