"""A search as an event machine: which jobs to run next, and the records that follow from their results.

Attempts are tested ahead of their turn. Workers may test in any order; a history takes the results in its own. What was tested in
vain costs time, never a decision.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from autoloss.proposing.equivalence import VerdictCache
from autoloss.proposing.history import History
from autoloss.proposing.proposer import Plan
from autoloss.proposing.records import (
    Attempt,
    Candidate,
    CompletedJob,
    Job,
    Outcome,
    RejectedFormulas,
    RejectionBatch,
    Train,
)

TARGET_SECONDS = 0.5
"""Intended duration of one batch: short enough that little is tested in vain, long enough to be worth sending."""
MIN_ATTEMPTS, MAX_ATTEMPTS = 16, 4096
"""Bounds of the number of attempts in one batch."""
VERDICTS_PER_BATCH = 4096
"""Number of the latest verdicts that are sent with a batch. A worker adds them to those it has; one that has just started lacks
the older ones and simulates some losses again, which costs time and decides nothing."""


@dataclass(slots=True)
class BranchProgress:
    """The attempts at one branch of one candidate: the results of those that were tested, and where the next batch begins.

    Args:
        gaps: (first, count) of attempts before `next` that no worker has been given, in order.
        running: Number of batches that workers are testing.
    """

    tested: dict[int, Attempt] = field(default_factory=dict[int, Attempt])
    gaps: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    next: int = 0
    running: int = 0

    def is_enough(self, passes: int, verdicts: VerdictCache) -> bool:
        """Return True if this many attempts pass, with a known verdict for every attempt before the last of them."""
        passing = sorted(
            number
            for number, one in self.tested.items()
            if one.key and verdicts.get(one.key, one.simulated and one.reason is None)
        )
        return len(passing) >= passes and not (self.gaps and self.gaps[0][0] < passing[passes - 1])


class Machine:
    """The jobs and the records of one search.

    A driver stores what `receive` yields, each record before it takes the next; runs what `next_jobs` yields; and hands the results
    to `receive` again, until `history.end` says why the search is over.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._trainings = deque(job for k in history.running for job in history.missing_trainings(k))
        self._progress: defaultdict[tuple[int, str], BranchProgress] = defaultdict(BranchProgress)
        self._seconds_per_attempt = 0.0

    def receive(
        self, completed: Iterable[CompletedJob] = ()
    ) -> Iterator[tuple[Train, Outcome] | tuple[Candidate, RejectedFormulas]]:
        """Take in the results of jobs, and yield the trainings that ended and the candidates that are complete."""
        for job, result, seconds in completed:
            match job, result:
                case Train(_, training, int(k)), Outcome() as outcome:
                    outcome = replace(outcome, fidelity=training.fidelity)
                    yield job, outcome
                    self._history.collect(k, training, outcome)
                case RejectionBatch() as batch, list() as attempts:
                    self._receive_attempts(batch, attempts, seconds)
                case _:
                    raise TypeError(f"{result} is no result of {job}.")
        while self._history.can_begin and self._advance():
            draft = self._history.begin()
            candidate = self._history.complete()
            yield candidate, draft.rejected_formulas
            self._trainings.extend(self._history.missing_trainings(candidate.id))
            for key in [key for key in self._progress if key[0] <= candidate.id]:
                del self._progress[key]

    def next_jobs(self, idle: int) -> Iterator[Job]:
        """Yield the jobs to run next, each once: all trainings that are due, then tests for the workers that are left.

        Args:
            idle: Number of workers that nothing waits for.
        """
        while self._trainings:
            yield self._trainings.popleft()
            idle -= 1
        if self._history.end is None:
            for eager in (False, True):
                while idle > 0 and (batch := self._next_batch(eager)) is not None:
                    yield batch
                    idle -= 1

    def _advance(self) -> bool:
        """Let the history decide the tested attempts at its next candidate; say whether all its branches are settled."""
        draft = self._history.begin()
        for branch in list(draft.open):
            tested = self._progress[draft.plan.candidate, branch].tested
            while draft.is_open(branch) and (attempt := tested.pop(draft.tried[branch], None)) is not None:
                draft.decide(branch, attempt)
            if draft.is_open(branch):
                # Branches are settled in their order: the last one answers for the loss as a whole.
                return False
        return not draft.open

    def _next_batch(self, eager: bool) -> RejectionBatch | None:
        """Return the attempts that an idle worker should test, or None if there is none yet.

        Args:
            eager: Also go further on branches that are being tested already.
        """
        for plan, branch, missing in self._open_branches():
            progress = self._progress[plan.candidate, branch]
            enough = progress.is_enough(missing, self._history.verdicts[branch])
            if not enough and (eager or not progress.running):
                return self._batch(plan, branch, missing, progress)
        return None

    def _open_branches(self) -> Iterator[tuple[Plan, str, int]]:
        """Yield the open branches of the next candidates, the most urgent first, and how many attempts still have to pass."""
        history = self._history
        first = len(history.candidates)
        for candidate in range(first, first + history.configuration.evolution.lag):
            if not history.plannable(candidate):
                return
            plan = history.plan(candidate)
            if candidate == first:
                draft = history.begin()
                yield from ((plan, branch, plan.pool - len(draft.passed[branch])) for branch in draft.open)
            else:
                yield from ((plan, branch, plan.pool) for branch in plan.drawn)

    def _batch(self, plan: Plan, branch: str, missing: int, progress: BranchProgress) -> RejectionBatch:
        if progress.gaps:
            first, count = progress.gaps.pop(0)
        else:
            first, pace = progress.next, self._seconds_per_attempt
            count = max(MIN_ATTEMPTS, min(MAX_ATTEMPTS, round(TARGET_SECONDS / pace))) if pace else MIN_ATTEMPTS
            progress.next += count
        progress.running += 1
        known = self._history.verdicts[branch].latest(VERDICTS_PER_BATCH)
        parent = self._history.parent_tree(plan, branch)
        kind = plan.kinds[branch].value
        return RejectionBatch(plan.candidate, branch, kind, parent, first, count, known, missing)

    def _receive_attempts(self, batch: RejectionBatch, attempts: Sequence[Attempt], seconds: float) -> None:
        """Take in the results of a batch; it may have ended early, at the first attempt that passed."""
        if batch.candidate < len(self._history.candidates):
            return
        progress = self._progress[batch.candidate, batch.branch]
        progress.running -= 1
        progress.tested.update({attempt.number: attempt for attempt in attempts})
        if len(attempts) < batch.count:
            progress.gaps.append((batch.first + len(attempts), batch.count - len(attempts)))
            progress.gaps.sort()
        if attempts:
            pace, before = seconds / len(attempts), self._seconds_per_attempt
            self._seconds_per_attempt = 0.8 * before + 0.2 * pace if before else pace
