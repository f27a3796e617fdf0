"""The application of all commands, and its output: tables for people, one JSON document for programs."""

from __future__ import annotations

import difflib
import itertools
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from autoloss.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM."""


class Interrupted(Exception):
    """An interrupted command; its text includes the notes of the interrupt, such as the command that resumes the run."""

    def __init__(self, interruption: KeyboardInterrupt) -> None:
        self.code = 143 if isinstance(interruption, Terminated) else 130
        super().__init__(" ".join(["Interrupted.", *getattr(interruption, "__notes__", [NOTHING_KEPT])]))


NOTHING_KEPT = "Nothing is kept; start the same command again."
"""What an interrupt is told where nothing else is."""


class Unread(Exception):
    """The reader of the output, such as `head`, has closed the pipe."""


class _Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        # Typer would turn an interrupt and a closed pipe into a bare exit.
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interruption:
            raise Interrupted(interruption) from None
        except BrokenPipeError:
            raise Unread from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, words = super().resolve_command(ctx, args)
        parameters = command.params if command else []
        known = {text for parameter in parameters for text in (*parameter.opts, *parameter.secondary_opts)}
        for word in itertools.takewhile(lambda word: word != "--", words):
            option = word.partition("=")[0]
            # Typer's own message does not say that the options of a task are given in another way.
            if "--set" in known and option.startswith("--") and option not in (*known, "--help"):
                closest = difflib.get_close_matches(option[2:], [text.strip("-") for text in known], n=1, cutoff=0.8)
                meant = f"Did you mean --{closest[0]}? " if closest else ""
                setting = f"--set {option[2:].replace('-', '_')}=VALUE"
                raise RequestError(
                    f"There is no option {option}. {meant}Options of a task and settings are given as {setting}."
                )
        return name, command, words


app = typer.Typer(
    name="autoloss",
    help="Search loss functions from scratch, for any PyTorch task and any evaluation metric.",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _print_version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        from autoloss import __version__

        print(__version__)
        raise typer.Exit


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM like Ctrl-C, with its own exit code."""
    raise Terminated


@contextmanager
def resuming(context: typer.Context) -> Iterator[None]:
    """Print how to continue an interrupted command that keeps its trainings."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        if not hasattr(interruption, "__notes__"):
            interruption.add_note(f"Trainings that ended are kept. Go on with: autoloss {shlex.join(context.obj)}")
        raise


def is_first_process() -> bool:
    """Return True if this process prints; of those that torchrun starts, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def console_of(to_stderr: bool = False) -> Console:
    """Return the console for results."""
    from autoloss.report.terminal import console

    return console(to_stderr=to_stderr, quiet=not is_first_process())


def print_lines(*shown: object, to_stderr: bool = False) -> None:
    """Print tables, and lines of text without breaking them; only the terminal may wrap them."""
    for each in shown:
        console_of(to_stderr).print(each, soft_wrap=isinstance(each, str))


def say(text: str) -> None:
    """Print a line to stderr, apart from the results."""
    print_lines(text, to_stderr=True)


def answer(as_json: bool, value: Any, *shown: object) -> None:
    """Print a value as one JSON document, or what people are shown of it, as `print_lines` does."""
    if as_json:
        print(json.dumps(value, indent=2, allow_nan=False))
    else:
        print_lines(*shown)
