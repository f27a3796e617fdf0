"""`top`, `show`, `failures`, `report`, `watch`, `replay` and `export`: commands that read a run, also while it runs."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from autoloss.cli.application import app, console_of, print_json
from autoloss.cli.arguments import Also, AsJson, Directory, parse_list
from autoloss.errors import RequestError, RunError


@app.command()
def top(
    directory: Directory,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Number of losses.")] = 10,
    also: Also = None,
    by_size: Annotated[
        bool, typer.Option("--by-size", help="The best loss of each size that is better than all smaller ones.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the best losses of a run; also while it runs."""
    from autoloss.report.leaderboard import hall_rows, top_rows, top_table
    from autoloss.run.results import open_run

    found = open_run(directory)
    rows = hall_rows(found) if by_size else top_rows(found, count)
    if as_json:
        print_json(rows)
    else:
        console_of().print(top_table(found, rows, found.reader.running, None if also is None else parse_list(also)))


@app.command()
def show(
    directory: Directory, individual: Annotated[int, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Show one loss of a run: its lineage, its rejection test and its training."""
    from autoloss.report.individual import print_show, show_values
    from autoloss.run.results import open_run

    values = show_values(open_run(directory), individual)
    if as_json:
        print_json(values)
    else:
        print_show(console_of(), values)


@app.command()
def failures(directory: Directory, as_json: AsJson = False) -> None:
    """Show trainings without a score and rejected losses, grouped by reason."""
    from autoloss.report.failures import failures as found
    from autoloss.report.failures import print_failures
    from autoloss.store.read import read_once

    values = found(read_once(directory, thorough=True))
    if as_json:
        print_json(values)
    else:
        print_failures(console_of(), values, directory)


@app.command()
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="The folder of a run; of several, to compare them.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The file to write; DIR/report.html when left out, comparison.html for several runs."),
    ] = None,
    scenes: Annotated[
        bool, typer.Option("--scenes", help="Add test images with predictions; trains two networks.")
    ] = False,
) -> None:
    """Write the results of a run and their uncertainty as one HTML file, or several runs beside each other; also while they run."""
    from autoloss.report.page.comparing import write_comparison
    from autoloss.report.page.writing import write_report

    if scenes and len(directories) > 1:
        raise RequestError("Scenes are drawn for one run; name one, or leave --scenes out.")
    console = console_of(to_stderr=True)
    say = partial(console.print, soft_wrap=True)
    if len(directories) > 1:
        path, damaged = write_comparison(directories, out)
    else:
        path, damaged = write_report(directories[0], out, scenes=scenes, say=say)
    for problem in damaged:
        say(f"Left out: {problem}")
    say(f"Wrote {path}")


@app.command()
def watch(
    directory: Directory,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (8642); 0 picks a free one.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1: this machine only).")] = None,
) -> None:
    """Serve the report as a page that follows a search while it runs; Ctrl-C ends it."""
    from autoloss.report.page.serving import HOST, PORT, Live, Server

    with Server(Live(directory), HOST if host is None else host, PORT if port is None else port) as server:
        print(f"{directory} is at {server.address} (Ctrl-C stops the server)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@app.command()
def replay(
    directory: Directory,
    full: Annotated[bool, typer.Option("--full", help="Test all attempts again, also the rejected ones.")] = False,
    as_json: AsJson = False,
) -> None:
    """Derive every candidate of a run again from the recorded scores; nothing is trained."""
    from autoloss.run.replay import replay as replayed

    found = replayed(directory, full=full)
    if as_json:
        print_json(found.values())
    if found.difference is not None:
        raise RunError(f"The run in {directory} is not what its configuration and seed give: {found.difference}.")
    if not as_json:
        console_of().print(found.summary, soft_wrap=True)


@app.command()
def export(
    directory: Directory,
    individual: Annotated[int | None, typer.Argument(metavar="ID", help="The best loss found when left out.")] = None,
    to: Annotated[str, typer.Option(help="python, latex or json.")] = "python",
    out: Annotated[Path | None, typer.Option(help="A file to write; the terminal when left out.")] = None,
) -> None:
    """Write a found loss as a Python file that needs torch alone, as LaTeX, or as JSON."""
    from autoloss.report.take_home import export_loss

    say = partial(console_of(to_stderr=True).print, soft_wrap=True)
    text = export_loss(directory, individual, to, say)
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise RequestError(f"{out} exists already, and nothing is overwritten. Name another file with --out.")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror}. Name another file with --out.") from None
    say(f"Wrote {out}")
