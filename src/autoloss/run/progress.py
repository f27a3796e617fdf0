"""The state of a search while it runs, in one line for people, and that line in a notebook."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from autoloss.evaluation.dispatch import Dispatcher
from autoloss.numbers import duration, figure
from autoloss.proposing.history import History
from autoloss.proposing.records import Individual
from autoloss.rejection.reasons import Reason


@dataclass(frozen=True, slots=True)
class Finale:
    """The state of the trainings that follow a search.

    Args:
        done: Trainings that ended, of about `expected`; `done_here` of them in this process.
        seconds: Since this process began with them.
    """

    done: int
    expected: int
    done_here: int
    seconds: float

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until all have ended; None before the first."""
        return self.seconds / self.done_here * (self.expected - self.done) if self.done_here else None

    def describe(self) -> str:
        """Describe it in a line."""
        done = f"confirming and comparing: {self.done} of about {self.expected} trainings"
        return f"{done} · {describe_rest(self.eta_seconds)}"


def describe_rest(seconds: float | None) -> str:
    """Say how much time is left.

    >>> describe_rest(90)
    'about 1 min 30 s left'
    """
    return "time left: not known yet" if seconds is None else f"about {duration(seconds)} left"


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a running search.

    Args:
        trained: Trainings charged to the budget so far; one at a share of the schedule counts that share.
        trained_here: Likewise, by this process.
        trainings: Share of the schedule → trainings that ended, the smallest share first; a search's rungs are all there.
        running: Trainings under way.
        sampled: Trees drawn, of which `simulated` went through the protocol and `passed` passed it.
        reused: Verdicts that were known already.
        rejected: Reason in words → number of rejected trees.
        best: The individual with the highest score, or None.
        best_age: Number of candidates since the best one.
        workers: Their number, of which `busy` have a job.
        seconds: Since this process began.
        training_seconds: Of all trainings of this process together, without the tests between them.
        final: Training equivalents that follow the search, at most.
        standard: Best mean score of whole trainings with the standard loss; None where it is not known.
    """

    trained: float
    budget: int
    trained_here: float
    trainings: Mapping[float, int]
    running: int
    sampled: int
    simulated: int
    passed: int
    reused: int
    rejected: Mapping[str, int]
    best: Individual | None
    best_age: int
    workers: int
    busy: int
    seconds: float
    training_seconds: float = 0.0
    final: float = 0.0
    standard: float | None = None

    @classmethod
    def of(
        cls,
        history: History,
        dispatcher: Dispatcher,
        seconds: float,
        trained_before: float = 0.0,
        training_seconds: float = 0.0,
    ) -> Progress:
        """Return the progress of a history that goes on."""
        draft = history.draft
        counts = history.totals + (draft.counts if draft else Counter())
        best = history.best
        return cls(
            trained=history.charged,
            budget=history.configuration.evaluations,
            trained_here=history.charged - trained_before,
            trainings={rung: history.trainings[rung] for rung in history.configuration.search.rungs},
            running=len(history.running),
            sampled=counts["sampled"],
            simulated=counts["simulated"],
            passed=counts["passed"],
            reused=counts["reused"],
            rejected={reason.value: counts[reason.name] for reason in Reason if counts[reason.name]},
            best=best,
            best_age=len(history.candidates) - 1 - best.id if best else 0,
            workers=dispatcher.queue.slots,
            busy=dispatcher.queue.slots - dispatcher.queue.idle,
            seconds=seconds,
            training_seconds=training_seconds,
        )

    @property
    def per_minute(self) -> float:
        """Training equivalents per minute since this process began."""
        return 60 * self.trained_here / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until the budget is spent and what follows has ended; None before the first training has ended.

        What follows has no tests of new losses.
        """
        if not self.trained_here:
            return None
        left = max(0.0, self.budget - self.trained)
        after = self.final * self.training_seconds / max(1, self.workers)
        return (left * self.seconds + after) / self.trained_here

    def describe(self) -> str:
        """Describe it in a line: how far, the best so far against the standard loss, and the time left in all."""
        if self.best is None:
            best = f"{self.sampled} losses drawn"
        elif self.best.outcome.fidelity < 1:
            best = f"best {figure(self.best.score)} at {self.best.outcome.fidelity:.3g} of the schedule"
        else:
            best = f"best {figure(self.best.score)}"
        standard = [] if self.standard is None else [f"standard loss {figure(self.standard)}"]
        parts = [f"{self.trained:.4g} of {self.budget} trainings", best, *standard, describe_rest(self.eta_seconds)]
        return " · ".join(parts)


ObserveSearch = Callable[[Progress | Finale], None]


def count_finale(observe: ObserveSearch) -> Callable[[int, int], None]:
    """Return a callback for the number of trainings of the finale that are done."""
    began, before = time.monotonic(), None

    def count(done: int, expected: int) -> None:
        nonlocal before
        before = done if before is None else before
        observe(Finale(done, expected, done - before, time.monotonic() - began))

    return count


class NotebookLine:
    """One line of a notebook that follows a search; what is said stands above it."""

    def __init__(self, display: Any) -> None:
        self._display, self._said, self._handle = display, list[str](), None

    @classmethod
    def find(cls) -> NotebookLine | None:
        """Return one in a notebook, else None."""
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        return cls(import_module("IPython.display")) if shell is not None and hasattr(shell, "kernel") else None

    def say(self, text: str) -> None:
        """Show a sentence above the line."""
        self._said.append(text)
        self._show("")

    def observe(self, progress: Progress | Finale) -> None:
        """Show the progress in the line."""
        self._show(progress.describe())

    def _show(self, last: str) -> None:
        shown = self._display.Markdown("  \n".join([*map(_escape, self._said), f"**{last}**" if last else ""]))
        if self._handle is None:
            self._handle = self._display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _escape(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text)
