"""The judgement whether the best loss found is better than the best baseline; every report repeats it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from autoloss.comparison.entrant import Row, compare_paired, sort_by_mean
from autoloss.comparison.noise import Estimate

SIGNIFICANT = 0.05
"""A corrected p-value below this is called significant."""


class Standing(Enum):
    """The best loss found compared with the best baseline."""

    BEATS = "beats the best baseline"
    AHEAD = "ahead, but not significantly"
    EQUAL = "equal"
    BEHIND = "behind, but not significantly"
    WORSE = "worse than the best baseline"
    ONE_SEED = "one seed tells nothing"
    NO_SCORE = "not trained on every seed"
    NO_BASELINE = "no baseline to compare with"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The best loss found and the best baseline, on the test split and over the same training seeds.

    Args:
        standing: The answer. Only `Standing.BEATS` makes the loss a winner.
        found: Of the loss; None where it was not compared.
        rival: Of the baseline with the highest mean; None where no baseline has a score on every seed.
        paired: Their differences; its p-value is not corrected.
        p_values: Label of a baseline → p-value of the difference from it: paired over training seeds and examples, two-sided,
            corrected by Holm for the number of baselines.
        baselines: Their number; the same loss trained in several ways is one.
    """

    standing: Standing
    found: Row | None = None
    rival: Row | None = None
    paired: Estimate | None = None
    p_values: Mapping[str, float] = field(default_factory=dict)
    baselines: int = 0

    @property
    def is_win(self) -> bool:
        """True if the loss found is better than the best baseline, significantly."""
        return self.standing is Standing.BEATS

    @property
    def p_value(self) -> float | None:
        """The corrected p-value against the best baseline; None where there is none."""
        return None if self.rival is None else self.p_values.get(self.rival.entrant.label)

    @property
    def can_seeds_tell(self) -> bool:
        """True if more training seeds may tell the losses apart; otherwise only more test data can."""
        resolution = None if self.paired is None else self.paired.resolution
        return self.paired is None or resolution is None or abs(self.paired.value) > resolution

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        noise = "training seeds only" if self.paired is None else describe_noise(self.paired)
        return {
            "standing": self.standing.value,
            "winner": self.is_win,
            "found": _describe(self.found),
            "best_baseline": _describe(self.rival),
            "difference": None if self.paired is None else self.paired.value,
            "interval": None if self.paired is None else self.paired.half_width,
            "p_value": self.p_value,
            "resolution": None if self.paired is None else self.paired.resolution,
            "examples": None if self.paired is None else self.paired.examples,
            "test": f"paired over {noise}, two-sided, Holm-corrected for {self.baselines} baseline"
            + "s" * (self.baselines != 1),
        }


def judge_comparison(rows: Sequence[Row], number: int | None) -> Judgement:
    """Judge the best loss found by a comparison on the test split.

    Args:
        rows: Losses found and baselines.
        number: Of the candidate that was best on the valid split; the best *on test* would flatter.
    """
    found = next((row for row in rows if number is not None and row.entrant.number == number), None)
    known = [row for row in sort_by_mean(rows) if row.entrant.baseline or row.entrant.known]
    rivals = [row for row in known if row is not found and row.mean is not None]
    losses = len({name_loss(row) for row in rivals})
    if found is None:
        return Judgement(Standing.NOT_COMPARED)
    if found.mean is None:
        return Judgement(Standing.NO_SCORE, found, rivals[0] if rivals else None, baselines=losses)
    if not rivals:
        return Judgement(Standing.NO_BASELINE, found)
    pairs = {row.entrant.label: compare_paired(found.score, row.score) for row in rivals}
    p_values = _correct_by_loss(rivals, {label: pair and pair.p_value for label, pair in pairs.items()})
    paired, p_value = pairs[rivals[0].entrant.label], p_values.get(rivals[0].entrant.label)
    standing = _stand(0.0 if paired is None else paired.value, p_value, len(found.scores))
    return Judgement(standing, found, rivals[0], paired, p_values, losses)


def _stand(difference: float, p_value: float | None, seeds: int) -> Standing:
    significant = p_value is not None and p_value < SIGNIFICANT
    if seeds < 2:
        return Standing.ONE_SEED
    if difference == 0:
        return Standing.EQUAL
    if difference > 0:
        return Standing.BEATS if significant else Standing.AHEAD
    return Standing.WORSE if significant else Standing.BEHIND


def _correct_by_loss(rivals: Sequence[Row], p_values: Mapping[str, float | None]) -> dict[str, float]:
    """Correct p-values for the number of losses: the same loss at several learning rates or step rules is one hypothesis.

    The best of them stands for the loss beside the others; each of them is corrected as if it did.

    Args:
        rivals: The best first.
    """
    best: dict[str, str] = {}
    for row in rivals:
        best.setdefault(name_loss(row), row.entrant.label)
    corrected: dict[str, float] = {}
    for row in rivals:
        labels = {**best, name_loss(row): row.entrant.label}.values()
        found = correct_by_holm({label: p_values[label] for label in labels})
        corrected |= {label: value for label, value in found.items() if label == row.entrant.label}
    return corrected


def name_loss(row: Row) -> str:
    """Name the loss of a row: a known loss is the same under its name and under the number of a candidate."""
    return row.entrant.name.removeprefix(f"#{row.entrant.number} ")


def correct_by_holm(p_values: Mapping[str, float | None]) -> dict[str, float]:
    """Correct p-values for their number; a test without one counts, and is not among the results.

    Source: Holm, 1979, A Simple Sequentially Rejective Multiple Test Procedure.

    >>> correct_by_holm({"a": 0.25, "b": 0.125, "c": None})
    {'b': 0.375, 'a': 0.5}
    """
    known = sorted((value, label) for label, value in p_values.items() if value is not None)
    corrected: dict[str, float] = {}
    highest = 0.0
    for place, (value, label) in enumerate(known):
        highest = max(highest, min(1.0, (len(p_values) - place) * value))
        corrected[label] = highest
    return corrected


def describe_noise(estimate: Estimate) -> str:
    """Describe the sources of noise that an estimate includes.

    >>> describe_noise(Estimate(0.1, 0.05, 5, 0.02, 113, 63))
    '5 training seeds and 113 examples'
    >>> describe_noise(Estimate(0.1, 0.05, 5))
    '5 training seeds only'
    """
    seeds = f"{estimate.seeds} training seed" + "s" * (estimate.seeds != 1)
    return f"{seeds} only" if estimate.examples is None else f"{seeds} and {estimate.examples:,} examples"


def _describe(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    entrant = row.entrant
    return {
        "label": entrant.label,
        "loss": entrant.loss,
        "learning_rate": entrant.learning_rate,
        "scale": entrant.scale,
        "mean": row.mean,
        "interval": row.interval,
        "seeds": len(row.scores),
    }
