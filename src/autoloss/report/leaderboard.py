"""Runs and comparisons as tables for a terminal, and as plain values for `--json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from autoloss.errors import unknown
from autoloss.run.evidence import Row, by_mean
from autoloss.run.records import Individual, Origin
from autoloss.run.results import Search


def table(title: str, columns: Mapping[str, str], rows: Iterable[Sequence[Any]], caption: str | None = None) -> Table:
    """Build a table.

    Args:
        columns: Header → justification: left or right.
    """
    made = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", caption_justify="left")
    for header, justify in columns.items():
        made.add_column(header, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        made.add_row(*("" if cell is None else escape(str(cell)) for cell in row))
    return made


def figure(value: float | None) -> str:
    """Write a metric with four decimals, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.4f}"


def top_rows(search: Search, count: int) -> list[dict[str, Any]]:
    """Return the best losses of a run as plain values."""
    found_again = _times_found(search.history)
    by_id = {individual.id: individual for individual in search.history}
    last = len(search.history) - 1
    return [
        {
            "id": found.id,
            "score": found.score,
            "confirmed": found.confirmed,
            "size": found.size,
            "age": last - found.id,
            "found": found_again[found.id],
            "formula": found.formula,
            "also": dict(by_id[found.id].outcome.also),
        }
        for found in search.top(count)
    ]


def top_table(search: Search, count: int, also: Sequence[str] | None = None) -> Table:
    """Show the best losses of a run.

    Args:
        also: Further metrics that get a column; those that the run was started with when left out.
    """
    rows = top_rows(search, count)
    further = columns_of(also, search)
    confirmed = any(row["confirmed"] is not None for row in rows)
    winner = search.best.id if confirmed else None
    columns = {"id": "right", "score": "right", **({"fresh seeds": "right"} if confirmed else {})}
    return table(
        f"Best of {len(search.history)} losses in {search.directory}",
        {**columns, **dict.fromkeys(further, "right"), "size": "right", "found": "right", "formula": "left"},
        (
            (
                f"{'★ ' if row['id'] == winner else ''}{row['id']}",
                figure(row["score"]),
                *([figure(row["confirmed"])] if confirmed else []),
                *(figure(row["also"].get(metric)) for metric in further),
                row["size"],
                f"{row['found']}×",
                row["formula"],
            )
            for row in rows
        ),
        "score: metric of the proxy training on the valid split · size: operators · found: how often, with twins and copies"
        + (" · ★ best on fresh seeds" if confirmed else ""),
    )


def columns_of(also: Sequence[str] | None, search: Search) -> Sequence[str]:
    """Return the further metrics that tables of a run show.

    Raises:
        RequestError: None of its trainings measured such a metric.
    """
    if also is None:
        return json.loads(search.settings.get("also", "[]"))
    measured = dict.fromkeys(name for found in search.history for name in found.outcome.also)
    for metric in also:
        if metric not in measured and measured:
            raise unknown(f"further metric of the run in {search.directory}", metric, measured)
    return also


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
            "also": row.further,
        }
        for row in rows
    ]


def comparison_table(title: str, rows: Sequence[Row], also: Sequence[str] = ()) -> Table:
    """Show entrants beside each other, the best first.

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
                *(figure(row.further.get(metric)) for metric in also),
                _seeds(row),
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


def _seeds(row: Row) -> str:
    failed = len(row.scores) - len(row.finite)
    return f"{len(row.scores)}" + (f" ({failed} without a score)" if failed else "")


def verdict(rows: Sequence[Row], winner: str) -> str:
    """Say in a sentence whether the winner beat the best baseline, and how sure that is.

    Args:
        winner: Label of the loss that was best on fresh seeds of the valid split; the best *on test* would flatter.
    """
    found = [row for row in by_mean(rows) if not row.entrant.baseline and row.mean is not None]
    rivals = [row for row in by_mean(rows) if row.entrant.baseline and row.mean is not None]
    if not found:
        return "No found loss trained on every seed."
    best = next((row for row in found if row.entrant.label == winner), found[0])
    if not rivals:
        return f"{best.entrant.label} reaches {figure(best.mean)}; the task names no standard loss to compare with."
    rival = rivals[0]
    difference = (best.mean or 0.0) - (rival.mean or 0.0)
    spread = max(best.deviation or 0.0, rival.deviation or 0.0)
    sure = "more than" if abs(difference) > spread else "within"
    numbers = f"{figure(best.mean)} against {figure(rival.mean)} of {rival.entrant.label}"
    seeds = f"{sure} the spread over {len(best.scores)} seeds"
    if difference > 0:
        return f"The winner {best.entrant.label} beats the best baseline on test: {numbers}, {seeds}."
    if difference == 0:
        return f"The winner {best.entrant.label} equals the best baseline on test: {numbers}."
    return f"The winner {best.entrant.label} does not beat the best baseline on test: {numbers}, {seeds}."


def show_values(search: Search, individual: Individual) -> dict[str, Any]:
    """Return all that is known of one individual as plain values."""
    child, outcome = individual.child, individual.outcome
    return {
        "id": child.id,
        "formula": child.loss,
        "state": outcome.state.value,
        "score": outcome.score,
        "also": dict(outcome.also),
        "reason": outcome.reason,
        "step": outcome.step,
        "origin": child.origin.value,
        "source": child.source,
        "kinds": dict(child.kinds),
        "attempts": dict(child.attempts),
        "g": {branch: scores[0] for branch, scores in child.scores.items()},
        "gains": {branch: list(scores[1:]) for branch, scores in child.scores.items()},
        "counts": dict(child.counts),
        "lineage": lineage(search.history, individual),
        "curve": [list(point) for point in outcome.curve],
    }


def lineage(history: Sequence[Individual], individual: Individual) -> list[dict[str, Any]]:
    """Return where a loss came from, itself first, a random tree last."""
    steps = []
    child = individual.child
    while True:
        steps.append(
            {
                "id": child.id,
                "kinds": dict(child.kinds),
                "formula": child.loss,
                "score": history[child.id].outcome.score,
            }
        )
        if child.parent is None or set(child.kinds.values()) == {"fresh"}:
            return steps
        child = history[child.parent].child


def print_show(console: Console, values: Mapping[str, Any], command: str) -> None:
    """Print one individual: formula, outcome, why it passed, where it came from, how to train it again."""
    console.print(f"[bold]#{values['id']}[/bold]  {escape(values['formula'])}")
    also = "  ".join(f"{name} {figure(value)}" for name, value in values["also"].items())
    console.print(f"{values['state']}  score {figure(values['score'])}  {also}".rstrip())
    if values["reason"]:
        console.print(f"reason: {escape(values['reason'])}")
    if values["origin"] != Origin.TRAINED.value:
        console.print(f"{values['origin']}: shares the outcome of #{values['source']}")
    for branch, score in values["g"].items():
        gains = " ".join(f"{gain:+.3f}" for gain in values["gains"][branch])
        console.print(f"passed on {branch}: g {score:.3f}, gains per sample {gains}")
    console.print(
        table(
            "Lineage",
            {"id": "right", "how": "left", "score": "right", "formula": "left"},
            (
                (step["id"], ", ".join(step["kinds"].values()), figure(step["score"]), step["formula"])
                for step in values["lineage"]
            ),
        )
    )
    console.print(f"Train it again: {escape(command)}", soft_wrap=True)


def _times_found(history: Sequence[Individual]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for individual in history:
        root = individual
        while root.child.source is not None:
            root = history[root.child.source]
        counts[root.id] = counts.get(root.id, 0) + 1
    return counts
