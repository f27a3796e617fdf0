"""Whether the winner is better than the best baseline, and how certain that is; for terminals and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from autoloss.report.numbers import figure, signed
from autoloss.trainings.table import PairedDifference, Row, compare_paired, sort_by_mean

SURE = 0.05
"""Significance level: a difference with a smaller p-value counts as one."""


class Standing(Enum):
    """How the winner compares with the best baseline."""

    BEATS = "beats"
    AHEAD = "is ahead of"
    EQUALS = "equals"
    BEHIND = "does not beat"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The winner compared with the best baseline, on the test split and the same new training seeds.

    Args:
        rival: The baseline with the highest mean; None where the task declares none.
        paired: Their differences.
    """

    winner: Row
    rival: Row | None = None
    paired: PairedDifference | None = None

    @property
    def standing(self) -> Standing | None:
        if self.paired is None:
            return None
        difference, p_value = self.paired.difference, self.paired.p_value
        if difference == 0:
            return Standing.EQUALS
        if difference < 0:
            return Standing.BEHIND
        return Standing.BEATS if p_value is None or p_value < SURE else Standing.AHEAD

    @property
    def numbers(self) -> str:
        """Both means with half of their 95 % intervals."""
        text = f"{self.winner.entrant.label} {_mean(self.winner)}"
        return text if self.rival is None else f"{text} against {_mean(self.rival)} of {self.rival.entrant.label}"

    @property
    def sureness(self) -> str:
        """The difference with its 95 % confidence interval and p-value."""
        seeds = f"{len(self.winner.scores)} seed" + "s" * (len(self.winner.scores) != 1)
        if self.paired is None:
            return f"over {seeds}"
        difference = f"difference {signed(self.paired.difference)}"
        if self.paired.interval is None or self.paired.p_value is None:
            return f"{difference} over {seeds}, too few for a test"
        interval = f"± {figure(self.paired.interval)}"
        return f"{difference} {interval}, p = {self.paired.p_value:.2g} (paired t-test over {seeds})"


def judged(rows: Sequence[Row], winner: str) -> Judgement | None:
    """Compare the winner with the best baseline; None where no found loss has a score on every seed.

    Args:
        winner: Label of the loss with the best mean over new training seeds on the valid split. The best *on test* would be biased.
    """
    found = [row for row in sort_by_mean(rows) if not row.entrant.baseline and row.mean is not None]
    rivals = [row for row in sort_by_mean(rows) if row.entrant.baseline and row.mean is not None]
    if not found:
        return None
    best = next((row for row in found if row.entrant.label == winner), found[0])
    return Judgement(best, rivals[0], compare_paired(best.scores, rivals[0].scores)) if rivals else Judgement(best)


def verdict(rows: Sequence[Row], winner: str) -> str:
    """Say in a sentence whether the winner is better than the best baseline, and how certain that is."""
    found = judged(rows, winner)
    if found is None:
        return "No found loss has a score on every seed."
    if found.rival is None:
        return f"{found.winner.entrant.label} reaches {_mean(found.winner)}; the task declares no standard loss to compare it with."
    standing = found.standing or Standing.EQUALS
    doubt = ", but not significantly" if standing is Standing.AHEAD else ""
    return (
        f"The winner {found.winner.entrant.label} {standing.value} the best baseline on test{doubt}: "
        f"{found.numbers}; {found.sureness}."
    )


def _mean(row: Row) -> str:
    return figure(row.mean) + ("" if row.interval is None else f" ± {figure(row.interval)}")
