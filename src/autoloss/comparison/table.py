"""Outcomes of trainings side by side: one row for each loss, with its mean and spread over the training seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

from autoloss.comparison.entrant import Entrant
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome


@dataclass(frozen=True, slots=True)
class Measurements:
    """One figure of a loss, measured once for each training seed.

    Args:
        values: One per seed; None where a training has no such figure.

    >>> Measurements((0.5, 0.7)).mean
    0.6
    """

    values: tuple[float | None, ...]

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
    def interval(self) -> float | None:
        """Half the width of the 95 % confidence interval of the mean (Student's t)."""
        return None if self.deviation is None else find_half_width(self.finite)


@dataclass(frozen=True, slots=True)
class Row:
    """An entrant with the outcomes of its trainings.

    Args:
        outcomes: One per seed.
        reference: The scores of the standard loss over the same seeds; None for that loss itself.
    """

    entrant: Entrant
    outcomes: tuple[Outcome, ...]
    reference: tuple[float | None, ...] | None = None

    @property
    def score(self) -> Measurements:
        """The task's metric."""
        return Measurements(tuple(outcome.score for outcome in self.outcomes))

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
        """Two-sided p-value of the paired differences from the standard loss (Student's t), or None where there is none."""
        found = None if self.reference is None else compare_paired(self.scores, self.reference)
        return None if found is None else found.p_value


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Difference of the scores of two losses over the same seeds.

    Args:
        difference: Mean of the first minus mean of the second.
        interval: Half the width of the difference's 95 % confidence interval (Student's t); None for one seed, or equal
            differences.
        p_value: Two-sided, of no difference; None likewise.
    """

    difference: float
    interval: float | None = None
    p_value: float | None = None


def compare_paired(first: Sequence[float | None], second: Sequence[float | None]) -> PairedDifference | None:
    """Test the differences of scores over the same seeds with a paired t-test; None where a score is missing.

    >>> compare_paired([0.5], [0.25]).difference
    0.25
    """
    from scipy.special import stdtr

    pairs = list(zip(first, second, strict=True))
    differences = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
    if not differences or len(differences) < len(pairs):
        return None
    if len(differences) < 2 or max(differences) - min(differences) < 1e-12:
        return PairedDifference(mean(differences))
    # What scipy.stats.ttest_1samp computes, whose import takes longer than all else that a reader does.
    statistic = mean(differences) / (stdev(differences) / math.sqrt(len(differences)))
    p_value = 2 * float(stdtr(len(differences) - 1, -abs(statistic)))
    return PairedDifference(mean(differences), find_half_width(differences), p_value)


def find_half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of the mean of at least two values (Student's t)."""
    return find_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))


def find_quantile(share: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution.

    >>> round(find_quantile(0.975, 2), 4)
    4.3027
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, share))


def collect_rows(
    entrants: Sequence[Entrant],
    seeds: Sequence[int],
    split: str,
    recorded: Mapping[Train, Outcome],
    schedule: str = "proxy",
) -> list[Row]:
    """Return the rows of the entrants whose trainings are all recorded; the first baseline is the reference of the others."""
    found: list[Row] = []
    for entrant in entrants:
        outcomes = [recorded.get(entrant.job(seed, split, schedule)) for seed in seeds]
        whole = tuple(outcome for outcome in outcomes if outcome is not None)
        if whole and len(whole) == len(outcomes):
            found.append(Row(entrant, whole))
    reference = next((row for row in found if row.entrant.baseline), None)
    if reference is None:
        return found
    return [row if row is reference else replace(row, reference=reference.scores) for row in found]


def sort_by_mean(rows: Sequence[Row]) -> list[Row]:
    """Sort rows by their mean, the best first, those without one last."""
    return sorted(rows, key=lambda row: -math.inf if row.mean is None else row.mean, reverse=True)
