"""The whole search while it runs: its state in one line for people and in a notebook, and its loop (Section 3.2).

In the loop the history plans, decides and records; workers test and train; the store keeps.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from statistics import median_low
from typing import Any

from autoloss.errors import RunError
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.numbers import duration, figure
from autoloss.proposing.history import History
from autoloss.proposing.machine import Machine
from autoloss.proposing.records import Candidate, CompletedJob, Individual, Outcome, State, Train
from autoloss.rejection.reasons import Reason
from autoloss.store.store import Store

TEST_SECONDS = 0.25
"""Of a processor, to find a candidate that passes the rejection protocol: 0.05 to 0.9 s were measured."""
CONFIRMING = "confirming and comparing"
USUAL_WEIGHT = 3.0
"""Training equivalents of a search that weigh as much as the usual time of one."""


@dataclass(frozen=True, slots=True)
class Finale:
    """The state of the trainings before or after a search.

    Args:
        done: Trainings that ended, of about `expected`.
        seconds: Since this process began with them.
        eta_seconds: Estimated seconds until all have ended; None where nothing was trained yet.
    """

    done: int
    expected: int
    seconds: float
    eta_seconds: float | None
    what: str = CONFIRMING

    def describe(self) -> str:
        """Describe it in a line."""
        done = f"{self.what}: {self.done} of about {self.expected} trainings"
        return f"{done} · {describe_rest(self.eta_seconds)}"


@dataclass(slots=True)
class Forecast:
    """The time that a run still takes.

    Args:
        workers: Their number; 1 where the search's own process trains.
        after: Whole trainings that take as long as what follows the search.
        trained: (Share of the schedule, seconds) of trainings that ended before the search.
        told: Seconds, at the last call.
    """

    workers: int
    after: float = 0.0
    trained: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    told: float | None = None

    def expect(self, after: float, trainings: Mapping[Train, Outcome]) -> None:
        """Say what follows the search, as far as is known now, and which trainings were run before it."""
        self.after = after
        scored = [(job.training, outcome.seconds) for job, outcome in trainings.items() if outcome.score is not None]
        self.trained = [(training.fidelity * training.length, seconds) for training, seconds in scored]

    def tell(
        self, left: float, share: float, latest: Sequence[Outcome] = (), spent: float = 0.0, seconds: float = 0.0
    ) -> float | None:
        """Return the seconds of the rest of a search and of what follows; None before the first training.

        Args:
            left: Training equivalents of the search, about half of which go into candidates' first trainings.
            share: Of the schedule, of these.
            latest: Trainings of the search.
            spent: Training equivalents of the search in this process, which took `seconds`, the tests of candidates included.
        """
        # Whole ones before a search are measured on resamples, as those after it are.
        seen = self.trained or [(one.fidelity, one.seconds / one.count) for one in latest if one.score is not None]
        if not seen:
            return None
        # The first training of a process takes much longer than the others.
        longest = min(1.0, max(part for part, _ in seen))
        whole = median_low(seconds / part for part, seconds in seen if part >= longest)
        tests = 1 / (2 * share) if share < 1 else 1.0
        # On some tasks one tree in a thousand passes: what the search has needed so far soon counts for more.
        expected = (whole + tests * TEST_SECONDS) / self.workers
        pace = (USUAL_WEIGHT * expected + seconds) / (USUAL_WEIGHT + spent)
        self.told = left * pace + self.after * whole / self.workers
        return self.told

    def tell_trainings(self, left: float, done: float, seconds: float) -> float | None:
        """Return the seconds of `left` trainings after `done` of them took `seconds`; the last estimate while few are done."""
        if done > 0 and (self.told is None or done > 2 * self.workers):
            self.told = left * seconds / done
        return self.told


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
        eta_seconds: Estimated seconds until the budget is spent and what follows has ended; None before the first training.
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
    eta_seconds: float | None = None
    standard: float | None = None

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


def count_finale(
    observe: Callable[[Finale], None], forecast: Forecast, what: str = CONFIRMING
) -> Callable[[int, int], None]:
    """Return a callback for the number of trainings of the finale that are done."""
    began, before = time.monotonic(), None

    def count(done: int, expected: int) -> None:
        nonlocal before
        before = done if before is None else before
        seconds = time.monotonic() - began
        left = forecast.tell_trainings(expected - done, done - before, seconds)
        if expected:
            observe(Finale(done, expected, seconds, left, what))

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
        said = [re.sub(r"([\\`*_\[\]<>#|])", r"\\\1", text) for text in self._said]
        shown = self._display.Markdown("  \n".join([*said, f"**{last}**" if last else ""]))
        if self._handle is None:
            self._handle = self._display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


POLL_SECONDS = 0.5
"""Interval at which the observer is called when nothing ends."""
FAILED_FIRST, SCORELESS_FIRST = 3, 50
"""A run ends when this many of its first candidates fail or have no score, because the task itself must be wrong."""


def run_loop(
    history: History, store: Store, dispatcher: Dispatcher, observe: Callable[[Progress], None] | None = None
) -> str:
    """Continue a history until it ends.

    Args:
        observe: Called with a `Progress` about twice a second.

    Returns:
        Why it ended.
    """
    machine, began, charged = Machine(history), time.monotonic(), history.charged
    completed: Sequence[CompletedJob] = ()
    while True:
        for record in machine.receive(completed):
            match record:
                case Candidate() as candidate, rejected:
                    store.add_candidate(candidate, rejected)
                case Train() as job, outcome:
                    store.add_training(job.loss, job.training, outcome, job.candidate)
        if completed:
            _stop_if_nothing_scores(history)
        end = _find_end(history, dispatcher, began)
        if end is None:
            for job in machine.next_jobs(dispatcher.queue.idle):
                dispatcher.submit(job)
        if observe is not None:
            observe(Progress.of(history, dispatcher, time.monotonic() - began, charged))
        if end is not None:
            return end
        completed = dispatcher.wait(POLL_SECONDS)


def _find_end(history: History, dispatcher: Dispatcher, began: float) -> str | None:
    """Return why the search is over; running trainings are waited for, except past the wall-clock limit."""
    limit = history.configuration.limits.wall_clock_seconds
    if limit is not None and time.monotonic() - began > limit:
        dispatcher.queue.abandon()
        return f"the wall-clock limit of {limit:g} s is reached"
    return None if history.running else history.end


def _stop_if_nothing_scores(history: History) -> None:
    # Only candidates before the first unfinished one count: which of the others have an outcome depends on timing.
    outcomes = [one.outcome for one in history.finished(SCORELESS_FIRST)]
    first = outcomes[:FAILED_FIRST]
    failed = len(first) == FAILED_FIRST and all(outcome.state is State.FAILED for outcome in first)
    scoreless = len(outcomes) == SCORELESS_FIRST and all(outcome.score is None for outcome in outcomes)
    if failed or scoreless:
        judged = first if failed else outcomes
        raise RunError(
            f"None of the first {len(judged)} candidates has a score. The last of them {judged[-1].state.value}: "
            f"{judged[-1].reason.rstrip('.')}. Run `autoloss check` on the task."
        )
