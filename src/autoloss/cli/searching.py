"""`search` and `resume`: commands that drive a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoloss.cli.application import app, console_of, print_json
from autoloss.cli.arguments import (
    Also,
    AsJson,
    Assignments,
    Data,
    Directory,
    Final,
    Frozen,
    Inject,
    Metric,
    Operators,
    Ray,
    RayInsecure,
    TaskName,
    Workers,
    check_task_name,
    parse_assignments,
    parse_budget,
    parse_frozen,
    parse_list,
)
from autoloss.cli.interruption import interruptible

if TYPE_CHECKING:
    from autoloss.run.results import Search


@app.command()
def search(
    task: TaskName,
    metric: Metric = None,
    data: Data = None,
    evaluations: Annotated[int | None, typer.Option(help="Budget: number of proxy trainings (500).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    workers: Workers = 2,
    ray: Ray = None,
    ray_insecure: RayInsecure = False,
    inject: Inject = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs by default.")] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            help="Losses to start from: a file with one on each line; or, with commas, formulas, names of the zoo, "
            "zoo (all its formulas that fit), folders of runs (their ten best)."
        ),
    ] = None,
    frozen: Frozen = None,
    size_limit: Annotated[int | None, typer.Option(help="Maximum number of operators of a tree (64).")] = None,
    without: Annotated[str | None, typer.Option(help="Operators to switch off, with commas.")] = None,
    operators: Operators = None,
    also: Also = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Settings to begin with: default, or paper, those of the paper for 500 trainings."),
    ] = None,
    final: Final = True,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Search a loss for a task."""
    settings, options = parse_assignments(assignments, data)
    settings |= {} if size_limit is None else {"evolution.maximum_operators": str(size_limit)}
    check_task_name(task, metric)
    from autoloss.store.lock import refuse_owned

    if out is not None:
        refuse_owned(out)
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    console = console_of(to_stderr=as_json)
    with interruptible(), Status(console) as status:
        found = runs.search(
            task,
            metric=metric,
            evaluations=evaluations,
            seed=seed,
            workers=workers,
            ray=ray,
            ray_insecure=ray_insecure,
            inject=inject,
            directory=out,
            settings=settings,
            options=options,
            start=start or (),
            frozen=parse_frozen(frozen or ()),
            without=parse_list(without or ""),
            operators=operators or (),
            also=parse_list(also or ""),
            recipe=recipe,
            final=final,
            observe=status.observe,
            observe_finale=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


@app.command()
def resume(
    directory: Directory,
    evaluations: Annotated[str | None, typer.Option(help="A new budget, or +N for N more trainings.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Worker processes; as many as the run had when left out.")
    ] = None,
    ray: Ray = None,
    ray_insecure: RayInsecure = False,
    inject: Inject = None,
    final: Annotated[
        bool | None,
        typer.Option(
            "--final/--no-final", help="Confirm and compare the best at the end; as the run was started when left out."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Resume a run where it stopped."""
    from autoloss.store.lock import refuse_owned

    refuse_owned(directory)
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    budget = parse_budget(evaluations, directory)
    console = console_of(to_stderr=as_json)
    with interruptible(), Status(console) as status:
        found = runs.resume(
            directory,
            evaluations=budget,
            workers=workers,
            ray=ray,
            ray_insecure=ray_insecure,
            inject=inject,
            final=final,
            observe=status.observe,
            observe_finale=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


def _conclude(found: Search, as_json: bool) -> None:
    """Print the result of a run, the judgement first."""
    from autoloss.report.leaderboard import (
        columns_of,
        comparison_rows,
        comparison_table,
        identify_compared,
        top_rows,
        top_table,
    )
    from autoloss.report.verdict import identify_best, next_steps, sentences

    if as_json:
        print_json(
            {
                "verdict": found.judgement.to_dict(),
                "identity": identify_best(found),
                "directory": str(found.directory),
                "end": found.end,
                "top": top_rows(found, 10),
                "never_trained": asdict(found.never_trained),
                "comparison": comparison_rows(found.comparison, found.judgement),
            }
        )
        return
    console = console_of()
    for sentence in sentences(found):
        console.print(sentence, soft_wrap=True)
    console.print(f"The search ended: {found.end}.", soft_wrap=True)
    console.print(top_table(found, top_rows(found, 10)))
    if found.comparison:
        title, further = "On the test split, new training seeds", columns_of(None, found)
        known = identify_compared(found)
        console.print(comparison_table(title, found.comparison, further, found.judgement, known))
    for step in next_steps(found):
        console.print(str(step), soft_wrap=True)
