"""The console of the commands: it prints names, formulas and paths literally.

Square brackets are no markup, `:name:` is no emoji, and control characters are printed visibly instead of being sent: the name of a
column cannot clear the screen, nor can a formula of a database change the terminal's title.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from autoloss.errors import mask_unprintable

PIPED_WIDTH = 200
"""Characters of a line where the output is no terminal, so that formulas are not broken."""


def console(*, to_stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that prints control characters visibly."""
    made = _made(to_stderr, quiet, None)
    return made if made.is_terminal else _made(to_stderr, quiet, PIPED_WIDTH)


def _made(to_stderr: bool, quiet: bool, width: int | None) -> Console:
    made = Console(stderr=to_stderr, quiet=quiet, width=width, highlight=False, markup=False, emoji=False)
    made.push_render_hook(_Visible())
    return made


@final
class _Visible(RenderHook):
    """Sees everything that is printed, before it is; a live panel comes past it and is wrapped where it is made."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Harmless(each) for each in renderables]


@final
class Harmless:
    """Something printable, with the control characters of its text made visible; the console's own orders stay."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(mask_unprintable(segment.text), segment.style)
