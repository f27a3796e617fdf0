"""The whole search: ask → screen → reject → look up → train → tell → record (Section 3.2)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from autoloss.errors import RunError
from autoloss.run.progress import Progress
from autoloss.search.ahead import Ahead
from autoloss.search.chance import derive_seed
from autoloss.search.history import History
from autoloss.search.jobs import RejectionBatch, Train
from autoloss.search.records import Candidate, Origin, Outcome, State
from autoloss.store.crash_points import crash_point
from autoloss.tasks.task import Training
from autoloss.workers.dispatch import CompletedJob, Dispatcher

POLL_SECONDS = 0.5
"""How often the observer is told when nothing ends."""
HOPELESS_FAILED, HOPELESS = 3, 50
"""So many losses that fail, or come to no score at all, first of all end the run: the task is at fault."""

Observe = Callable[[Progress], None]


class Record(Protocol):
    """What a pipeline writes to: a store."""

    def add_child(self, child: Candidate, rejected: dict[tuple[str, int], tuple[str, str]]) -> None: ...

    def add_outcome(self, child: int, outcome: Outcome) -> None: ...


def run(history: History, record: Record, dispatcher: Dispatcher, observe: Observe | None = None) -> str:
    """Go on with a history until it ends; returns why it ended.

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

    def run(self, observe: Observe) -> str:
        for child in self.history.running:
            self.train(self.history.candidates[child])
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
            self._give_up_when_hopeless()

    def progress(self) -> Progress:
        return Progress.of(self.history, self.dispatcher, time.monotonic() - self.started, self.charged_before)

    def end(self) -> str | None:
        """Return why the search is over; what still trains is waited for, except past the wall-clock limit."""
        limit = self.history.configuration.limits.wall_clock_seconds
        if limit is not None and time.monotonic() - self.started > limit:
            self.dispatcher.abandon()
            return f"the wall-clock limit of {limit:g} s is reached"
        return None if self.history.running else self.history.end

    def resolve(self) -> None:
        """Settle as many of the next children as their tested attempts allow."""
        history = self.history
        while history.can_begin and self.ahead.advance():
            draft = history.begin()
            child = history.complete()
            crash_point("child-complete")
            self.record.add_child(child, draft.rejected_formulas)
            self.ahead.forget(child.id)
            if child.origin is Origin.TRAINED:
                self.train(child)
                crash_point("training-queued")

    def train(self, child: Candidate) -> None:
        # Common random numbers: every training of a search has the same seed, which leaves less noise in selection.
        seed = derive_seed(self.history.configuration.seed, "training")
        self.tickets[self.dispatcher.submit(Train(child.loss, Training(seed=seed)))] = child.id

    def feed(self) -> None:
        """Give idle workers something to test."""
        if self.history.end is not None:
            return
        for eager in (False, True):
            while self.dispatcher.idle and (batch := self.ahead.next_batch(eager)) is not None:
                self.dispatcher.submit(batch)

    def receive(self, done: CompletedJob) -> None:
        if isinstance(done.job, RejectionBatch):
            assert isinstance(done.result, list)
            self.ahead.receive(done.job, done.result, done.seconds)
            return
        assert isinstance(done.result, Outcome)
        child = self.tickets.pop(done.ticket)
        crash_point("outcome-received")
        self.record.add_outcome(child, done.result)
        self.history.tell(child, done.result)
        crash_point("outcome-told")

    def _give_up_when_hopeless(self) -> None:
        # Only children before the first unfinished one are looked at: which of the others is done is a matter of timing.
        outcomes = self.history.first_outcomes(HOPELESS)
        first = outcomes[:HOPELESS_FAILED]
        failed = len(first) == HOPELESS_FAILED and all(outcome.state is State.FAILED for outcome in first)
        scoreless = len(outcomes) == HOPELESS and all(outcome.score is None for outcome in outcomes)
        if failed or scoreless:
            judged = first if failed else outcomes
            raise RunError(
                f"None of the first {len(judged)} losses came to a score. The last of them {judged[-1].state.value}: "
                f"{judged[-1].reason}. Look at what `autoloss check` says of the task."
            )
