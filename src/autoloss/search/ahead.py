"""Attempts tested ahead of their turn: which to test next, and what came of them.

Workers may test in any order; a history takes the results in its own. What was tested in vain costs time, never a decision.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from autoloss.search.history import History
from autoloss.search.jobs import Attempt, RejectionBatch
from autoloss.search.mutation import Kind

TARGET_SECONDS = 0.5
"""How long one batch should take: short enough that little is tested in vain, long enough to be worth its way."""
FEWEST, MOST = 16, 4096
TOLD = 4096
"""So many of the latest known keys go with a batch. A worker adds them to what it heard before; one that has just started lacks the
older ones and simulates some again, which costs time and decides nothing."""


@dataclass(slots=True)
class Front:
    """The attempts at one branch of one child: what was tested, and where the next batch begins."""

    tested: dict[int, Attempt] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    begun: int = 0
    underway: int = 0

    @property
    def satisfied(self) -> bool:
        """Say whether something passed and nothing before it is left out."""
        passing = [number for number, attempt in self.tested.items() if attempt.simulated and attempt.reason is None]
        return bool(passing) and not (self.gaps and self.gaps[0][0] < min(passing))


class Ahead:
    """Plans batches of tests for the next children, as far as their plans are known."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._fronts: defaultdict[tuple[int, str], Front] = defaultdict(Front)
        self._seconds_per_attempt = 0.0

    def advance(self) -> bool:
        """Let the history take what is tested of its next child; say whether the child is settled."""
        history = self._history
        draft = history.begin()
        for branch in list(draft.open):
            front = self._fronts[draft.plan.child, branch]
            while branch not in draft.chosen and (attempt := front.tested.pop(draft.tried[branch], None)) is not None:
                history.take(branch, attempt)
            if branch not in draft.chosen:
                # Branches are settled in their order: the last one answers for the loss as a whole.
                return False
        return not draft.open

    def next_batch(self, eager: bool = False) -> RejectionBatch | None:
        """Return what an idle worker should test, or None when nothing is worth testing yet.

        Args:
            eager: Also go further on branches that are being tested already.
        """
        for child, branch, kind in self._wanted():
            front = self._fronts[child, branch]
            if front.satisfied or (front.underway and not eager):
                continue
            return self._batch(child, branch, kind, front)
        return None

    def _wanted(self) -> Iterator[tuple[int, str, Kind]]:
        """Give the open branches of the next children, the most urgent first."""
        history = self._history
        first = len(history.children)
        for child in range(first, first + history.configuration.evolution.lag):
            if not history.plannable(child):
                return
            draft = history.begin() if child == first else None
            plan = draft.plan if draft else history.plan(child)
            for branch, kind in plan.kinds.items():
                if kind is not Kind.COPY and (draft is None or branch in draft.open):
                    yield child, branch, kind

    def _batch(self, child: int, branch: str, kind: Kind, front: Front) -> RejectionBatch:
        if front.gaps:
            first, count = front.gaps.pop(0)
        else:
            first, count = front.begun, self._count()
            front.begun += count
        front.underway += 1
        history = self._history
        plan = history.begin().plan if child == len(history.children) else history.plan(child)
        before, known = history.verdicts[branch].latest(TOLD)
        parent = history.parent_tree(plan, branch)
        return RejectionBatch(child, branch, kind.value, parent, first, count, known, before)

    def _count(self) -> int:
        if not self._seconds_per_attempt:
            return FEWEST
        return max(FEWEST, min(MOST, round(TARGET_SECONDS / self._seconds_per_attempt)))

    def receive(self, batch: RejectionBatch, attempts: list[Attempt], seconds: float) -> None:
        """Take in the results of a batch; it may have ended early, at the first that passed."""
        if batch.child < len(self._history.children):
            return
        front = self._fronts[batch.child, batch.branch]
        front.underway -= 1
        front.tested.update({attempt.number: attempt for attempt in attempts})
        if len(attempts) < batch.count:
            front.gaps.append((batch.first + len(attempts), batch.count - len(attempts)))
            front.gaps.sort()
        if attempts:
            pace = seconds / len(attempts)
            self._seconds_per_attempt = (
                0.8 * self._seconds_per_attempt + 0.2 * pace if self._seconds_per_attempt else pace
            )

    def forget(self, child: int) -> None:
        """Drop what was tested for a child that is settled."""
        for key in [key for key in self._fronts if key[0] <= child]:
            del self._fronts[key]
