"""The live status of a search and of what follows it: one panel in a terminal, one plain line per minute elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from autoloss.comparison.retrain import Pace
from autoloss.numbers import duration, figure
from autoloss.report.shares import write_score
from autoloss.report.terminal import Harmless
from autoloss.run.progress import Finale, Progress

BAR_WIDTH = 40
LINE_SECONDS = 60.0
"""How often a line is written where the output is no terminal."""


class Status:
    """Shows progress; a context manager that restores the terminal.

    Args:
        line_seconds: How often a line is written where the output is no terminal.
    """

    def __init__(self, console: Console, line_seconds: float = LINE_SECONDS) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True) if console.is_terminal else None
        self._line_seconds = line_seconds
        self._next_line = time.monotonic() + line_seconds
        self._last: Progress | Finale | Pace | None = None
        self._written = ""

    def __enter__(self) -> Status:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
        self._conclude()

    def observe(self, progress: Progress | Finale | Pace) -> None:
        self._last = progress
        if self._live:
            # A line written by `say` has stopped it.
            self._live.start()
            self._live.update(Harmless(panel(progress)))
        elif time.monotonic() >= self._next_line:
            self._next_line += self._line_seconds
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
        """Write a line unless it says nothing new."""
        if text != self._written:
            self._console.print(text, soft_wrap=True)
            self._written = text


def line(progress: Progress | Finale | Pace) -> str:
    """Write progress in one plain line."""
    if isinstance(progress, Pace):
        of = "" if progress.steps is None else f"/{progress.steps}"
        return f"{progress.label} · step {progress.step}{of} · loss {progress.loss:.4g}"
    if isinstance(progress, Finale):
        return f"confirming and comparing: {_count(progress)} · ETA {duration(progress.eta_seconds)}"
    parts = [
        f"trained {progress.trained:.4g} of {progress.budget}",
        _ended(progress),
        # Before the first score, this alone shows that something happens.
        f"best {_best(progress)}" if progress.best else f"{progress.sampled} losses drawn",
        f"ETA {duration(progress.eta_seconds)}",
    ]
    return " · ".join(filter(None, parts))


def panel(progress: Progress | Finale | Pace) -> Table:
    """Draw progress as a small grid."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    if isinstance(progress, Pace):
        grid.add_row("training", line(progress))
        return grid
    if isinstance(progress, Finale):
        grid.add_row("finale", ProgressBar(total=max(1, progress.expected), completed=progress.done, width=BAR_WIDTH))
        grid.add_row("done", _count(progress))
        grid.add_row("time", f"{duration(progress.seconds)} · ETA {duration(progress.eta_seconds)}")
        return grid
    bar = ProgressBar(total=progress.budget, completed=min(progress.trained, progress.budget), width=BAR_WIDTH)
    grid.add_row("search", bar)
    best = progress.best
    rows = {
        "trained": f"{progress.trained:.4g} of {progress.budget}{' training equivalents' * _mixes(progress)} · "
        + f"{_ended(progress)} · " * _mixes(progress)
        + f"{progress.running} running · {progress.per_minute:.1f} per minute",
        "losses": f"{progress.sampled} drawn · {progress.simulated} tested · {progress.passed} accepted · "
        f"{progress.reused} known from equal ones",
        "rejected": _rejected(progress),
        "best": f"{_best(progress)} · #{best.id}, {progress.best_age} losses ago" if best else "none yet",
        "formula": best.formula if best else "",
        "workers": f"{progress.busy} of {progress.workers} busy",
        "time": f"{duration(progress.seconds)} · ETA {duration(progress.eta_seconds)}",
    }
    for name, text in rows.items():
        grid.add_row(name, text)
    return grid


def _count(progress: Finale) -> str:
    return f"{progress.done} of about {progress.expected} trainings"


def _mixes(progress: Progress) -> bool:
    return len(progress.trainings) > 1


def _ended(progress: Progress) -> str:
    """Say how many short and whole trainings ended; nothing where all are whole."""
    if not _mixes(progress):
        return ""
    whole = progress.trainings.get(1.0, 0)
    return f"{sum(progress.trainings.values()) - whole} short, {whole} whole"


def _best(progress: Progress) -> str:
    assert progress.best is not None
    score, fidelity = progress.best.score, progress.best.outcome.fidelity
    return write_score(score, fidelity) if _mixes(progress) else figure(score)


def _rejected(progress: Progress) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in progress.rejected.items()) or "none"
