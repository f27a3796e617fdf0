"""Runs and comparisons as tables for a terminal."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from autoloss.comparison.entrant import Row
from autoloss.comparison.judgement import Judgement
from autoloss.comparison.ladder import Ladder
from autoloss.errors import unknown
from autoloss.numbers import figure
from autoloss.report.readable import simplify_formulas
from autoloss.report.shares import trains_short, write_share
from autoloss.report.summary import ListedLoss, p_value_of
from autoloss.report.verdict import MEANING, describe_p_values
from autoloss.run.results import NOTHING_GAINED, Search

LOOKED_AT = 20
"""Number of best and of latest losses in which the names of a run's further metrics are looked up."""
TEXTS = frozenset({"formula", "loss"})
"""Text columns of tables of losses; the others are numbers."""


def table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Sequence[Any]],
    caption: str | None = None,
    left: Container[str] | None = None,
) -> Table:
    """Build a table.

    Args:
        left: Columns of text, aligned on the left; all if omitted.
    """
    made = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for header in columns:
        made.add_column(header, justify="left" if left is None or header in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else str(cell) for cell in row))
    return made


def top_table(
    search: Search,
    rows: Sequence[ListedLoss],
    running: Sequence[Mapping[str, Any]] = (),
    also: Sequence[str] | None = None,
) -> Table:
    """Return a table of losses of a run, one row each.

    Args:
        running: Id and loss of the candidates in training, which are listed below the table.
        also: Further metrics to show; by default those that the run was started with.
    """
    further, shares = columns_of(also, search), trains_short(search)
    confirmed = any(row.found.confirmed is not None for row in rows)
    best = search.best.id if confirmed else None
    columns = {
        "id": lambda row: f"{'★ ' if row.found.id == best else ''}{row.found.id}",
        "score": lambda row: figure(row.found.score),
        **({"trained": lambda row: write_share(row.found.fidelity)} if shares else {}),
        **({"new training seeds": lambda row: figure(row.found.confirmed)} if confirmed else {}),
        **{metric: lambda row, metric=metric: figure(row.found.also.get(metric)) for metric in further},
        "size": lambda row: row.found.size,
        "age": lambda row: row.age,
        "found": lambda row: f"{row.times_found}×",
        "formula": _write_formula,
    }
    notes = [
        "score: metric of the proxy training on the valid split",
        "size: number of operators",
        "age: number of later losses",
        "found: number of times found, with twins and copies",
        "formula: simplified, and below it the original; √x is sign(x)·√|x|, likewise log; 1/x is 1/(x + 10⁻¹²)",
        *["=: has the same gradient on this task"] * any(row.formula.identity for row in rows),
        *["trained: share of the schedule; only scores at the same share are comparable"] * shares,
        *["new training seeds: mean score of further trainings · ★ best on these"] * confirmed,
    ]
    lines = [" · ".join(notes), *(f"in training: #{one['id']}  {one['loss']}" for one in running)]
    return table(
        f"Best losses in {search.directory}, of {len(search.reader.settled)} in all",
        columns,
        [[write(row) for write in columns.values()] for row in rows],
        "\n".join([*lines, describe_never_trained(search), *search.settings.changes]),
        TEXTS,
    )


def ladder_table(ladder: Ladder) -> Table:
    """Return a table of what was tried with the standard loss, the best first."""
    rows = [
        (rung.entrant.label, write_share(rung.fidelity), figure(rung.mean), figure(rung.deviation), len(rung.scores))
        for rung in ladder.rungs
    ]
    notes = (
        "score: mean of the metric on the valid split · ±: standard deviation over the training seeds\n"
        "trained: share of the schedule; only scores at the same share are comparable · "
        f"{ladder.spent:g} whole trainings in all"
    )
    columns = ("loss and training", "trained", "score", "±", "seeds")
    return table("With the standard loss", columns, rows, notes, {"loss and training"})


def _write_formula(row: ListedLoss) -> str:
    identity = f"  = {row.formula.identity}" if row.formula.identity else ""
    return f"{row.formula.line}{identity}\n{row.formula.found}"


def columns_of(also: Sequence[str] | None, search: Search) -> Sequence[str]:
    """Return the further metrics that tables of a run show: `also`, or those that the run was started with."""
    if also is None:
        return search.settings.also
    # All trainings of a run measure the same metrics; only a resumed run may have added some.
    measured = search.reader.further_metrics(LOOKED_AT) or search.settings.also
    for metric in also:
        if metric not in measured:
            raise unknown(f"further metric of the run in {search.directory}", metric, measured)
    return also


def describe_never_trained(search: Search) -> str:
    """Describe how many losses passed the rejection protocol, but diverged or hardly improved the network."""
    found = search.never_trained
    ways = [f"{found.diverged} diverged"]
    if found.standing is not None:
        ways.append(
            f"{found.standing} improved the untrained network's score of {figure(found.untrained)} by less than "
            f"{NOTHING_GAINED:.0%} of the best loss's improvement"
        )
    lost = found.diverged + (found.standing or 0)
    return f"Of {found.trained} trained losses, {lost} did not learn: {', '.join(ways)}."


def comparison_table(
    title: str,
    rows: Sequence[Row],
    also: Sequence[str] = (),
    judgement: Judgement | None = None,
    identities: Mapping[str, str] | None = None,
) -> Table:
    """Return a table of entrants, the best first.

    Args:
        also: Further metrics whose means are shown.
        judgement: Its p-values replace those against the first baseline.
        identities: Formula → the loss with the same gradient on the task, such as `cross entropy × 2`.
    """
    notes = [MEANING] * any(row.interval is not None for row in rows) + describe_p_values(rows, judgement)
    notes += [f"{row.entrant.label}: {reason.splitlines()[0]}" for row in rows for reason in row.reasons]
    return table(
        title,
        ["loss", "mean", "± 95 %", "p", *also, "seeds", "formula"],
        (
            (
                row.entrant.label,
                figure(row.mean),
                figure(row.interval),
                write_p_value(row, judgement),
                *(figure(row.also.get(metric)) for metric in also),
                count_seeds(row),
                "\n= ".join(filter(None, [row.entrant.loss, (identities or {}).get(row.entrant.loss)])),
            )
            for row in rows
        ),
        "\n".join(notes) or None,
        TEXTS,
    )


def comparison_of(
    search: Search, title: str, also: Sequence[str] | None = None, rows: Sequence[Row] | None = None
) -> Table:
    """Return the comparison that judges a run, or another one, as a table."""
    judgement = search.judgement if rows is None else None
    rows = search.comparison if rows is None else rows
    formulas = [row.entrant.loss for row in rows if not row.entrant.baseline]
    identities = {formula: one.identity for formula, one in simplify_formulas(search, formulas).items()}
    return comparison_table(title, rows, columns_of(also, search), judgement, identities)


def write_p_value(row: Row, judgement: Judgement | None) -> str:
    """Write the p-value of a row; empty if it has none."""
    p_value = p_value_of(row, judgement)
    return "" if p_value is None else f"{p_value:.2g}"


def count_seeds(row: Row) -> str:
    """Write the number of training seeds of a row, and of those without a score."""
    return f"{len(row.scores)}" + (f" ({row.failed} without a score)" if row.failed else "")
