"""The whole search: ask → screen → reject → look up → train → tell → record (Section 3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from autoloss.errors import RunError
from autoloss.evaluation.dispatch import CompletedJob, Dispatcher
from autoloss.proposing.ahead import Ahead
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.history import History
from autoloss.proposing.jobs import RejectionBatch, Train
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.run.progress import Progress
from autoloss.store.crash_points import crash_point
from autoloss.training.training import Training

POLL_SECONDS = 0.5
"""How often the observer is told when nothing ends."""
FAILED_FIRST, SCORELESS_FIRST = 3, 50
"""A run ends when so many of its first candidates fail, or have no score: the task is at fault."""


class Record(Protocol):
    """What a search writes to: a store."""

    def add_candidate(self, candidate: Candidate, rejected: dict[tuple[str, int], tuple[str, str]]) -> None: ...

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None) -> None: ...


def run_loop(
    history: History,
    record: Record,
    dispatcher: Dispatcher,
    observe: Callable[[Progress], None] | None = None,
) -> str:
    """Continue a history until it ends.

    Args:
        observe: Called with a `Progress` about twice a second.

    Returns:
        Why it ended.

    Raises:
        RunError: Nothing passes the rejection protocol, or the task's training only ever raises.
    """
    search = _Search(history, record, dispatcher)
    return search.run(observe or (lambda progress: None))


class _Search:
    """One driver's state beside the history: what is under way."""

    def __init__(self, history: History, record: Record, dispatcher: Dispatcher) -> None:
        self.history = history
        self.record = record
        self.dispatcher = dispatcher
        self.ahead = Ahead(history)
        self.tickets: dict[int, int] = {}
        self.started = time.monotonic()
        self.charged_before = history.charged

    def run(self, observe: Callable[[Progress], None]) -> str:
        for number in self.history.running:
            self.train(self.history.candidates[number])
        while True:
            self.resolve()
            end = self.end()
            if end is not None:
                observe(self.progress())
                return end
            self.feed()
            observe(self.progress())
            for done in self.dispatcher.wait(POLL_SECONDS):
                self.receive(done)
            self._stop_if_nothing_scores()

    def progress(self) -> Progress:
        return Progress.of(self.history, self.dispatcher, time.monotonic() - self.started, self.charged_before)

    def end(self) -> str | None:
        """Return why the search is over; what still trains is waited for, except past the wall-clock limit."""
        limit = self.history.configuration.limits.wall_clock_seconds
        if limit is not None and time.monotonic() - self.started > limit:
            self.dispatcher.queue.abandon()
            return f"the wall-clock limit of {limit:g} s is reached"
        return None if self.history.running else self.history.end

    def resolve(self) -> None:
        """Complete as many of the next candidates as their tested attempts allow."""
        history = self.history
        while history.can_begin and self.ahead.advance():
            draft = history.begin()
            candidate = history.complete()
            crash_point("child-complete")
            self.record.add_candidate(candidate, draft.rejected_formulas)
            self.ahead.forget(candidate.id)
            if candidate.origin is Origin.TRAINED:
                self.train(candidate)
                crash_point("training-queued")

    def train(self, candidate: Candidate) -> None:
        # Common random numbers: every training of a search has the same seed, which leaves less noise in selection.
        configuration = self.history.configuration
        training = Training(
            seed=derive_seed(configuration.seed, "training"),
            fidelity=candidate.fidelity,
            learning_rate=configuration.search.learning_rate,
        )
        self.tickets[self.dispatcher.submit(Train(candidate.loss, training))] = candidate.id

    def feed(self) -> None:
        """Give idle workers something to test."""
        if self.history.end is not None:
            return
        for eager in (False, True):
            while self.dispatcher.queue.idle and (batch := self.ahead.next_batch(eager)) is not None:
                self.dispatcher.submit(batch)

    def receive(self, done: CompletedJob) -> None:
        if isinstance(done.job, RejectionBatch):
            assert isinstance(done.result, list)
            self.ahead.receive(done.job, done.result, done.seconds)
            return
        assert isinstance(done.result, Outcome)
        number = self.tickets.pop(done.ticket)
        crash_point("outcome-received")
        outcome = replace(done.result, fidelity=done.job.training.fidelity)
        self.record.add_training(done.job.loss, done.job.training, outcome, number)
        self.history.tell(number, outcome)
        crash_point("outcome-told")

    def _stop_if_nothing_scores(self) -> None:
        # Only candidates before the first unfinished one count: which of the others have an outcome depends on timing.
        outcomes = self.history.first_outcomes(SCORELESS_FIRST)
        first = outcomes[:FAILED_FIRST]
        failed = len(first) == FAILED_FIRST and all(outcome.state is State.FAILED for outcome in first)
        scoreless = len(outcomes) == SCORELESS_FIRST and all(outcome.score is None for outcome in outcomes)
        if failed or scoreless:
            judged = first if failed else outcomes
            raise RunError(
                f"None of the first {len(judged)} candidates has a score. The last of them {judged[-1].state.value}: "
                f"{judged[-1].reason}. Look at what `autoloss check` says of the task."
            )
