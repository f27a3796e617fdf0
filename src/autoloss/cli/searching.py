"""`search` and `resume`: commands that drive a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import autoloss.cli.arguments as arguments
from autoloss.cli.application import answer, app, console_of, resuming
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
    prior: Annotated[
        str | None,
        typer.Option(
            help="Ranking of losses learned from earlier tasks: default, a file of `autoloss learn`, or none."
        ),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Initial settings: default, or paper (those of the paper, with 500 trainings).")
    ] = None,
    final: arguments.Final = True,
    assignments: arguments.Assignments = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Search a loss for a task."""
    given = arguments.read(locals())
    given["directory"] = given.pop("out")
    off = None if given.pop("without") is None else tuple(arguments.parse_list(without or ""))
    limits = {"evolution.maximum_operators": given.pop("size_limit"), "space.without": off}
    given["settings"] |= {name: value for name, value in limits.items() if value is not None}
    from autoloss.store.store import refuse_owned

    if out is not None:
        refuse_owned(out)
    from autoloss.run import search as runs

    _drive(runs.search, given, as_json)


@app.command()
@outlast_output
def resume(
    context: typer.Context,
    directory: arguments.Directory,
    evaluations: Annotated[str | None, typer.Option(help="A new budget, or +N for N more trainings.")] = None,
    data: Annotated[str | None, typer.Option(help="Where the data set is now, if it has moved.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Number of worker processes; that of the run if omitted.")
    ] = None,
    ray: arguments.Ray = None,
    ray_insecure: arguments.RayInsecure = False,
    inject: arguments.Inject = None,
    final: Annotated[
        bool | None,
        typer.Option("--final/--no-final", help="Confirm and compare the best losses; as last time if omitted."),
    ] = None,
    trust: arguments.Trust = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Resume a run where it stopped."""
    given = arguments.read(locals())
    from autoloss.store.store import refuse_owned

    refuse_owned(directory)
    with resuming(context):
        from autoloss.run import search as runs
        from autoloss.run.results import open_run

        budget = arguments.parse_budget(evaluations, directory)
        count = open_run(directory).settings.workers if workers is None else workers
        _drive(runs.resume, {**given, "evaluations": budget, "workers": count}, as_json)


def _drive(run: Callable[..., Search], given: dict[str, Any], as_json: bool) -> None:
    """Search or resume with a progress display, and print the result."""
    from autoloss.evaluation.dispatch import Machines
    from autoloss.report.status import Status

    machines = Machines(**{name: given.pop(name) for name in ("workers", "ray", "ray_insecure", "inject")})
    with Status(console_of(to_stderr=as_json)) as status:
        found = run(**given, workers=machines, observe=status.observe, say=status.say)
    try:
        _conclude(found, as_json)
    except KeyboardInterrupt as interruption:
        interruption.add_note(f"The run is finished and saved. See it with: autoloss report {found.directory}")
        raise


@app.command()
def learn(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders of runs.")],
    out: Annotated[Path, typer.Option(help="The file to write, for --prior of search.")],
    prior: Annotated[str, typer.Option(help="The prior to add to: default, a file, or none.")] = "default",
    as_json: arguments.AsJson = False,
) -> None:
    """Learn from runs which losses later searches try first."""
    from autoloss.run import learning

    learnt = learning.learn(runs, out, prior=prior)
    known = "task or run" if learnt.sources == 1 else "tasks and runs"
    shown = [f"{run}: {losses} losses." for run, losses in learnt.losses.items()]
    shown += [f"{learnt.path} is learned from {learnt.sources} {known} (digest {learnt.digest}): --prior {learnt.path}"]
    answer(as_json, {**asdict(learnt), "path": str(learnt.path)}, *shown)


def _conclude(found: Search, as_json: bool) -> None:
    """Print the result of a run: what was found, the judgement, and last what is recommended and the commands to go on."""
    from autoloss.report.leaderboard import comparison_of, top_table
    from autoloss.report.summary import summarize

    summary = summarize(found)
    shown: list[object] = [top_table(found, summary.top)]
    if found.comparison:
        shown.append(comparison_of(found, "On the test split, new training seeds"))
    shown += [*summary.verdict.text, f"The search ended: {found.end}.", *map(str, summary.verdict.steps), ""]
    shown += [*summary.advice, *(f"{what.capitalize()}: {how}" for what, how in summary.commands.items())]
    answer(as_json, summary.to_dict(), *shown)
