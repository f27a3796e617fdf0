"""The application that commands join, and what is printed: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    name="autoloss",
    help="Search loss functions from scratch, for any PyTorch task and any evaluation metric.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        from autoloss import __version__

        print(__version__)
        raise typer.Exit


def is_first_process() -> bool:
    """Say whether this process prints; of those that torchrun starts, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def console_of(to_stderr: bool = False) -> Console:
    from autoloss.report.terminal import console

    return console(to_stderr=to_stderr, quiet=not is_first_process())


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))
