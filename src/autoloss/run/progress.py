"""The state of a search while it runs, for a progress display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from autoloss.evaluation.dispatch import Dispatcher
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

    @classmethod
    def of(cls, history: History, dispatcher: Dispatcher, seconds: float, trained_before: float = 0.0) -> Progress:
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
        )

    @property
    def per_minute(self) -> float:
        """Training equivalents per minute since this process began."""
        return 60 * self.trained_here / self.seconds if self.seconds > 0 else 0.0

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until the budget is spent; None before the first training has ended."""
        return 60 * (self.budget - self.trained) / self.per_minute if self.trained_here else None
