"""`tasks`, `zoo` and `check`: commands that need no run."""

from __future__ import annotations

from typing import Annotated

import typer

from autoloss.cli.application import app, console_of, print_json
from autoloss.cli.arguments import (
    AsJson,
    Assignments,
    Data,
    Metric,
    TaskName,
    Workers,
    check_task_name,
    parse_assignments,
)
from autoloss.space.loss_text import join_branches


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks that come with autoloss."""
    from autoloss.report.leaderboard import table
    from autoloss.tasks.catalogue import CATALOGUE

    if as_json:
        rows = [
            {"name": name, "metrics": list(row.metrics), "description": row.description}
            for name, row in CATALOGUE.items()
        ]
        print_json(rows)
        return
    rows = ((name, ", ".join(row.metrics), row.description) for name, row in CATALOGUE.items())
    console_of().print(
        table("Tasks", {"name": "left", "metrics (the default first)": "left", "description": "left"}, rows)
    )


@app.command()
def zoo(
    name: Annotated[str | None, typer.Argument(help="Show this loss in full.")] = None, as_json: AsJson = False
) -> None:
    """List the published losses and the baselines, or show one."""
    from autoloss.report.leaderboard import table
    from autoloss.zoo import ENTRIES, get_entry

    entries = [get_entry(name)] if name else list(ENTRIES.values())
    rows = [
        {
            "name": e.name,
            "formula": dict(e.formulas),
            "description": e.description,
            "source": e.source,
            "metric": e.metric,
        }
        for e in entries
    ]
    if name and rows[0]["formula"]:
        from autoloss.cli.formulas import shortened

        # One loss alone: the whole list needs no torch, which takes its time to load.
        rows[0]["simplified"] = {branch: term.unicode for branch, term in shortened(name).items()}
    if as_json:
        print_json(rows[0] if name else rows)
        return
    shown = [(row["name"], _formulas(row["formula"]), row["description"], row["source"]) for row in rows]
    if name:
        simplified = [_formulas(rows[0]["simplified"])] if "simplified" in rows[0] else []
        for text in [*shown[0][:2], *simplified, *shown[0][2:]]:
            console_of().print(text, soft_wrap=True)
    else:
        console_of().print(
            table("Zoo", {"name": "left", "formula": "left", "description": "left"}, (columns[:3] for columns in shown))
        )


def _formulas(formulas: dict[str, str]) -> str:
    return join_branches(formulas) if formulas else "(hand-written)"


@app.command()
def check(
    task: TaskName,
    metric: Metric = None,
    data: Data = None,
    evaluations: Annotated[int, typer.Option(min=1, help="Budget of the search whose time is estimated.")] = 500,
    workers: Workers = 2,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    rates: Annotated[
        bool | None,
        typer.Option(
            "--rates/--no-rates",
            help="Train the standard loss at a grid of learning rates, too [default: where it takes seconds].",
        ),
    ] = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Check a task before a search: its samples, its standard loss, and the expected time of a search."""
    settings, options = parse_assignments(assignments, data)
    check_task_name(task, metric)
    from autoloss.run.check import check as checked

    report = checked(
        task,
        metric=metric,
        options=options,
        settings=settings,
        evaluations=evaluations,
        workers=workers,
        seed=seed,
        rates=rates,
    )
    if as_json:
        print_json(report.values())
    else:
        for text in report.lines():
            console_of().print(text, soft_wrap=True)
