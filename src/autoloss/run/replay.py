"""`autoloss replay`: every child of a run derived again, by the code that a search runs, and compared with what is stored.

A plain replay takes as given what testing and training said: scores, signatures, keys, reasons. It derives the parent, the kinds,
the tree of each winning attempt, twins and copies, what was charged and where the run ends. A full one tests all attempts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoloss.rejection.reasons import Reason
from autoloss.run.request import restore_request
from autoloss.run.resolving import operator_table
from autoloss.run.user_files import importable_files
from autoloss.search.ahead import KEYS_PER_BATCH
from autoloss.search.attempts import draw_attempt, resolve_kind
from autoloss.search.draft import Draft
from autoloss.search.history import History
from autoloss.search.jobs import Attempt, RejectionBatch
from autoloss.search.records import Candidate, Origin, Outcome, State
from autoloss.settings import Configuration
from autoloss.space.branch import Role
from autoloss.space.operators import Operator
from autoloss.space.parsing import parse
from autoloss.store import samples as sample_files
from autoloss.store.rows import candidate_to_row
from autoloss.store.store import Store
from autoloss.tasks.task import Task
from autoloss.workers.job_runner import JobRunner
from autoloss.workers.rejection_tester import build_alphabet


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a stored child is not what the run's configuration, seed and earlier outcomes give.

    Args:
        column: Of the child's row; `place` when no child belongs there, `outcome` when that is what cannot be.
    """

    child: int
    column: str
    stored: Any
    derived: Any

    def __str__(self) -> str:
        return f"child {self.child} differs in {self.column}: stored is {self.stored}; derived is {self.derived}"


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay came to.

    Args:
        children: The number that were derived and equal what is stored, byte for byte.
        full: Whether all attempts were tested again.
        difference: The first child that is not equal, and how.
    """

    directory: Path
    children: int
    full: bool
    difference: Difference | None = None

    @property
    def summary(self) -> str:
        how = "all their attempts tested again" if self.full else "from the recorded scores and winning attempts"
        end = "all equal what is stored" if self.difference is None else str(self.difference)
        return f"{self.children} children derived, {how}: {end}."

    def values(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**asdict(self), "directory": str(self.directory)}


REASONS = frozenset(reason.name for reason in Reason)

Settle = Callable[[History, Draft, Candidate], Difference | None]
"""Settles the branches of a draft as a stored child says."""
Kept = Mapping[tuple[str, int], tuple[str, str]]


@importable_files()
def replay(
    directory: str | Path, task: Task | None = None, full: bool = False, operators: Sequence[Operator] = ()
) -> Replay:
    """Derive every child of a run again and compare it with its row; nothing is trained and nothing is written.

    Args:
        task: The task of a run that was started with an object; needed when `full`.
        operators: Those of a run that was started with objects.
        full: Test all attempts again, the rejected ones too; equal on the same type of CPU and build, as a history is.

    Raises:
        RequestError: There is no run, or its task must be given.
        StoreError: A row is damaged.
    """
    path = Path(directory)
    with Store(path) as store:
        settings = store.settings()
        # Outcomes first: a child that is appended in between then lacks its outcome, never the other way round.
        outcomes = store.outcomes()
        children = list(store.candidates())
        rejected = store.rejected()
    configuration, leaves = settings.configuration, settings.leaves
    if full:
        request = restore_request(settings, path, task, operators)
        samples = sample_files.load(path, settings.samples_digest)
        runner = JobRunner(request.task, samples, configuration, operators=request.operators)
        settle = _testing(runner, rejected)
    else:
        settle = _trusting(leaves, configuration, operator_table(configuration.space.operators, operators))
    history = History(leaves, configuration)
    for child in children:
        difference = _derived(history, child, settle) or _told(history, child, outcomes.get(child.id))
        if difference is not None:
            return Replay(path, child.id, full, difference)
    return Replay(path, len(children), full)


def _derived(history: History, child: Candidate, settle: Settle) -> Difference | None:
    """Derive the next child and compare it with the stored one."""
    if not history.can_begin:
        reason = history.end or f"the children up to {child.id - history.configuration.evolution.lag} lack an outcome"
        return Difference(child.id, "place", "a child", f"none: {reason}")
    draft = history.begin()
    plan = draft.plan
    planned = {
        "parent": plan.parent,
        "kinds": {branch: resolve_kind(kind, child.attempts.get(branch)).value for branch, kind in plan.kinds.items()},
    }
    for column, derived in planned.items():
        if getattr(child, column) != derived:
            return Difference(child.id, column, getattr(child, column), derived)
    difference = settle(history, draft, child)
    if difference is not None:
        return difference
    stored, derived = candidate_to_row(child), candidate_to_row(history.complete())
    return next(
        (Difference(child.id, name, stored[name], derived[name]) for name in stored if stored[name] != derived[name]),
        None,
    )


def _told(history: History, child: Candidate, outcome: Outcome | None) -> Difference | None:
    """Tell the history the stored outcome, if it can be one."""
    if outcome is None:
        return None
    if child.origin is not Origin.TRAINED:
        return Difference(child.id, "outcome", f"its own, {outcome.state.value}", f"that of child {child.source}")
    if (outcome.state is State.SCORED) != (outcome.score is not None):
        return Difference(
            child.id, "outcome", f"{outcome.state.value} with the score {outcome.score}", "one or the other"
        )
    history.tell(child.id, outcome)
    return None


def _trusting(
    leaves: Mapping[str, tuple[str, ...]], configuration: Configuration, operators: Mapping[str, Operator]
) -> Settle:
    """Draw the winning attempts alone, and believe what was recorded of those before them."""
    alphabets = {
        branch: build_alphabet(dict.fromkeys(names, Role.BOTH), configuration, operators)
        for branch, names in leaves.items()
    }
    settings, seed = configuration.evolution, configuration.seed

    def settle(history: History, draft: Draft, child: Candidate) -> Difference | None:
        for branch in draft.open:
            number = child.attempts.get(branch)
            if number is None:
                return Difference(child.id, "attempts", dict(child.attempts), f"an attempt at {branch}")
            text = history.parent_tree(draft.plan, branch)
            parent = None if text is None else parse(text, leaves[branch], operators)
            tree = draw_attempt(draft.plan, branch, number, parent, alphabets[branch], settings, seed)
            score, *gains = child.scores.get(branch, (None,))
            found = Attempt(
                number, str(tree), None, b"", child.signature[branch], branch in child.scores, score, tuple(gains)
            )
            if draft.settle(branch, found):
                return Difference(child.id, "signature", dict(child.signature), "another: this one is known to diverge")
        return _believe(history, draft, child)

    return settle


def _believe(history: History, draft: Draft, child: Candidate) -> Difference | None:
    """Take over the keys and reasons that were recorded for a child, as far as they agree with the rest of it."""
    for keys, passed in ((child.rejected, False), (child.accepted, True)):
        for branch, found in keys.items():
            if met := history.verdicts[branch].record_all(found, passed):
                column = "passed" if passed else "rejected"
                return Difference(child.id, column, f"{met.hex()} of {branch}", "not simulated: the key is known")
            (draft.accepted if passed else draft.rejected)[branch].extend(found)
            draft.counts["simulated"] += len(found) // 8
    draft.counts.update({name: count for name, count in child.counts.items() if name in REASONS or name == "reused"})
    rejected = sum(draft.counts[name] for name in REASONS)
    if rejected != draft.counts["sampled"] - draft.counts["passed"]:
        expected = draft.counts["sampled"] - draft.counts["passed"]
        return Difference(child.id, "counts", f"{rejected} rejections", f"{expected} attempts before the winners")
    return None


def _testing(runner: JobRunner, rejected: Mapping[int, Kept]) -> Settle:
    """Test every attempt again, up to the one that won."""

    def settle(history: History, draft: Draft, child: Candidate) -> Difference | None:
        for branch in draft.open:
            number = child.attempts.get(branch)
            while branch in draft.open and number is not None and draft.tried[branch] <= number:
                _test(history, draft, branch, number, runner)
            if branch in draft.open:
                found = f"none of the first {draft.tried[branch]} at {branch} passes"
                return Difference(child.id, "attempts", dict(child.attempts), found)
        if draft.rejected_formulas != rejected.get(child.id, {}):
            return Difference(child.id, "rejected formulas", rejected.get(child.id, {}), draft.rejected_formulas)
        return None

    return settle


def _test(history: History, draft: Draft, branch: str, last: int, runner: JobRunner) -> None:
    """Test the next attempts at a branch and let the history take them in order."""
    first = draft.tried[branch]
    kind, parent = draft.plan.kinds[branch].value, history.parent_tree(draft.plan, branch)
    before, known = history.verdicts[branch].latest(KEYS_PER_BATCH)
    job = RejectionBatch(draft.plan.candidate, branch, kind, parent, first, last + 1 - first, known, before)
    tested = runner.perform(job)
    assert isinstance(tested, list)
    for found in tested:
        if branch not in draft.open:
            return
        draft.decide(branch, found)
