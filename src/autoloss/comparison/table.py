"""Outcomes of trainings side by side: one row for each loss, with its mean and spread over the training seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import TypeVar, final

from autoloss.comparison.entrant import COMPARISON, TEST, TUNING, TUNING_SEEDS, Entrant, training_seeds
from autoloss.comparison.noise import Estimate, estimate_difference, estimate_mean, subtract_replicates
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome
from autoloss.showing import plot, to_html
from autoloss.store.run_settings import Comparison
from autoloss.training.training import Replicates

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Measurements:
    """One figure of a loss, measured once for each training seed.

    Args:
        values: One per seed; None where a training has no such figure.
        replicates: The figure on resamples of the split, by seed; empty where it was not measured on them.

    >>> Measurements((0.5, 0.7)).mean
    0.6
    """

    values: tuple[float | None, ...]
    replicates: tuple[Replicates | None, ...] = ()

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> Measurements:
        """Return the scores of trainings."""
        return cls(tuple(one.score for one in outcomes), tuple(one.replicates for one in outcomes))

    @property
    def finite(self) -> list[float]:
        """The values that were measured."""
        return [value for value in self.values if value is not None]

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None when any training lacks the figure, since the mean of the others would flatter."""
        return mean(self.finite) if self.values and None not in self.values else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None where there is no mean, or one seed only."""
        return stdev(self.finite) if self.mean is not None and len(self.finite) > 1 else None

    @property
    def estimate(self) -> Estimate | None:
        """The mean with its noise."""
        return None if self.mean is None else estimate_mean(self.finite, self.replicates)

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean, over seeds and, where it was resampled, examples."""
        return None if self.estimate is None else self.estimate.half_width

    def subtract(self, other: Measurements) -> Measurements:
        """Return the differences from another loss over the same seeds and resamples."""
        pairs = zip(self.values, other.values, strict=True)
        resamples = zip(self.replicates, other.replicates, strict=False)
        values = tuple(None if mine is None or theirs is None else mine - theirs for mine, theirs in pairs)
        return Measurements(values, tuple(subtract_replicates(*pair) for pair in resamples))


@dataclass(frozen=True, slots=True)
class Row:
    """An entrant with the outcomes of its trainings.

    Args:
        outcomes: One per seed.
        reference: The scores of the standard loss over the same seeds; None for that loss itself.
        valid: The scores on the valid split by which its learning rate was chosen; without values where there are none.
    """

    entrant: Entrant
    outcomes: tuple[Outcome, ...]
    reference: Measurements | None = None
    valid: Measurements = Measurements(())

    @property
    def score(self) -> Measurements:
        """The task's metric."""
        return Measurements.of(self.outcomes)

    def figure(self, name: str) -> Measurements:
        """Return a further metric by its name."""
        return Measurements(tuple(outcome.also.get(name) for outcome in self.outcomes))

    @property
    def scores(self) -> tuple[float | None, ...]:
        """The scores by seed; None for a training without one."""
        return self.score.values

    @property
    def mean(self) -> float | None:
        """The mean score; None when a training has none."""
        return self.score.mean

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean score."""
        return self.score.interval

    @property
    def failed(self) -> int:
        """The number of trainings without a score."""
        return self.scores.count(None)

    @property
    def also(self) -> dict[str, float]:
        """The means of the further metrics that every training has."""
        columns = {name: self.figure(name).mean for outcome in self.outcomes for name in outcome.also}
        return {name: value for name, value in columns.items() if value is not None}

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for missing scores, each once."""
        found = (f"{outcome.state.value}: {outcome.reason}" for outcome in self.outcomes if outcome.reason)
        return tuple(dict.fromkeys(found))

    @property
    def p_value(self) -> float | None:
        """Two-sided p-value of the paired differences from the standard loss, or None where there is none."""
        found = None if self.reference is None else compare_paired(self.score, self.reference)
        return None if found is None else found.p_value


def compare_paired(first: Measurements, second: Measurements) -> Estimate | None:
    """Return the mean difference of two losses over the same seeds and examples, with its noise; None where a score is missing.

    >>> compare_paired(Measurements((0.5,)), Measurements((0.25,))).value
    0.25
    """
    if first.mean is None or second.mean is None or len(first.values) != len(second.values):
        return None
    return estimate_difference(first.finite, second.finite, (first.replicates, second.replicates))


def find_simplest(ranked: Sequence[Item], measure: Callable[[Item], Measurements], cost: Callable[[Item], int]) -> Item:
    """Return the simplest of those that are not behind the first by more than the standard error of the difference.

    What seeds and examples cannot tell apart, the simpler or better known one wins.

    Args:
        ranked: At least one, the best first, all with a mean.
        cost: How complicated one is; of equal ones the better stays.

    Source: Breiman et al., 1984, Classification and Regression Trees (the rule of one standard error).

    >>> scores = {"plain": Measurements((0.5, 0.7)), "weighted": Measurements((0.6, 0.61)), "new": Measurements((0.9, 0.91))}
    >>> find_simplest(["weighted", "plain"], scores.__getitem__, len), find_simplest(["new", "plain"], scores.__getitem__, len)
    ('plain', 'new')
    """
    best = measure(ranked[0])

    def is_near(one: Item) -> bool:
        mine = measure(one)
        common = min(len(best.values), len(mine.values))
        first, second = (Measurements(found.values[:common], found.replicates[:common]) for found in (best, mine))
        lead = compare_paired(first, second)
        return lead is not None and lead.value <= lead.least_error

    return min((one for at, one in enumerate(ranked) if not at or is_near(one)), key=cost)


def collect_rows(
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    split: str,
    recorded: Mapping[Train, Outcome],
    schedule: str = "proxy",
    fidelity: float = 1.0,
) -> list[Row]:
    """Return the rows of the entrants whose trainings are all recorded; the first baseline is the reference of the others."""
    found: list[Row] = []
    for entrant in entrants:
        outcomes = [recorded.get(entrant.job(seed, split, schedule, fidelity)) for seed in seeds]
        whole = tuple(outcome for outcome in outcomes if outcome is not None)
        if whole and len(whole) == len(outcomes):
            found.append(Row(entrant, whole))
    reference = next((row for row in found if row.entrant.baseline), None)
    if reference is None:
        return found
    return [row if row is reference else replace(row, reference=reference.score) for row in found]


@final
class Rows(list[Row]):
    """The rows of a comparison; a notebook shows them as a table, and `plot()` draws them."""

    _repr_html_, plot = to_html, plot


def sort_by_mean(rows: Sequence[Row]) -> Rows:
    """Sort rows by their mean, the best first, those without one last."""
    return Rows(sorted(rows, key=lambda row: -math.inf if row.mean is None else row.mean, reverse=True))


def read_comparison(compared: Comparison, seed: int, recorded: Mapping[Train, Outcome]) -> Rows:
    """Return the rows of a comparison on the test split as far as it is, the best first, with their scores on the valid split.

    Args:
        seed: The run's.
    """
    entrants = [Entrant(**entrant) for entrant in compared.entrants]
    valid = collect_rows(entrants, training_seeds(seed, TUNING, TUNING_SEEDS), "valid", recorded)
    scores = {row.entrant: row.score for row in valid}
    rows = collect_rows(entrants, training_seeds(seed, COMPARISON, compared.seeds), TEST, recorded)
    return sort_by_mean([replace(row, valid=scores.get(row.entrant, row.valid)) for row in rows])
