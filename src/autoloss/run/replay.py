"""`autoloss replay`: derives every candidate of a run again, with the code of the search, and compares it with what is stored.

A plain replay takes the results of rejection tests and trainings from the store: scores, signatures, keys, reasons. It derives
the parent, the kinds, the tree of each winning attempt, twins and copies, what was charged and where the run ends. A full replay
tests all attempts again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.options import checked
from autoloss.proposing.draft import Draft
from autoloss.proposing.evolution import Archive
from autoloss.proposing.history import History
from autoloss.proposing.machine import VERDICTS_PER_BATCH
from autoloss.proposing.memory import recall
from autoloss.proposing.mutation import draw_attempt
from autoloss.proposing.proposer import Proposer
from autoloss.proposing.proposers import make_proposer
from autoloss.proposing.records import Attempt, Candidate, Origin, Outcome, RejectedFormulas, RejectionBatch, State
from autoloss.rejection.reasons import Reason
from autoloss.run.request import prepare, restore_request
from autoloss.run.resolving import operator_table
from autoloss.run.user_files import Trust, check_trust, importable_files
from autoloss.space.expression import Alphabet
from autoloss.space.loss_text import split_branches, split_factor
from autoloss.space.operators import Operator
from autoloss.space.parsing import parse
from autoloss.store.database import StoreError
from autoloss.store.run_settings import RunSettings
from autoloss.store.store import Store, candidate_to_row
from autoloss.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where a stored candidate differs from what configuration, seed and earlier outcomes give.

    Args:
        child: Number of the candidate.
        column: Of its row; `place` if no candidate belongs there, `outcome` if its outcome is impossible.
    """

    child: int
    column: str
    stored: Any
    derived: Any

    def __str__(self) -> str:
        return f"candidate {self.child} differs in {self.column}: stored is {self.stored}; derived is {self.derived}"


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay.

    Args:
        children: Number of candidates that were derived and equal what is stored, byte for byte.
        full: Whether all attempts were tested again.
        difference: The first candidate that differs, and how.
    """

    directory: Path
    children: int
    full: bool
    difference: Difference | None = None

    @property
    def summary(self) -> str:
        """The result in a sentence."""
        how = "all their attempts tested again" if self.full else "from the recorded scores and winning attempts"
        end = "all equal what is stored" if self.difference is None else str(self.difference)
        return f"{self.children} candidates derived, {how}: {end}."

    def values(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**asdict(self), "directory": str(self.directory)}


REASONS = frozenset(reason.name for reason in Reason)

Settle = Callable[[History, Draft, Candidate], Difference | None]
"""Settles the branches of a draft as a stored candidate says."""


@checked
@importable_files()
def replay(
    directory: str | Path,
    task: Task | None = None,
    full: bool = False,
    operators: Sequence[Operator] = (),
    proposer: Proposer | None = None,
    archive: Archive | None = None,
    trust: Trust = False,
) -> Replay:
    """Derive every candidate of a run again and compare it with the stored one; nothing is trained or written.

    Args:
        task: The task of a run that was started with an object; needed when `full`.
        operators: Those of a run that was started with objects; likewise `proposer` and `archive`.
        full: Test all attempts again, also the rejected ones; they are equal on the same type of CPU and build.
        trust: Run the files that the run names, even if another user started it; or those of them that may be run.

    Raises:
        RequestError: There is no run, or its task must be given.
        StoreError: A row is damaged.
    """
    path = Path(directory)
    with Store(path) as store:
        settings = store.settings()
        # Outcomes first: a candidate that is appended in between then lacks its outcome, never the other way round.
        outcomes = store.outcomes()
        candidates = list(store.candidates())
        rejected = store.rejected()
    configuration = settings.configuration
    if full:
        request = restore_request(settings, path, task, operators, trust)
        settle = _settle_by_testing(prepare(request), rejected)
    else:
        check_trust(settings, path, trust, task=False)
        settle = _settle_from_store(settings, operator_table(configuration.space.operators, operators))
    memory = recall(configuration.search, settings.branches, operator_table(configuration.space.operators, operators))
    history = History(settings.branches, configuration, make_proposer(configuration, proposer, archive, memory))
    for candidate in candidates:
        difference = _derive(history, candidate, settle) or _tell(history, candidate, outcomes.get(candidate.id))
        if difference is not None:
            return Replay(path, candidate.id, full, difference)
    return Replay(path, len(candidates), full)


def _derive(history: History, candidate: Candidate, settle: Settle) -> Difference | None:
    """Derive the next candidate and compare it with the stored one."""
    if not history.can_begin:
        last = candidate.id - history.configuration.evolution.lag
        reason = history.end or f"the candidates up to {last} lack an outcome"
        return Difference(candidate.id, "place", "a candidate", f"none: {reason}")
    draft = history.begin()
    for column, derived in (("parent", draft.plan.parent), ("kinds", draft.resolve_kinds(candidate.attempts))):
        if getattr(candidate, column) != derived:
            return Difference(candidate.id, column, getattr(candidate, column), derived)
    difference = settle(history, draft, candidate)
    if difference is not None:
        return difference
    stored, derived = candidate_to_row(candidate), candidate_to_row(history.complete())
    differing = (name for name in stored if stored[name] != derived[name])
    return next((Difference(candidate.id, name, stored[name], derived[name]) for name in differing), None)


def _tell(history: History, candidate: Candidate, outcome: Outcome | None) -> Difference | None:
    """Tell the history the stored outcome, if it is possible."""
    if outcome is None:
        return None
    if candidate.origin is not Origin.TRAINED:
        own = f"its own, {outcome.state.value}"
        return Difference(candidate.id, "outcome", own, f"that of candidate {candidate.source}")
    if (outcome.state is State.SCORED) != (outcome.score is not None):
        both = f"{outcome.state.value} with the score {outcome.score}"
        return Difference(candidate.id, "outcome", both, "one or the other")
    history.tell(candidate.id, outcome)
    return None


def _settle_from_store(run: RunSettings, operators: Mapping[str, Operator]) -> Settle:
    """Draw only the winning attempts, and take what was recorded of those before them."""
    try:
        alphabets = {branch: Alphabet.from_dict(run.alphabets[branch], operators) for branch in run.branches}
    except RequestError:
        raise
    except (KeyError, ValueError, TypeError) as error:
        raise StoreError(
            f"The setting 'alphabets' of the run does not say what trees are drawn from ({error!r}). Restore the file from a copy."
        ) from error
    settings, seed, leaves = run.configuration.evolution, run.configuration.seed, run.leaves

    def settle(history: History, draft: Draft, candidate: Candidate) -> Difference | None:
        for branch in draft.open:
            number = candidate.attempts.get(branch)
            if number is None:
                return Difference(candidate.id, "attempts", dict(candidate.attempts), f"an attempt at {branch}")
            text = history.parent_tree(draft.plan, branch)
            parent = None if text is None else parse(text, leaves[branch], operators)
            passed = []
            for at, signature in candidate.pool.get(branch) or [(number, candidate.signature[branch])]:
                kind = draft.plan.kinds[branch]
                tree = draw_attempt(candidate.id, branch, kind, at, parent, alphabets[branch], settings, seed)
                passed.append(_restore_attempt(candidate, branch, at, str(tree), signature))
            if draft.settle(branch, passed):
                stored = dict(candidate.signature)
                return Difference(candidate.id, "signature", stored, "another: this one is known to diverge")
        return _take_from_store(history, draft, candidate)

    return settle


def _restore_attempt(candidate: Candidate, branch: str, at: int, formula: str, signature: tuple[str, ...]) -> Attempt:
    """Return an attempt that passed, with what was recorded of it if it won."""
    if at != candidate.attempts[branch]:
        return Attempt(at, formula, signature=signature)
    score, *gains = candidate.scores.get(branch, (None,))
    # The factor was measured with the gradient, like the signature.
    factor = split_factor(split_branches(candidate.loss)[branch])[0]
    simulated = branch in candidate.scores
    return Attempt(at, formula, None, b"", signature, simulated, score, tuple(gains), factor)


def _take_from_store(history: History, draft: Draft, candidate: Candidate) -> Difference | None:
    """Take the keys and reasons that were recorded for a candidate, if they agree with the rest of it."""
    for keys, passed in ((candidate.rejected, False), (candidate.accepted, True)):
        for branch, found in keys.items():
            if met := history.verdicts[branch].record_all(found, passed):
                column = "passed" if passed else "rejected"
                return Difference(candidate.id, column, f"{met.hex()} of {branch}", "not simulated: the key is known")
            (draft.accepted if passed else draft.rejected)[branch].extend(found)
            draft.counts["simulated"] += len(found) // 8
    known = {*REASONS, "reused"}
    draft.counts.update({name: count for name, count in candidate.counts.items() if name in known})
    rejected = sum(draft.counts[name] for name in REASONS)
    if rejected != (expected := draft.counts["sampled"] - draft.counts["passed"]):
        return Difference(candidate.id, "counts", f"{rejected} rejections", f"{expected} attempts before the winners")
    return None


def _settle_by_testing(runner: Evaluator, rejected: Mapping[int, RejectedFormulas]) -> Settle:
    """Test every attempt again, up to the one that won."""

    def settle(history: History, draft: Draft, candidate: Candidate) -> Difference | None:
        for branch in draft.open:
            number = candidate.attempts.get(branch)
            last = max((at for at, _ in candidate.pool.get(branch, ())), default=number)
            while branch in draft.open and last is not None and draft.tried[branch] <= last:
                _test(history, draft, branch, last, runner)
            if branch in draft.open:
                found = f"too few of the first {draft.tried[branch]} at {branch} pass"
                return Difference(candidate.id, "attempts", dict(candidate.attempts), found)
        if draft.rejected_formulas != (stored := rejected.get(candidate.id, {})):
            return Difference(candidate.id, "rejected formulas", stored, draft.rejected_formulas)
        return None

    return settle


def _test(history: History, draft: Draft, branch: str, last: int, runner: Evaluator) -> None:
    """Test the next attempts at a branch and let the history take them in order."""
    first = draft.tried[branch]
    kind, parent = draft.plan.kinds[branch].value, history.parent_tree(draft.plan, branch)
    known = history.verdicts[branch].latest(VERDICTS_PER_BATCH)
    count = last + 1 - first
    job = RejectionBatch(draft.plan.candidate, branch, kind, parent, first, count, known, draft.plan.pool)
    tested = runner.perform(job)
    assert isinstance(tested, list)
    for found in tested:
        if branch not in draft.open:
            return
        draft.decide(branch, found)
