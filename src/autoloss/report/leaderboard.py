"""Runs and comparisons as tables for a terminal, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from autoloss.comparison.judgement import Judgement
from autoloss.comparison.table import Row
from autoloss.errors import unknown
from autoloss.numbers import figure
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import trains_short, write_share
from autoloss.report.verdict import MEANING
from autoloss.run.results import NOTHING_GAINED, FoundLoss, Search

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
            "fidelity": found.fidelity,
            "confirmed": found.confirmed,
            "size": found.size,
            "age": last - found.id,
            "found": times_found[found.id],
            "formula": found.formula,
            "simplified": readable[found.formula].text,
            "readable": readable[found.formula].line,
            "identity": readable[found.formula].identity,
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
    best = search.best.id if confirmed else None
    shares = trains_short(search)
    columns = {"id": "right", "score": "right", **({"trained": "right"} if shares else {})}
    columns |= {"new training seeds": "right"} if confirmed else {}
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
                f"{'★ ' if row['id'] == best else ''}{row['id']}",
                figure(row["score"]),
                *([write_share(row["fidelity"])] if shares else []),
                *([figure(row["confirmed"])] if confirmed else []),
                *(figure(row["also"].get(metric)) for metric in further),
                row["size"],
                row["age"],
                f"{row['found']}×",
                _write_formula(row),
            )
            for row in rows
        ),
        "score: metric of the proxy training on the valid split · size: number of operators · age: number of later losses · "
        "found: number of times found, with twins and copies · formula: simplified, and below it the original; √x is sign(x)·√|x|, "
        "likewise log"
        + (" · =: has the same gradient on this task" if any(row["identity"] for row in rows) else "")
        + (" · trained: share of the schedule; scores compare at one share only" if shares else "")
        + (" · new training seeds: mean score of further trainings · ★ best on these" if confirmed else "")
        + "".join(f"\nin training: #{one['id']}  {one['loss']}" for one in running)
        + f"\n{describe_never_trained(search)}",
    )


def _write_formula(row: Mapping[str, Any]) -> str:
    identity = f"  = {row['identity']}" if row["identity"] else ""
    return f"{row['readable']}{identity}\n{row['formula']}"


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


def comparison_rows(rows: Sequence[Row], judgement: Judgement | None = None) -> list[dict[str, Any]]:
    """Return a comparison as plain values.

    Args:
        judgement: Its p-values take the place of those against the first baseline.
    """
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
            "p_value": _p_value(row, judgement),
            "also": row.also,
        }
        for row in rows
    ]


def comparison_table(
    title: str,
    rows: Sequence[Row],
    also: Sequence[str] = (),
    judgement: Judgement | None = None,
    identities: Mapping[str, str] | None = None,
) -> Table:
    """Show entrants beside each other, the best first.

    Args:
        also: Further metrics whose means get a column.
        identities: Formula → what it is on the task, such as `cross entropy × 2`.
        judgement: Its p-values take the place of those against the first baseline.
    """
    notes = [MEANING] * any(row.interval is not None for row in rows) + describe_p_values(rows, judgement)
    return table(
        title,
        {
            "loss": "left",
            "mean": "right",
            "± 95 %": "right",
            "p": "right",
            **dict.fromkeys(also, "right"),
            "seeds": "right",
            "formula": "left",
        },
        (
            (
                row.entrant.label,
                figure(row.mean),
                figure(row.interval),
                "" if (p_value := _p_value(row, judgement)) is None else f"{p_value:.2g}",
                *(figure(row.also.get(metric)) for metric in also),
                count_seeds(row),
                "" if row.entrant.baseline else _add_identity(row.entrant.loss, identities),
            )
            for row in rows
        ),
        "\n".join(
            [*notes, *(f"{row.entrant.label}: {reason.splitlines()[0]}" for row in rows for reason in row.reasons)]
        )
        or None,
    )


def _add_identity(loss: str, identities: Mapping[str, str] | None) -> str:
    identity = (identities or {}).get(loss)
    return f"{loss}\n= {identity}" if identity else loss


def identify_compared(search: Search) -> dict[str, str]:
    """Return what the compared losses are on the task: formula → `cross entropy × 2`; others are left out."""
    formulas = [row.entrant.loss for row in search.comparison if not row.entrant.baseline]
    return {formula: one.identity for formula, one in simplify_formulas(search, formulas).items() if one.identity}


def describe_p_values(rows: Sequence[Row], judgement: Judgement | None) -> list[str]:
    """Say what the p-values of a comparison are; nothing where it has none."""
    test = "two-sided paired t-test over the same training seeds"
    if judgement is None:
        reference = next((row.entrant.label for row in rows if row.entrant.baseline and row.reference is None), None)
        tested = any(row.p_value is not None for row in rows)
        return [f"p: against {reference}, {test}, not corrected"] if reference and tested else []
    if judgement.found is None or not judgement.p_values:
        return []
    corrected = f", Holm-corrected for {judgement.baselines} baselines" if judgement.baselines > 1 else ""
    return [f"p: {judgement.found.entrant.label} against this baseline, {test}{corrected}"]


def _p_value(row: Row, judgement: Judgement | None) -> float | None:
    return row.p_value if judgement is None else judgement.p_values.get(row.entrant.label)


def count_seeds(row: Row) -> str:
    """Return the number of training seeds of a row, and of those without a score."""
    return f"{len(row.scores)}" + (f" ({row.failed} without a score)" if row.failed else "")
