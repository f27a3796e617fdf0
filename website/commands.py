"""The page of commands, from the application itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from autoloss.cli import app
from website.documented import cell, code, table

INTRODUCTION = """\
# Commands

The output of `autoloss COMMAND --help`. TASK is a name of [the catalogue](tasks.md) or `file.py:name`, DIR the folder of a run. A
loss is a formula, [a name](losses.md) or a file.

Exit codes: 0 done, 1 the run failed, 2 the request was wrong, 3 another process owns the run, 130 or 143 interrupted with
everything finished saved.
"""


def page() -> str:
    """Return the page."""
    group: Any = typer.main.get_command(app)
    with typer.Context(group, info_name="autoloss") as context:
        parts = [part for name, command in group.commands.items() for part in _command(name, command, context)]
    return "\n\n".join([INTRODUCTION, *parts]) + "\n"


def _command(name: str, command: Any, above: typer.Context) -> Iterator[str]:
    with typer.Context(command, info_name=name, parent=above) as context:
        yield f"## {name}"
        yield command.help.strip()
        # Some releases of typer put braces around what is required.
        usage = " ".join(command.get_usage(context).split()).removeprefix("Usage: ")
        yield f"```text\n{usage.translate({ord('{'): None, ord('}'): None})}\n```"
        rows = [_row(*record) for parameter in command.params if (record := parameter.get_help_record(context))]
        if rows:
            yield table(["argument", "meaning", "default"], rows)


def _row(names: str, text: str) -> list[str]:
    """Split what the help says into what a thing is called, what it means and its default."""
    text, bracket, note = text.rpartition("  [") if text.endswith("]") else (text, "", "")
    notes = dict(part.partition(": ")[::2] for part in note.removesuffix("]").split("; ")) if bracket else {}
    return [code(names), cell(text), code(notes.get("default", ""))]
