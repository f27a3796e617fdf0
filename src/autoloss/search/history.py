"""One history: children are resolved in index order, as a function of configuration and seed alone.

Whoever tested an attempt, and when, makes no difference: verdicts count when their turn comes. The same code serves a
search, a resumed one and a replay.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autoloss.errors import RunError
from autoloss.rejection.reasons import Reason
from autoloss.search.chance import derived_seed
from autoloss.search.equivalence import Signatures, Verdicts
from autoloss.search.evolution import Evolution, Plan
from autoloss.search.jobs import Attempt
from autoloss.search.mutation import Kind
from autoloss.search.records import Candidate, Individual, Origin, Outcome, State
from autoloss.settings import Configuration
from autoloss.space.loss_text import join_branches, split_branches

KEPT = 1_000
"""One in so many rejected attempts keeps its text."""


@dataclass(slots=True)
class Draft:
    """The next child, while its branches are tried."""

    plan: Plan
    chosen: dict[str, Attempt] = field(default_factory=dict)
    tried: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    rejected: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    accepted: defaultdict[str, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    kept: dict[tuple[str, int], tuple[str, str]] = field(default_factory=dict)

    @property
    def open(self) -> list[str]:
        """The branches that still lack a tree, in order."""
        kinds = self.plan.kinds
        return [branch for branch in kinds if kinds[branch] is not Kind.COPY and branch not in self.chosen]


class History:
    """The children so far, what is known from them, and the next one's draft.

    Args:
        branches: Their names, in the task's order.
    """

    def __init__(self, branches: Iterable[str], configuration: Configuration) -> None:
        self.configuration = configuration
        self.branches = branches = tuple(branches)
        self.children: list[Candidate] = []
        self.outcomes: dict[int, Outcome] = {}
        self.totals: Counter[str] = Counter()
        self.charged = 0
        self.verdicts = {branch: Verdicts() for branch in branches}
        self.draft: Draft | None = None
        self._evolution = Evolution(branches, configuration.evolution, configuration.offspring, configuration.seed)
        self._signatures = Signatures(configuration.evolution.lag)
        self.best: Individual | None = None
        self._followers: defaultdict[int, list[int]] = defaultdict(list)
        # Of the next few children: asked for with every batch, and a tournament among thousands takes its time.
        self._plans: dict[int, Plan] = {}
        self._idle = 0

    @property
    def running(self) -> list[int]:
        """Children that are to be trained and have no outcome yet."""
        resolved = self._evolution.resolved
        return [
            child.id
            for child in self.children[resolved:]
            if child.origin is Origin.TRAINED and child.id not in self.outcomes
        ]

    @property
    def finished(self) -> list[Individual]:
        """The children before the first one without an outcome: the history proper, less the curves of their trainings."""
        return [Individual(child, self.outcomes[child.id]) for child in self.children[: self._evolution.resolved]]

    def first_outcomes(self, count: int) -> list[Outcome]:
        """Return the outcomes of the first children, as far as they have one without a gap."""
        return [self.outcomes[child] for child in range(min(count, self._evolution.resolved))]

    @property
    def end(self) -> str | None:
        """Why no further child belongs to the run, or None while there are more."""
        settings, limits = self.configuration.evolution, self.configuration.limits
        if self.charged >= self.configuration.evaluations:
            return f"{self.charged} of {self.configuration.evaluations} trainings are done"
        if limits.explored is not None and self.totals["sampled"] >= limits.explored:
            return f"{self.totals['sampled']} losses are explored, and the limit is {limits.explored}"
        if self._idle >= settings.idle_children:
            return (
                f"{self._idle} children in a row were copies or twins of earlier ones: the search finds nothing new. "
                "Raise offspring.fresh or evolution.depth"
            )
        return None

    @property
    def startable(self) -> bool:
        """Say whether the next child belongs to the run for sure and all it depends on is known."""
        room = self.charged + len(self.running) < self.configuration.evaluations
        return self.end is None and room and self._evolution.ready(len(self.children))

    @property
    def known_keys(self) -> dict[str, bytes]:
        """Branch → all keys whose verdict is known, eight bytes each, oldest first."""
        return {branch: verdicts.latest(len(verdicts))[1] for branch, verdicts in self.verdicts.items()}

    def plannable(self, child: int) -> bool:
        return self._evolution.plannable(child)

    def plan(self, child: int) -> Plan:
        """Return how a child that is `plannable` is to come about."""
        if child not in self._plans:
            self._plans[child] = self._evolution.ask(child)
        return self._plans[child]

    def parent_tree(self, plan: Plan, branch: str) -> str | None:
        """Return the text of the parent's tree on a branch, of the one to start from, or None for a child drawn from nothing."""
        if plan.kinds[branch] is Kind.GIVEN:
            text = self.configuration.evolution.start[plan.child]
        elif plan.parent is None:
            return None
        else:
            text = self.children[plan.parent].loss
        return split_branches(text)[branch]

    def begin(self) -> Draft:
        """Start on the next child, or go on with it."""
        if self.draft is None:
            self.draft = Draft(self.plan(len(self.children)))
        return self.draft

    def take(self, branch: str, attempt: Attempt) -> None:
        """Decide the next attempt at a branch of the draft.

        Raises:
            RunError: The attempts at this branch are used up.
            LookupError: The attempt needs the protocol's verdict and was not simulated.
        """
        draft = self.begin()
        if attempt.number != draft.tried[branch]:
            raise ValueError(f"Attempt {attempt.number} comes before attempt {draft.tried[branch]} of {branch}.")
        reason, attempt = self._judge(draft, branch, attempt)
        draft.tried[branch] += 1
        draft.counts["sampled"] += 1
        if reason is None:
            draft.chosen[branch] = attempt
            draft.counts["passed"] += 1
            return
        draft.counts[reason.name] += 1
        if derived_seed(self.configuration.seed, "keep", draft.plan.child, branch, attempt.number) % KEPT == 0:
            draft.kept[branch, attempt.number] = (attempt.formula, reason.name)
        if draft.tried[branch] >= self.configuration.evolution.attempts:
            raise RunError(_nothing_passes(branch, draft.counts))

    def adopt(self, branch: str, attempt: Attempt) -> Reason | None:
        """Settle a branch of the draft with the attempt that is recorded to have won; those before it are not looked at.

        Returns:
            The reason for which it cannot have won, or None.
        """
        draft = self.begin()
        if self._known_to_diverge(draft, branch, attempt):
            return Reason.KNOWN_DIVERGED
        draft.tried[branch] = attempt.number + 1
        draft.counts["sampled"] += attempt.number + 1
        draft.counts["passed"] += 1
        draft.chosen[branch] = attempt
        return None

    def learn(self, branch: str, keys: bytes, passed: bool) -> bytes | None:
        """Record the verdict of keys, eight bytes each; returns the first that was known before."""
        verdicts = self.verdicts[branch]
        first = None
        for start in range(0, len(keys), 8):
            key = keys[start : start + 8]
            if first is None and key in verdicts:
                first = key
            verdicts.record(key, passed)
        return first

    def _judge(self, draft: Draft, branch: str, attempt: Attempt) -> tuple[Reason | None, Attempt]:
        """Say why an attempt goes no further, or None when its branch is settled; and what it counts as."""
        if not attempt.key:
            return Reason[attempt.reason or ""], attempt
        verdicts = self.verdicts[branch]
        if attempt.key in verdicts:
            draft.counts["reused"] += 1
            # A worker may have simulated it all the same; what it found must not depend on that.
            attempt = replace(attempt, simulated=False)
            reason = None if verdicts[attempt.key] else Reason.KNOWN_KEY
        elif not attempt.simulated:
            raise LookupError(f"Attempt {attempt.number} at {branch} was not simulated, and its key is unknown.")
        else:
            reason = Reason[attempt.reason] if attempt.reason else None
            verdicts.record(attempt.key, reason is None)
            (draft.accepted if reason is None else draft.rejected)[branch].extend(attempt.key)
            draft.counts["simulated"] += 1
        if reason is None and self._known_to_diverge(draft, branch, attempt):
            reason = Reason.KNOWN_DIVERGED
        return reason, attempt

    def _known_to_diverge(self, draft: Draft, branch: str, attempt: Attempt) -> bool:
        """Say whether an attempt completes a loss that diverged in an earlier training."""
        if draft.open != [branch]:
            return False
        signature = _text(self._signature(draft, {branch: attempt}))
        return self._signatures.diverges(draft.plan.child, signature)

    def _signature(self, draft: Draft, more: Mapping[str, Attempt] | None = None) -> dict[str, tuple[str, ...]]:
        chosen = {**draft.chosen, **(more or {})}
        parent = None if draft.plan.parent is None else self.children[draft.plan.parent]
        return {
            branch: chosen[branch].signature if branch in chosen or parent is None else parent.signature[branch]
            for branch in self.branches
        }

    def complete(self) -> Candidate:
        """Make the child of a draft whose branches are all settled, and remember it."""
        draft = self.begin()
        plan = draft.plan
        trees = {
            branch: draft.chosen[branch].formula if branch in draft.chosen else self.parent_tree(plan, branch) or ""
            for branch in self.branches
        }
        signature = self._signature(draft)
        if not draft.chosen:
            origin, source = Origin.COPIED, plan.parent
        else:
            source = self._signatures.twin(plan.child, _text(signature))
            origin = Origin.TRAINED if source is None else Origin.TWIN
        attempts = {branch: draft.chosen[branch].number if branch in draft.chosen else None for branch in trees}
        child = Candidate(
            id=plan.child,
            parent=plan.parent,
            kinds={branch: came_about(kind, attempts[branch]).value for branch, kind in plan.kinds.items()},
            attempts=attempts,
            loss=join_branches(trees),
            origin=origin,
            source=source,
            signature=signature,
            scores={
                branch: (found.score, *found.gains)
                for branch, found in draft.chosen.items()
                if found.simulated and found.score is not None
            },
            counts=draft.counts,
            rejected={branch: bytes(keys) for branch, keys in draft.rejected.items()},
            accepted={branch: bytes(keys) for branch, keys in draft.accepted.items()},
        )
        self.draft = None
        self._remember(child)
        return child

    def restore(self, children: Iterable[Candidate], outcomes: Mapping[int, Outcome]) -> None:
        """Bring back what a store holds: children in order, each with its outcome where there is one."""
        for child in children:
            for branch in self.branches:
                self.learn(branch, child.rejected.get(branch, b""), False)
                self.learn(branch, child.accepted.get(branch, b""), True)
            self._remember(child)
            if child.id in outcomes:
                self.tell(child.id, outcomes[child.id])

    def _remember(self, child: Candidate) -> None:
        self.children.append(child)
        self._plans.pop(child.id, None)
        self.totals.update(child.counts)
        self._idle = 0 if child.origin is Origin.TRAINED else self._idle + 1
        if child.source is None:
            self._signatures.record(child.id, _text(child.signature))
        elif child.source in self.outcomes:
            self._share(child.id, self.outcomes[child.source])
        else:
            self._followers[child.source].append(child.id)

    def tell(self, child: int, outcome: Outcome) -> None:
        """Record what a training came to, for the child and for its twins."""
        charge = outcome.state is State.SCORED or (
            outcome.state is State.DIVERGED and self.configuration.limits.charge_diverged
        )
        self.charged += charge
        self._signatures.tell(child, diverged=outcome.state is State.DIVERGED, failed=outcome.state is State.FAILED)
        self._share(child, outcome)
        for follower in self._followers.pop(child, ()):
            self._share(follower, outcome)

    def _share(self, child: int, outcome: Outcome) -> None:
        # No decision reads a curve; the store keeps it, and ten thousand of them would fill a driver's memory.
        outcome = replace(outcome, curve=())
        self.outcomes[child] = outcome
        individual = Individual(self.children[child], outcome)
        # Of equal scores the earlier child counts: a twin is no news.
        if outcome.score is not None and (
            self.best is None or (individual.score, -child) > (self.best.score, -self.best.id)
        ):
            self.best = individual
        self._evolution.tell(child, outcome.score)


def as_text(individuals: Iterable[Individual]) -> Iterator[str]:
    """Write a history as one line per child, without times: equal histories are equal byte for byte."""
    for individual in individuals:
        child, outcome = individual.child, individual.outcome
        yield json.dumps(
            {
                "child": child.id,
                "parent": child.parent,
                "kinds": dict(child.kinds),
                "attempts": dict(child.attempts),
                "loss": child.loss,
                "origin": child.origin.value,
                "source": child.source,
                "signature": {branch: list(norms) for branch, norms in child.signature.items()},
                "scores": {branch: list(scores) for branch, scores in child.scores.items()},
                "counts": dict(sorted(child.counts.items())),
                "rejected": {branch: keys.hex() for branch, keys in child.rejected.items()},
                "accepted": {branch: keys.hex() for branch, keys in child.accepted.items()},
                "state": outcome.state.value,
                "score": outcome.score,
                "also": dict(outcome.also),
                "curve": [list(point) for point in outcome.curve],
                "step": outcome.step,
                "reason": outcome.reason,
            },
            allow_nan=False,
        )


def came_about(kind: Kind, attempt: int | None) -> Kind:
    """Return how a branch came about by its winning attempt: a loss to start from that did not pass gave way to a draw."""
    return Kind.FRESH if kind is Kind.GIVEN and attempt else kind


def _text(signature: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{branch}: {' '.join(norms)}" for branch, norms in signature.items())


def _nothing_passes(branch: str, counts: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{counts[reason.name]} {reason.value}" for reason in Reason if counts.get(reason.name))
    return (
        f"Of {counts['sampled']} losses drawn for the branch {branch!r} none passed the rejection protocol "
        f"({counts.get('simulated', 0)} simulated): {reasons}. Look at what `autoloss check` says of the task, lower "
        "rejection.threshold, choose rejection.unit=relative, or raise rejection.learning_rate."
    )
