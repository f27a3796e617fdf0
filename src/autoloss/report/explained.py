"""An explanation as tables for a terminal, and as rows of a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from autoloss.comparison.entrant import Row
from autoloss.comparison.explanation import Explanation
from autoloss.numbers import figure
from autoloss.report.leaderboard import count_seeds, table
from autoloss.report.verdict import MEANING
from autoloss.space.loss_text import MAIN

CAUSES = (
    "share: part of the gain over the standard loss, with its 95 % confidence interval;\n"
    "weights of items count for what they add to the steps of the loss; another recipe of the standard loss for all that it has"
)
"""Meaning of the shares."""
GROUPS = {
    "class": "one for each class, or for the negatives and positives of each label",
    "confidence": "in {count} steps from the most wrong predictions to right ones",
}


def describe_in_full(found: Explanation) -> list[str]:
    """Return an explanation in sentences."""
    return [*found.describe(), *_describe_weights(found), *found.notes]


def _describe_weights(found: Explanation) -> Iterator[str]:
    """Yield what the loss weighs items by, where it weighs them."""
    for control, _ in found.controls:
        for branch, grouping, weights in control.entrant.item_weights if control.kind == "items" else ():
            groups = GROUPS[grouping].format(count=len(weights))
            listed = ", ".join(f"{weight:g}" for weight in weights)
            where = "" if branch == MAIN else f" on {branch}"
            yield f"{control.name.capitalize()} of {found.loss.entrant.label}{where} ({groups}; their mean is 1): {listed}."


def list_controls(found: Explanation) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield what was trained, with its mean, half the width of the mean's interval, its share of the gain, and the seeds."""
    for text, row in (("the loss", found.loss), ("the standard loss", found.standard)):
        yield (f"{row.entrant.label}: {text}", *_write(row), "", count_seeds(row))
    for control, row in found.controls:
        share = found.find_share(control.name, row).write()
        yield (control.text, *_write(row), share, count_seeds(row))


def _write(row: Row) -> tuple[str, str]:
    return figure(row.mean), figure(row.interval)


def causes_table(found: Explanation) -> Table:
    """Return a table of the share of each cause."""
    return table(
        "Causes of the gain", ("cause", "share"), [(one.name, one.write()) for one in found.causes], CAUSES, {"cause"}
    )


def controls_table(found: Explanation) -> Table:
    """Return a table of all that was trained."""
    columns = ("trained", "mean", "± 95 %", "share", "seeds")
    notes = [MEANING, *(f"{row.entrant.label}: {reason}" for _, row in found.controls for reason in row.reasons)]
    return table(f"Controls, {found.split} split", columns, list_controls(found), "\n".join(notes), {"trained"})
