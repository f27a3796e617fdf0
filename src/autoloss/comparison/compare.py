"""Losses trained on the same seeds and measured on the same split."""

from __future__ import annotations

from collections.abc import Sequence

from autoloss.comparison.entrant import Entrant
from autoloss.comparison.record import Record, run_trainings
from autoloss.comparison.table import Row, collect_rows
from autoloss.evaluation.dispatch import Dispatcher


def compare_losses(
    entrants: Sequence[Entrant], seeds: Sequence[int], split: str, dispatcher: Dispatcher, record: Record
) -> list[Row]:
    """Train every entrant on the same seeds; the first baseline is the reference of the others.

    Returns:
        One row per entrant, in their order.
    """
    jobs = [entrant.job(seed, split) for seed in seeds for entrant in entrants]
    return collect_rows(entrants, seeds, split, run_trainings(jobs, dispatcher, record))
