"""An explanation and a retraining as tables for a terminal, as rows of a page, and as a file beside the trainings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from autoloss.comparison.explanation import Explanation
from autoloss.files import write_text
from autoloss.numbers import figure, plus_minus
from autoloss.report.leaderboard import count_seeds, table
from autoloss.report.verdict import MEANING
from autoloss.space.loss_text import MAIN

if TYPE_CHECKING:
    from autoloss.comparison.retrain import Retraining

CAUSES = (
    "share: part of the gain over the standard loss, with its 95 % confidence interval;\n"
    "weights of items count for what they add to the steps of the loss; another recipe of the standard loss for all that it has,\n"
    "its learning rate included"
)
"""Meaning of the shares."""
FILE = "table.md"
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
            scale = "their mean, weighted by the standard loss's squared gradients, is 1"
            yield f"{control.name.capitalize()} of {found.loss.entrant.label}{where} ({groups}; {scale}): {listed}."


def list_controls(found: Explanation) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield what was trained, with its mean, half the width of the mean's interval, its share of the gain, and the seeds."""
    for text, row in (("the loss", found.loss), ("the standard loss", found.standard)):
        yield (f"{row.entrant.label}: {text}", figure(row.mean), figure(row.interval), "", count_seeds(row))
    for control, row in found.controls:
        share = found.find_share(control.name, row).write()
        yield (control.text, figure(row.mean), figure(row.interval), share, count_seeds(row))


def causes_table(found: Explanation) -> Table:
    """Return a table of the share of each cause."""
    rows = [(one.name, one.write()) for one in found.causes]
    return table("Causes of the gain", ("cause", "share"), rows, CAUSES, {"cause"})


def controls_table(found: Explanation) -> Table:
    """Return a table of all that was trained."""
    columns = ("trained", "mean", "± 95 %", "share", "seeds")
    notes = [MEANING, *(f"{row.entrant.label}: {reason}" for _, row in found.controls for reason in row.reasons)]
    return table(f"Controls, {found.split} split", columns, list_controls(found), "\n".join(notes), {"trained"})


def retraining_table(found: Retraining) -> Table:
    """Return the table of trained losses, the best first, followed by published results."""
    formulas = ["" if row.entrant.baseline else row.entrant.loss for row in found.rows]
    cells = _cells(found)
    return table(
        _write_title(found),
        ["loss", "seeds", *found.figures, "formula"],
        [[*row, formula] for row, formula in zip(cells, [*formulas, *[""] * len(cells)], strict=False)],
        "\n".join(_write_notes(found)),
        ("loss", "formula"),
    )


def to_markdown(found: Retraining) -> str:
    """Return the table as Markdown, with its settings."""
    header = ["loss", "seeds", *found.figures]
    rows = [header, ["---", *["---:"] * (len(header) - 1)], *_cells(found)]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    settings = [f"- {name}: `{json.dumps(value)}`" for name, value in found.settings.items()]
    losses = [f"- {row.entrant.label}: `{row.entrant.loss}`" for row in found.rows if not row.entrant.baseline]
    parts = [[f"# {_write_title(found)}"], lines, [f"{note}  " for note in _write_notes(found)], losses, settings]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def write(found: Retraining) -> Path:
    """Write the table beside the trainings, as Markdown."""
    path = found.directory / FILE
    write_text(path, to_markdown(found))
    return path


def _write_title(found: Retraining) -> str:
    return f"{found.settings['task']}, {found.settings['split']} split, full schedule"


def _write_notes(found: Retraining) -> list[str]:
    """Explain the columns, and give the reasons of trainings without a score."""
    columns = "mean ± standard deviation over the seeds" if len(found.seeds) > 1 and found.rows else ""
    published = "published: results from the paper, not trained here" if found.published else ""
    reasons = [f"{row.entrant.label}: {reason.splitlines()[0]}" for row in found.rows for reason in row.reasons]
    return [note for note in (columns, published, *reasons) if note]


def _cells(found: Retraining) -> list[list[str]]:
    ours = [
        [row.entrant.label, count_seeds(row)]
        + [figure(one.mean) + plus_minus(one.deviation) for one in (found.column(row, name) for name in found.figures)]
        for row in found.rows
    ]
    theirs = [
        [f"{row.label} (published)", "", *(figure(found.shares(row).get(name)) for name in found.figures)]
        for row in found.published
    ]
    return [*ours, *theirs]
