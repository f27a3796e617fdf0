"""Runs and comparisons as tables for a terminal, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from autoloss.errors import unknown
from autoloss.report.numbers import figure
from autoloss.report.readable import simplify_formulas
from autoloss.run.results import NOTHING_GAINED, FoundLoss, Search
from autoloss.trainings.table import Row

LOOKED_AT = 20
"""Number of best and of latest losses that are searched for the names of a run's further metrics."""


def table(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]], caption: str | None = None) -> Table:
    """Build a table.

    Args:
        columns: Header → justification: left or right.
    """
    made = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for header, justify in columns.items():
        made.add_column(header, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    return made


def top_rows(search: Search, count: int) -> list[dict[str, Any]]:
    """Return the best losses of a run as plain values."""
    return rows_of(search, search.top(count))


def hall_of_fame(search: Search) -> list[FoundLoss]:
    """Return, for each size, the best loss that is better than all smaller ones, the smallest first."""
    return search.losses(search.reader.best_by_size)


def hall_rows(search: Search) -> list[dict[str, Any]]:
    """Return the hall of fame as plain values."""
    return rows_of(search, hall_of_fame(search))


def rows_of(search: Search, chosen: Sequence[FoundLoss]) -> list[dict[str, Any]]:
    """Return losses of a run as plain values."""
    times_found, last = search.reader.times_found([found.id for found in chosen]), search.reader.latest
    readable = simplify_formulas(search, [found.formula for found in chosen])
    return [
        {
            "id": found.id,
            "score": found.score,
            "confirmed": found.confirmed,
            "size": found.size,
            "age": last - found.id,
            "found": times_found[found.id],
            "formula": found.formula,
            "simplified": readable[found.formula].text,
            "readable": readable[found.formula].line,
            "also": dict(found.also),
        }
        for found in chosen
    ]


def top_table(
    search: Search,
    rows: Sequence[Mapping[str, Any]],
    running: Sequence[Mapping[str, Any]] = (),
    also: Sequence[str] | None = None,
) -> Table:
    """Show losses of a run, one row each.

    Args:
        rows: Those of `top_rows` or of `hall_rows`.
        running: Id and loss of the candidates in training; they are listed below the table.
        also: Further metrics that get a column; those that the run was started with when left out.
    """
    further = columns_of(also, search)
    confirmed = any(row["confirmed"] is not None for row in rows)
    winner = search.best.id if confirmed else None
    columns = {"id": "right", "score": "right", **({"new training seeds": "right"} if confirmed else {})}
    return table(
        f"Best of {search.reader.count} losses in {search.directory}",
        {
            **columns,
            **dict.fromkeys(further, "right"),
            "size": "right",
            "age": "right",
            "found": "right",
            "formula": "left",
        },
        (
            (
                f"{'★ ' if row['id'] == winner else ''}{row['id']}",
                figure(row["score"]),
                *([figure(row["confirmed"])] if confirmed else []),
                *(figure(row["also"].get(metric)) for metric in further),
                row["size"],
                row["age"],
                f"{row['found']}×",
                f"{row['readable']}\n{row['formula']}",
            )
            for row in rows
        ),
        "score: metric of the proxy training on the valid split · size: number of operators · age: number of later losses · "
        "found: number of times found, with twins and copies · formula: simplified, and below it the original"
        + (" · new training seeds: mean score of further trainings · ★ winner" if confirmed else "")
        + "".join(f"\nin training: #{one['id']}  {one['loss']}" for one in running)
        + f"\n{describe_never_trained(search)}",
    )


def columns_of(also: Sequence[str] | None, search: Search) -> Sequence[str]:
    """Return the further metrics that tables of a run show.

    Raises:
        RequestError: None of its trainings measured such a metric.
    """
    if also is None:
        return search.settings.also
    # Trainings of one run measure the same; only a resumed one may have begun to measure more.
    measured = search.reader.further_metrics(LOOKED_AT)
    for metric in also:
        if metric not in measured and measured:
            raise unknown(f"further metric of the run in {search.directory}", metric, measured)
    return also


def describe_never_trained(search: Search) -> str:
    """Say how many losses passed the rejection protocol, but diverged or hardly improved the network."""
    found = search.never_trained
    lost = found.diverged + (found.standing or 0)
    ways = [f"{found.diverged} diverged"]
    if found.standing is not None:
        ways.append(
            f"{found.standing} improved the untrained network's score of {figure(found.untrained)} by less than "
            f"{NOTHING_GAINED:.0%} of the best loss's improvement"
        )
    return f"Of {found.trained} trained losses, {lost} did not learn: {', '.join(ways)}."


def comparison_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a comparison as plain values."""
    return [
        {
            "label": row.entrant.label,
            "loss": row.entrant.loss,
            "learning_rate": row.entrant.learning_rate,
            "scale": row.entrant.scale,
            "baseline": row.entrant.baseline,
            "scores": list(row.scores),
            "reasons": list(row.reasons),
            "mean": row.mean,
            "sd": row.deviation,
            "interval": row.interval,
            "p_value": row.p_value,
            "also": row.also,
        }
        for row in rows
    ]


def comparison_table(title: str, rows: Sequence[Row], also: Sequence[str] = ()) -> Table:
    """Return a comparison as a table, the best entrant first.

    Args:
        also: Further metrics whose means get a column.
    """
    tested = any(row.reference is not None for row in rows)
    reference = (
        next((row.entrant.label for row in rows if row.entrant.baseline and row.reference is None), "")
        if tested
        else ""
    )
    return table(
        title,
        {
            "loss": "left",
            "mean": "right",
            "± sd": "right",
            "p": "right",
            **dict.fromkeys(also, "right"),
            "seeds": "right",
            "formula": "left",
        },
        (
            (
                row.entrant.label,
                figure(row.mean),
                figure(row.deviation),
                "" if row.p_value is None else f"{row.p_value:.3f}",
                *(figure(row.also.get(metric)) for metric in also),
                count_seeds(row),
                "" if row.entrant.baseline else row.entrant.loss,
            )
            for row in rows
        ),
        "\n".join(
            [f"p: two-sided paired t-test against {reference}, same seeds"] * bool(reference)
            + [f"{row.entrant.label}: {reason.splitlines()[0]}" for row in rows for reason in row.reasons]
        )
        or None,
    )


def count_seeds(row: Row) -> str:
    """Return the number of training seeds of a row, and of those without a score."""
    return f"{len(row.scores)}" + (f" ({row.failed} without a score)" if row.failed else "")
