"""`top`, `show` and `export`: commands that read a run, also while it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from autoloss.cli.application import app, console_of, print_json
from autoloss.cli.arguments import Also, AsJson, Directory, individual_of, listed
from autoloss.errors import RequestError


@app.command()
def top(
    directory: Directory,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 10,
    also: Also = None,
    as_json: AsJson = False,
) -> None:
    """Show the best losses of a run; also while it runs."""
    from autoloss.report.leaderboard import top_rows, top_table
    from autoloss.run.results import opened

    found = opened(directory)
    if as_json:
        print_json(top_rows(found, count))
    else:
        console_of().print(top_table(found, count, None if also is None else listed(also)))


@app.command()
def show(
    directory: Directory, individual: Annotated[int, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Show one loss of a run: where it came from, why it passed, what its training came to."""
    from autoloss.report.leaderboard import print_show, show_values
    from autoloss.run.results import opened, training_command

    found = opened(directory)
    values = show_values(found, individual_of(found, individual))
    if as_json:
        print_json(values)
    else:
        print_show(console_of(), values, training_command(found, values["formula"]))


@app.command()
def export(
    directory: Directory,
    individual: Annotated[int | None, typer.Argument(metavar="[ID]", help="The winner when left out.")] = None,
    to: Annotated[str, typer.Option(help="python, latex or json.")] = "python",
    out: Annotated[Path | None, typer.Option(help="A file to write; the terminal when left out.")] = None,
) -> None:
    """Write a found loss as a Python file that needs torch alone, as LaTeX, or as JSON."""
    from autoloss.report.take_home import exported

    text = exported(directory, individual, to)
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise RequestError(f"{out} exists already, and nothing is overwritten. Name another file with --out.")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror}. Name another file with --out.") from None
    console_of(to_stderr=True).print(f"Wrote {out}", markup=False, soft_wrap=True)
