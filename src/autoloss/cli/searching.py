"""`search` and `resume`: commands that drive a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import autoloss.cli.arguments as arguments
from autoloss.cli.application import app, console_of, print_json, print_lines, resuming
from autoloss.cli.output import outlast_output

if TYPE_CHECKING:
    from autoloss.run.results import Search


@app.command()
@outlast_output
def search(
    task: arguments.TaskName,
    metric: arguments.Metric = None,
    data: arguments.Data = None,
    evaluations: Annotated[int | None, typer.Option(help="Budget: number of proxy trainings (500).")] = None,
    seed: Annotated[int, typer.Option(help="Seed of all random draws.")] = 0,
    workers: arguments.Workers = 2,
    ray: arguments.Ray = None,
    ray_insecure: arguments.RayInsecure = False,
    inject: arguments.Inject = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs by default.")] = None,
    start: Annotated[
        list[str] | None,
        typer.Option(
            help="Losses to start from: a file with one per line; or, separated by commas, formulas, names of the zoo, "
            "zoo or shelf (all formulas there that fit), folders of runs (the ten best of each); none for no known loss."
        ),
    ] = None,
    frozen: arguments.Frozen = None,
    size_limit: Annotated[int | None, typer.Option(help="Maximum number of operators per tree (64).")] = None,
    without: Annotated[str | None, typer.Option(help="Operators to exclude, separated by commas.")] = None,
    operators: arguments.Operators = None,
    also: arguments.Also = None,
    recipe: Annotated[
        str | None, typer.Option(help="Initial settings: default, or paper (those of the paper, with 500 trainings).")
    ] = None,
    final: arguments.Final = True,
    assignments: arguments.Assignments = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Search a loss for a task."""
    settings, options = arguments.parse_assignments(assignments, data)
    settings |= {} if size_limit is None else {"evolution.maximum_operators": str(size_limit)}
    settings |= {} if without is None else {"space.without": ",".join(arguments.parse_list(without))}
    arguments.check_task_name(task, metric)
    from autoloss.store.lock import refuse_owned

    if out is not None:
        refuse_owned(out)
    from autoloss.evaluation.machines import Machines
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    machines = Machines(workers=workers, ray=ray, ray_insecure=ray_insecure, inject=inject)
    with Status(console_of(to_stderr=as_json)) as status:
        found = runs.search(
            task,
            metric=metric,
            evaluations=evaluations,
            seed=seed,
            workers=machines,
            directory=out,
            settings=settings,
            options=options,
            start=start or (),
            frozen=arguments.parse_frozen(frozen or ()),
            operators=operators or (),
            also=arguments.parse_list(also or ""),
            recipe=recipe,
            final=final,
            observe=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


@app.command()
@outlast_output
def resume(
    context: typer.Context,
    directory: arguments.Directory,
    evaluations: Annotated[str | None, typer.Option(help="A new budget, or +N for N more trainings.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Number of worker processes; that of the run if omitted.")
    ] = None,
    ray: arguments.Ray = None,
    ray_insecure: arguments.RayInsecure = False,
    inject: arguments.Inject = None,
    final: Annotated[
        bool | None,
        typer.Option("--final/--no-final", help="Confirm and compare the best losses; as in the search if omitted."),
    ] = None,
    trust: arguments.Trust = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Resume a run where it stopped."""
    from autoloss.store.lock import refuse_owned

    refuse_owned(directory)
    with resuming(context):
        from autoloss.evaluation.machines import Machines
        from autoloss.report.status import Status
        from autoloss.run import search as runs
        from autoloss.run.results import open_run

        budget = arguments.parse_budget(evaluations, directory)
        count = open_run(directory).settings.workers if workers is None else workers
        machines = Machines(workers=count, ray=ray, ray_insecure=ray_insecure, inject=inject)
        with Status(console_of(to_stderr=as_json)) as status:
            found = runs.resume(
                directory,
                evaluations=budget,
                workers=machines,
                final=final,
                trust=trust,
                observe=status.observe,
                say=status.say,
            )
    _conclude(found, as_json)


def _conclude(found: Search, as_json: bool) -> None:
    """Print the result of a run: what was found, the judgement, and last what is recommended and the commands to go on."""
    from autoloss.report.summary import summarize

    summary = summarize(found)
    if as_json:
        print_json(summary.to_dict())
        return
    from autoloss.report.leaderboard import comparison_of, top_table

    tables = [top_table(found, summary.top)]
    if found.comparison:
        tables.append(comparison_of(found, "On the test split, new training seeds"))
    for table in tables:
        console_of().print(table)
    print_lines(*summary.verdict.text, f"The search ended: {found.end}.", *map(str, summary.verdict.steps))
    advice, commands = found.recommendation, summary.commands
    print_lines(*([] if advice is None else ["", f"Recommended: {advice.describe()}"]))
    print_lines(*(f"{what.capitalize()}: {command}" for what, command in commands.items()))
