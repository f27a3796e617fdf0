"""Entrants of a comparison and what their trainings came to; reading them needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from autoloss.search.chance import derive_seed
from autoloss.search.jobs import Train
from autoloss.search.records import Outcome
from autoloss.store.rows import branches_in
from autoloss.tasks.task import Training

CONFIRMATION = "confirmation"
COMPARISON = "comparison"
"""Purposes of training seeds: the best again on the valid split, and beside the baselines on the test split."""
TEST = "test"
"""The split of final figures; no search looks at it."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Something that is compared: a loss with the learning rate and scale it is trained at."""

    label: str
    loss: str
    learning_rate: float = 1.0
    scale: float = 1.0
    baseline: bool = False

    def job(self, seed: int, split: str, schedule: str = "proxy") -> Train:
        scale = dict.fromkeys(branches_in(self.loss), self.scale)
        training = Training(seed=seed, split=split, schedule=schedule, learning_rate=self.learning_rate, scale=scale)
        return Train(self.loss, training)


@dataclass(frozen=True, slots=True)
class Row:
    """An entrant with what its trainings came to.

    Args:
        scores: One per seed; None where a training has no score.
        reference: The scores of the standard loss over the same seeds; None for that loss itself.
        reasons: Why trainings have no score, each reason once.
        also: Further metrics of each training.
    """

    entrant: Entrant
    scores: tuple[float | None, ...]
    reference: tuple[float | None, ...] | None = None
    reasons: tuple[str, ...] = ()
    also: tuple[Mapping[str, float], ...] = ()

    @property
    def finite(self) -> list[float]:
        return [score for score in self.scores if score is not None]

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None when any training has no score, since the rest would flatter."""
        return mean(self.finite) if self.scores and None not in self.scores else None

    @property
    def further(self) -> dict[str, float]:
        """The means of the metrics that every training has."""
        names = [name for name in self.also[0] if all(name in one for one in self.also)] if self.also else []
        return {name: mean(one[name] for one in self.also) for name in names}

    @property
    def deviation(self) -> float | None:
        return stdev(self.finite) if self.mean is not None and len(self.finite) > 1 else None

    @property
    def interval(self) -> float | None:
        """Half the width of the 95 % interval of the mean (Student's t)."""
        from scipy.stats import t

        if self.deviation is None:
            return None
        count = len(self.finite)
        return float(t.ppf(0.975, count - 1)) * self.deviation / math.sqrt(count)

    @property
    def p_value(self) -> float | None:
        """Two-sided, of the paired differences to the standard loss (Student's t); None where it cannot be had."""
        found = None if self.reference is None else paired(self.scores, self.reference)
        return None if found is None else found.p_value


@dataclass(frozen=True, slots=True)
class Paired:
    """How two losses differ over the same seeds.

    Args:
        difference: Mean of the first minus mean of the second.
        interval: Half the width of the difference's 95 % interval (Student's t); None for one seed, or equal differences.
        p_value: Two-sided, of no difference; None likewise.
    """

    difference: float
    interval: float | None = None
    p_value: float | None = None


def paired(first: Sequence[float | None], second: Sequence[float | None]) -> Paired | None:
    """Compare scores over the same seeds; None where any is missing, since the rest would flatter."""
    from scipy.stats import t, ttest_1samp

    pairs = list(zip(first, second, strict=True))
    differences = [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]
    if not differences or len(differences) < len(pairs):
        return None
    if len(differences) < 2 or max(differences) - min(differences) < 1e-12:
        return Paired(mean(differences))
    tested: Any = ttest_1samp(differences, 0.0)
    half = float(t.ppf(0.975, len(differences) - 1)) * stdev(differences) / math.sqrt(len(differences))
    return Paired(mean(differences), half, float(tested.pvalue))


def seeds(seed: int, purpose: str, count: int) -> tuple[int, ...]:
    """Return training seeds that no search of this run has used."""
    return tuple(derive_seed(seed, purpose, number) for number in range(count))


def rows(
    entrants: Sequence[Entrant], training_seeds: Sequence[int], split: str, known: Mapping[Train, Outcome]
) -> list[Row]:
    """Return the entrants whose trainings are all known; the first baseline is what the others are tested against."""
    found = []
    for entrant in entrants:
        looked_up = [known.get(entrant.job(seed, split)) for seed in training_seeds]
        outcomes = [outcome for outcome in looked_up if outcome is not None]
        if outcomes and len(outcomes) == len(looked_up):
            reasons = dict.fromkeys(
                f"{outcome.state.value}: {outcome.reason}" for outcome in outcomes if outcome.reason
            )
            scores, also = (outcome.score for outcome in outcomes), (outcome.also for outcome in outcomes)
            found.append(Row(entrant, tuple(scores), reasons=tuple(reasons), also=tuple(also)))
    reference = next((row for row in found if row.entrant.baseline), None)
    if reference is None:
        return found
    return [row if row is reference else replace(row, reference=reference.scores) for row in found]


def by_mean(found: Sequence[Row]) -> list[Row]:
    """Order rows by their mean, the best first, those without one last."""
    return sorted(found, key=lambda row: -math.inf if row.mean is None else row.mean, reverse=True)


def by_evidence(found: Sequence[Row]) -> list[Row]:
    """Order rows by their mean, those with more seeds before all others: who was trained more often was chosen for it."""
    return sorted(by_mean(found), key=lambda row: 0 if row.mean is None else len(row.scores), reverse=True)
