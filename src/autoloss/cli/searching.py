"""`search` and `resume`: commands that drive a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autoloss.cli.application import app, console_of, print_json
from autoloss.cli.arguments import (
    AsJson,
    Assignments,
    Data,
    Directory,
    Final,
    Inject,
    Metric,
    Ray,
    RayInsecure,
    TaskName,
    Workers,
    assigned,
    budget_of,
    refuse_early,
)
from autoloss.cli.interruption import stoppable

if TYPE_CHECKING:
    from autoloss.run.results import Search


@app.command()
def search(
    task: TaskName,
    metric: Metric = None,
    data: Data = None,
    evaluations: Annotated[int | None, typer.Option(help="Trainings the search may spend (500).")] = None,
    seed: Annotated[int, typer.Option(help="Decides everything that is drawn.")] = 0,
    workers: Workers = 2,
    ray: Ray = None,
    ray_insecure: RayInsecure = False,
    inject: Inject = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs by default.")] = None,
    final: Final = True,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Search a loss for a task."""
    settings, options = assigned(assignments, data)
    refuse_early(task, metric)
    from autoloss.run.lock import refuse_owned

    if out is not None:
        refuse_owned(out)
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    console = console_of(to_stderr=as_json)
    with stoppable(), Status(console) as status:
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
            final=final,
            observe=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


@app.command()
def resume(
    directory: Directory,
    evaluations: Annotated[str | None, typer.Option(help="A new budget, or +N for N more trainings.")] = None,
    workers: Workers = 2,
    ray: Ray = None,
    ray_insecure: RayInsecure = False,
    inject: Inject = None,
    final: Final = True,
    as_json: AsJson = False,
) -> None:
    """Go on with a run where it stopped."""
    from autoloss.run.lock import refuse_owned

    refuse_owned(directory)
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    budget = budget_of(evaluations, directory)
    console = console_of(to_stderr=as_json)
    with stoppable(), Status(console) as status:
        found = runs.resume(
            directory,
            evaluations=budget,
            workers=workers,
            ray=ray,
            ray_insecure=ray_insecure,
            inject=inject,
            final=final,
            observe=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


def _conclude(found: Search, as_json: bool) -> None:
    """Print what a run came to."""
    from autoloss.report.leaderboard import comparison_rows, comparison_table, top_rows, top_table
    from autoloss.report.verdict import verdict

    if as_json:
        comparison = comparison_rows(found.comparison)
        print_json(
            {
                "directory": str(found.directory),
                "end": found.end,
                "top": top_rows(found, 10),
                "never_trained": asdict(found.in_vain),
                "comparison": comparison,
            }
        )
        return
    console = console_of()
    console.print(f"The search ended: {found.end}.", soft_wrap=True)
    console.print(top_table(found, top_rows(found, 10)))
    if found.comparison:
        console.print(comparison_table("On the test split, fresh seeds", found.comparison))
        console.print(verdict(found.comparison, f"#{found.best.id}"), soft_wrap=True)
    if found.top(1):
        console.print(f"Winner: #{found.best.id}  {found.best.formula}", soft_wrap=True)
        console.print(f"Take it home: autoloss export {found.directory} {found.best.id}", soft_wrap=True)
