"""The whole search (Section 3.2): the history plans, decides and records; workers test and train; the store keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from autoloss.errors import RunError
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.proposing.history import History
from autoloss.proposing.machine import Machine
from autoloss.proposing.records import CompletedJob, NewCandidate, NewTraining, State
from autoloss.run.progress import Progress
from autoloss.store.store import Store

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
            _append(store, record)
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


def _append(store: Store, record: NewCandidate | NewTraining) -> None:
    match record:
        case NewCandidate():
            store.add_candidate(record.candidate, dict(record.rejected))
        case NewTraining():
            store.add_training(record.loss, record.training, record.outcome, record.candidate)


def _find_end(history: History, dispatcher: Dispatcher, began: float) -> str | None:
    """Return why the search is over; running trainings are waited for, except past the wall-clock limit."""
    limit = history.configuration.limits.wall_clock_seconds
    if limit is not None and time.monotonic() - began > limit:
        dispatcher.queue.abandon()
        return f"the wall-clock limit of {limit:g} s is reached"
    return None if history.running else history.end


def _stop_if_nothing_scores(history: History) -> None:
    # Only candidates before the first unfinished one count: which of the others have an outcome depends on timing.
    outcomes = history.first_outcomes(SCORELESS_FIRST)
    first = outcomes[:FAILED_FIRST]
    failed = len(first) == FAILED_FIRST and all(outcome.state is State.FAILED for outcome in first)
    scoreless = len(outcomes) == SCORELESS_FIRST and all(outcome.score is None for outcome in outcomes)
    if failed or scoreless:
        judged = first if failed else outcomes
        raise RunError(
            f"None of the first {len(judged)} candidates has a score. The last of them {judged[-1].state.value}: "
            f"{judged[-1].reason}. Run `autoloss check` on the task."
        )
