"""How large a difference between two losses a split can show, told before anything is searched on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from autoloss.comparison.entrant import Measurements, compare_paired
from autoloss.numbers import figure
from autoloss.proposing.records import Outcome, Train

BEST = 4
"""Number of the best trainings whose differences are looked at."""
SPOILT_SHARE, SPOILT_ERRORS = 0.5, 4.0
"""A training is spoilt if it lost more than this share of the gain, and more than so many standard errors of the best score."""
LARGE = 0.5
"""Share of what the standard loss gains over predictions without learning above which a split is called too small."""

MORE = "Give more validation data or, where the task takes them, more partitions of all data, as in Data(folds=5) or --set folds=5."


@dataclass(frozen=True, slots=True)
class Resolution:
    """The precision of comparisons on a split.

    Args:
        difference: The difference between two losses below which nothing can be told, with any number of training seeds; None
            where a single training is of use.
        examples: Number of examples of the split.
        error: The standard error of such a difference.
        single: That of the best score by itself, which is known also where all losses score alike.
    """

    difference: float | None
    examples: int
    error: float = 0.0
    single: float = 0.0

    def describe(self, gain: float | None = None) -> str:
        """Describe it in a sentence or two.

        Args:
            gain: What the standard loss gains over predictions without learning; None where it is not known.

        >>> Resolution(0.031, 113).describe()
        'The valid split has 113 examples: differences between losses below about 0.0310 cannot be detected on it.'
        >>> Resolution(0.0, 8, 0.0, 0.12).describe().split(". ")[0]
        'The valid split has 8 examples, and the best trainings score alike on them; a single score is uncertain by 0.1200'
        """
        by_itself = f"; a single score is uncertain by {figure(self.single)}" if self.single else ""
        if self.difference is None:
            return f"The valid split has {self.examples:,} examples{by_itself}."
        if self.difference == 0:
            return f"The valid split has {self.examples:,} examples, and the best trainings score alike on them{by_itself}. {MORE}"
        text = (
            f"The valid split has {self.examples:,} examples: differences between losses below about {figure(self.difference)} "
            "cannot be detected on it"
        )
        if gain is None or self.difference <= LARGE * max(0.0, gain):
            return f"{text}."
        gained = f"gains {figure(gain)} over" if gain > 0 else "is not ahead of"
        return f"{text}, and the standard loss {gained} predictions without learning. A search would choose by chance. {MORE}"


def measure_resolution(outcomes: Mapping[Train, Outcome], gain: float | None = None) -> Resolution | None:
    """Return the precision of comparisons on the valid split, from whole trainings that were measured on resamples of it.

    Two losses that are equally good differ as the best of these do: the median over pairs of the four best. One that has lost half
    of the gain, and far more than noise, differs from the others by more, as where large steps have spoilt a training.

    Args:
        gain: As for `Resolution.describe`.

    Returns:
        None where fewer than two whole trainings were measured on resamples.
    """
    # Short trainings are measured on a part of the split.
    whole = [
        outcome for job, outcome in outcomes.items() if (job.training.split, job.training.fidelity) == ("valid", 1)
    ]
    measured = [one for one in whole if one.score is not None and one.replicates is not None]
    found = sorted(measured, key=lambda one: one.score or 0.0, reverse=True)[:BEST]
    best = Measurements.of(found[:1]).estimate
    single = 0.0 if best is None else best.least_error
    if gain is not None:
        lost = max(SPOILT_SHARE * gain, SPOILT_ERRORS * single)
        found = [one for one in found if (found[0].score or 0.0) - (one.score or 0.0) <= lost]
    if len(measured) < 2 or found[0].replicates is None:
        return None
    examples = found[0].replicates.examples
    pairs = combinations([Measurements.of([one]) for one in found], 2)
    estimates = [lead for a, b in pairs if (lead := compare_paired(a, b)) is not None]
    known = [one.resolution for one in estimates if one.resolution is not None]
    if not known:
        return Resolution(None, examples, single, single) if len(found) == 1 else None
    return Resolution(median(known), examples, median(one.least_error for one in estimates), single)
