"""Tables of a retraining: for a terminal, and as files beside the trainings."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from rich.table import Table

from autoloss.atomic_files import write_text
from autoloss.comparison.entrant import Row
from autoloss.comparison.retrain import Retraining
from autoloss.report.leaderboard import count_seeds, figure, table

STEM = "table"


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


def to_csv(found: Retraining) -> str:
    """Return the table as CSV with one row per loss and metric, means and deviations with all their digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "source", "metric", "mean", "sd", "seeds"])
    for row in found.rows:
        for name in found.figures:
            column = found.column(row, name)
            if column.finite:
                cells = [column.mean, column.deviation, len(column.finite)]
                writer.writerow([row.entrant.label, "trained", name, *("" if cell is None else cell for cell in cells)])
    for published in found.published:
        for name, value in found.shares(published).items():
            writer.writerow([published.label, "published", name, value, "", ""])
    return text.getvalue()


def write(found: Retraining) -> list[Path]:
    """Write the table beside the trainings, as Markdown, CSV and JSON."""
    texts = {
        "md": to_markdown(found),
        "csv": to_csv(found),
        "json": json.dumps(found.to_dict(), indent=2, allow_nan=False),
    }
    paths = [found.directory / f"{STEM}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


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
