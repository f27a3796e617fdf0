"""The console of the commands, which prints names, formulas and paths literally.

Square brackets are not markup, `:name:` is not an emoji, and control characters are made visible: the name of a column cannot clear
the screen, nor can a formula in a database change the terminal's title.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook
from rich.segment import Segment

from autoloss.errors import mask_unprintable

PIPED_WIDTH = 200
"""Characters per line if the output is not a terminal, so that formulas are not broken."""


def console(*, to_stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console that prints control characters visibly."""
    made = _Console(stderr=to_stderr, quiet=quiet, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = PIPED_WIDTH
    made.push_render_hook(_Visible())
    return made


@final
class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the process without a word.
        raise BrokenPipeError


@final
class _Visible(RenderHook):
    """Masks control characters in everything that is printed; live panels bypass it and are wrapped by `Status`."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Harmless(each) for each in renderables]


@final
class Harmless:
    """A renderable with the control characters of its text made visible; control codes of the console itself are kept."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(mask_unprintable(segment.text), segment.style)
