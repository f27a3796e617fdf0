"""`top`, `show`, `failures`, `report`, `watch`, `replay` and `export`: commands that read a run, also while it runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

import autoloss.cli.arguments as arguments
from autoloss.cli.application import answer, app, console_of, print_lines, say
from autoloss.errors import RequestError, RunError


@app.command()
def top(
    directory: arguments.Directory,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of losses.")] = 10,
    also: arguments.Also = None,
    by_size: Annotated[
        bool, typer.Option("--by-size", help="Show the best loss of each size that is better than all smaller ones.")
    ] = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Show the best losses of a run; also while it runs."""
    from autoloss.report.leaderboard import top_table
    from autoloss.report.summary import list_by_size, list_top
    from autoloss.run.results import open_run

    found = open_run(directory)
    rows = list_by_size(found) if by_size else list_top(found, count)
    further = None if also is None else arguments.parse_list(also)
    answer(as_json, [row.to_dict() for row in rows], top_table(found, rows, found.reader.running, further))


@app.command()
def show(
    directory: arguments.Directory,
    individual: Annotated[int, typer.Argument(metavar="ID", help="Number of a loss.")],
    as_json: arguments.AsJson = False,
) -> None:
    """Show one loss of a run: lineage, rejection test, training."""
    from autoloss.report.individual import print_show, show_values
    from autoloss.run.results import open_run

    values = show_values(open_run(directory), individual)
    answer(as_json, values)
    if not as_json:
        print_show(console_of(), values)


@app.command()
def failures(directory: arguments.Directory, as_json: arguments.AsJson = False) -> None:
    """Show why trainings failed and losses were rejected."""
    from autoloss.report.failures import group_failures, print_failures
    from autoloss.store.read import read_once

    values = group_failures(read_once(directory, thorough=True))
    answer(as_json, values)
    if not as_json:
        print_failures(console_of(), values, directory)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The folder of a run; several folders to compare runs.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; DIR/report.html by default, comparison.html for several runs."),
    ] = None,
    scenes: Annotated[
        bool, typer.Option("--scenes", help="Add test images with predictions; trains two networks.")
    ] = False,
    trust: arguments.Trust = False,
) -> None:
    """Write an HTML report of one or several runs. They may still run."""
    from autoloss.report.page.writing import write_comparison, write_report

    if len(directories) == 1:
        path, damaged = write_report(directories[0], out, scenes=scenes, trust=trust, say=say)
    elif scenes:
        raise RequestError("--scenes works for one run only. Name one run, or omit --scenes.")
    else:
        path, damaged = write_comparison(directories, out)
    print_lines(*(f"Left out: {problem}" for problem in damaged), f"Wrote {path}", to_stderr=True)


@app.command()
def watch(
    directory: arguments.Directory,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (8642); 0 picks a free one.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1: this machine only).")] = None,
) -> None:
    """Serve the report of a running search. Ctrl-C stops the server."""
    from autoloss.report.page.serving import HOST, PORT, Live, Server

    with Server(Live(directory), HOST if host is None else host, PORT if port is None else port) as server:
        print(f"{directory} is at {server.address} (Ctrl-C stops the server)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@app.command()
def replay(
    directory: arguments.Directory,
    full: Annotated[bool, typer.Option("--full", help="Test all attempts again, also the rejected ones.")] = False,
    operators: arguments.Vouched = None,
    trust: arguments.Trust = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Derive a run again from its recorded scores. Nothing is trained."""
    from autoloss.run import replay as replaying

    found = replaying.replay(directory, full=full, trust=trust or operators or ())
    answer(as_json, found.values(), *[found.summary] * (found.difference is None))
    if found.difference is not None:
        raise RunError(f"The run in {directory} differs from its configuration and seed: {found.difference}.")


@app.command()
def export(
    directory: arguments.Directory,
    individual: arguments.Individual = None,
    to: Annotated[str, typer.Option(help="Format: python, latex or json.")] = "python",
    library: Annotated[
        str | None, typer.Option("--for", help="torch, or an objective for lightgbm, xgboost or catboost.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write; the terminal if omitted.")] = None,
    operators: arguments.Vouched = None,
    trust: arguments.Trust = False,
) -> None:
    """Export a loss as Python, LaTeX or JSON. The Python file needs torch alone, or NumPy alone for boosting."""
    from autoloss.files import write_text
    from autoloss.report.take_home import export_loss

    text = export_loss(directory, individual, to, say, trust or operators or (), library)
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise RequestError(f"{out} exists already. Name another file with --out.")
    write_text(out, text)
    say(f"Wrote {out}")
