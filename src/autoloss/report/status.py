"""The progress of a search and of the trainings that follow it: a live panel in a terminal, one plain line per minute elsewhere."""

from __future__ import annotations

import time

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from autoloss.comparison.retrain import Pace
from autoloss.numbers import duration, figure
from autoloss.report.shares import write_score
from autoloss.report.terminal import Harmless
from autoloss.run.loop import Finale, Progress, describe_rest

Shown = Progress | Finale | Pace
BAR_WIDTH = 40
LINE_SECONDS = 60.0
"""Interval between lines if the output is not a terminal."""


class Status:
    """Progress display; a context manager that restores the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._next_line = time.monotonic() + LINE_SECONDS
        self._last: Shown | None = None
        self._written = ""

    def __enter__(self) -> Status:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
        self._conclude()

    def observe(self, progress: Shown) -> None:
        """Show progress: in the panel, or as a line if the interval has passed."""
        self._last = progress
        if self._live:
            # `say` stops the panel.
            self._live.start()
            self._live.update(Harmless(panel(progress)))
        elif time.monotonic() >= self._next_line:
            self._next_line += LINE_SECONDS
            self._write(line(progress))

    def say(self, text: str) -> None:
        """Write a line in place of the panel."""
        if self._live:
            self._live.stop()
        self._conclude()
        self._console.print(text, soft_wrap=True)

    def _conclude(self) -> None:
        """Write the last progress, once."""
        if self._last is not None:
            self._write(line(self._last))
            self._last = None

    def _write(self, text: str) -> None:
        """Write a line unless it repeats the last one."""
        if text != self._written:
            self._console.print(text, soft_wrap=True)
            self._written = text


def line(progress: Shown) -> str:
    """Return progress as one plain line."""
    if not isinstance(progress, Pace):
        return progress.describe()
    of = "" if progress.steps is None else f"/{progress.steps}"
    return f"{progress.label} · step {progress.step}{of} · loss {progress.loss:.4g}"


def panel(progress: Shown) -> Table:
    """Return progress as a small grid."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, cell in _list_rows(progress).items():
        grid.add_row(name, cell)
    return grid


def _list_rows(progress: Shown) -> dict[str, RenderableType]:
    if isinstance(progress, Pace):
        return {"training": line(progress)}
    time = f"{duration(progress.seconds)} · {describe_rest(progress.eta_seconds)}"
    if isinstance(progress, Finale):
        bar = ProgressBar(total=max(1, progress.expected), completed=progress.done, width=BAR_WIDTH)
        return {progress.what: bar, "done": f"{progress.done} of about {progress.expected} trainings", "time": time}
    best, short_too = "none yet", len(progress.trainings) > 1
    if progress.best is not None:
        score, fidelity = progress.best.score, progress.best.outcome.fidelity
        written = write_score(score, fidelity) if short_too else figure(score)
        best = f"{written} · #{progress.best.id}, {progress.best_age} losses ago"
    unit, whole = " training equivalents" if short_too else "", progress.trainings.get(1.0, 0)
    trained = [
        f"{progress.trained:.4g} of {progress.budget}{unit}",
        f"{sum(progress.trainings.values()) - whole} short, {whole} whole" if short_too else "",
        f"{progress.running} running",
        f"{progress.per_minute:.1f} per minute",
    ]
    return {
        "search": ProgressBar(total=progress.budget, completed=min(progress.trained, progress.budget), width=BAR_WIDTH),
        "trained": " · ".join(filter(None, trained)),
        "losses": f"{progress.sampled} drawn · {progress.simulated} tested · {progress.passed} accepted · "
        f"{progress.reused} reused from equal losses",
        "rejected": ", ".join(f"{count} {reason}" for reason, count in progress.rejected.items()) or "none",
        "best": best,
        "formula": progress.best.formula if progress.best else "",
        "workers": f"{progress.busy} of {progress.workers} busy",
        "time": time,
    }
