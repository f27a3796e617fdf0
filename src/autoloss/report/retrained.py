"""Tables of a retraining: for a terminal, and as a file beside the trainings."""

from __future__ import annotations

import json
from pathlib import Path

from rich.table import Table

from autoloss.atomic_files import write_text
from autoloss.comparison.entrant import Row
from autoloss.comparison.retrain import Retraining
from autoloss.report.leaderboard import count_seeds, figure, table

FILE = "table.md"


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
    rule = ["---", *["---:"] * (len(header) - 1)]
    rows = [header, rule, *_cells(found)]
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
    ours = [[row.entrant.label, count_seeds(row), *_figures(found, row)] for row in found.rows]
    theirs = [
        [f"{row.label} (published)", "", *(figure(found.shares(row).get(name)) for name in found.figures)]
        for row in found.published
    ]
    return [*ours, *theirs]


def _figures(found: Retraining, row: Row) -> list[str]:
    columns = [found.column(row, name) for name in found.figures]
    return [
        figure(column.mean) + ("" if column.deviation is None else f" ± {figure(column.deviation)}")
        for column in columns
    ]
