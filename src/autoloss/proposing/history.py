"""One history: candidates in index order with their outcomes, a function of configuration and seed alone.

Which worker tested an attempt, and when, makes no difference: the history decides attempts in order. The same code serves a
search, a resumed one and a replay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from autoloss.options import check_arguments
from autoloss.proposing.draft import Draft, write_key
from autoloss.proposing.equivalence import SignatureIndex, VerdictCache
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.proposers import make_proposer
from autoloss.proposing.records import Attempt, Candidate, Individual, Origin, Outcome, State, Train, make_training
from autoloss.proposing.view import Ledger, View
from autoloss.settings import Configuration
from autoloss.space.loss_text import split_branches, split_factor
from autoloss.space.numerals import add_texts
from autoloss.training.training import Training

ROUNDING = 1e-9
"""Tolerance for sums of shares."""


class History:
    """The candidates so far, what is known from them, and the draft of the next one.

    Args:
        branches: Their names, in the task's order.
        proposer: Plans the candidates; by default that of the setting `search.proposer`.
    """

    def __init__(self, branches: Iterable[str], configuration: Configuration, proposer: Proposer | None = None) -> None:
        self.configuration = configuration
        self.branches = tuple(branches)
        self._ledger = Ledger(self.branches, configuration)
        self.candidates = self._ledger.candidates
        self.outcomes = self._ledger.outcomes
        self.totals: Counter[str] = Counter()
        self.charged = 0.0
        """Whole trainings, or shares of them, that count towards the budget."""
        self.trainings: Counter[float] = Counter()
        """Share of the schedule → trainings that ended."""
        self.best: Individual | None = None
        self.verdicts = {branch: VerdictCache() for branch in self.branches}
        self.draft: Draft | None = None
        self._proposer = proposer or make_proposer(configuration)
        self._signatures = SignatureIndex(self._ledger)
        self._twins: defaultdict[int, list[int]] = defaultdict(list)
        """Candidate under way → those that will share its outcome."""
        self._trainings: dict[int, dict[Training, Outcome | None]] = {}
        """Candidate under way → its trainings, with the outcomes of those that have ended."""
        # Of the next few candidates: asked for with every batch, and a tournament among thousands takes its time.
        self._plans: dict[int, Plan] = {}
        self._idle = 0

    @property
    def running(self) -> list[int]:
        """The candidates that are to be trained and have no outcome yet."""
        return list(self._trainings)

    def missing_trainings(self, k: int) -> list[Train]:
        """Return the trainings of candidate k that have not ended; none where it has its outcome, or shares one."""
        trainings = self._trainings.get(k, {})
        return [Train(self.candidates[k].loss, one, k) for one, outcome in trainings.items() if outcome is None]

    def finished(self, count: int | None = None) -> list[Individual]:
        """Return the candidates before the first without an outcome, at most `count`: the history proper, less the curves."""
        end = self._ledger.resolved if count is None else min(count, self._ledger.resolved)
        return [Individual(candidate, self.outcomes[candidate.id]) for candidate in self.candidates[:end]]

    @property
    def end(self) -> str | None:
        """The reason for which no further candidate belongs to the run, or None while there may be more."""
        settings, limits = self.configuration.evolution, self.configuration.limits
        if not self.running and self._cost_of_next > self._budget_left:
            unit = "trainings" if len(self.configuration.search.rungs) == 1 else "training equivalents"
            return f"{self.charged:.4g} of {self.configuration.evaluations} {unit} are done"
        if limits.explored is not None and self.totals["sampled"] >= limits.explored:
            return f"the limit of {limits.explored} drawn losses (limits.explored) is reached"
        if self._idle >= settings.idle_children:
            return (
                f"{self._idle} candidates in a row were copies or twins of earlier ones: the search finds nothing new. "
                "Raise offspring.fresh or evolution.depth"
            )
        return None

    @property
    def can_begin(self) -> bool:
        """Return True if the next candidate certainly belongs to the run and everything that it depends on is known."""
        k = len(self.candidates)
        if not (self._ledger.covers(k) and self.plannable(k)) or self.end is not None:
            return False
        reserved = sum(training.fidelity for trainings in self._trainings.values() for training in trainings)
        return self._cost_of_next <= self._budget_left - reserved

    @property
    def _budget_left(self) -> float:
        # Shares such as 0.1 do not add up to whole numbers exactly.
        return self.configuration.evaluations - self.charged + ROUNDING

    @property
    def _cost_of_next(self) -> float:
        """Training equivalents that the next candidate is charged with, should it be trained."""
        plan = self.plan(len(self.candidates))
        return plan.fidelity * len(plan.seeds) * len(plan.folds)

    def plannable(self, k: int) -> bool:
        """Return True if everything that the plan of candidate k depends on is known."""
        return not self._proposer.needs_outcomes(k) or self._ledger.covers(k)

    def plan(self, k: int) -> Plan:
        """Return how candidate k, which is `plannable`, is to be made.

        Raises:
            ValueError: The proposer returned no plan, or one of another candidate, without trainings, with a value that is not
                what `Plan` says, or with a parent that it cannot know.
        """
        if k not in self._plans:
            visible = View(self._ledger, k)
            plan = cast(Any, self._proposer.ask(k, visible))
            if not isinstance(plan, Plan) or plan.candidate != k or tuple(plan.kinds) != self.branches:
                raise ValueError(f"{plan} is no plan of candidate {k} with the branches {', '.join(self.branches)}.")
            kinds = {*plan.kinds.values()}
            if not ({*Kind} >= kinds and plan.pool and plan.seeds and plan.folds):
                raise ValueError(
                    f"{plan} needs a Kind for each branch, and at least one attempt in its pool, seed and fold."
                )
            plan = replace(plan, **check_arguments(Plan, {name: getattr(plan, name) for name in Plan.__slots__}))
            if any(len({*numbers}) < len(numbers) for numbers in (plan.seeds, plan.folds)):
                raise ValueError(f"{plan} has a seed or a fold twice.")
            if kinds & {Kind.COPY, Kind.SUM} and (plan.parent is None or (Kind.SUM in kinds and plan.partner is None)):
                raise ValueError(f"{plan} is made of a parent, and a sum of a partner too, which it does not name.")
            if Kind.START in kinds and not plan.start:
                raise ValueError(f"{plan} starts from a loss, which it does not name.")
            if any(one is not None and not 0 <= one < visible.count for one in (plan.parent, plan.partner)):
                raise ValueError(f"{plan} has a parent that candidate {k} does not see: it sees {visible.count}.")
            if plan.promotes and (plan.parent is None or visible.outcome(plan.parent) is None):
                raise ValueError(f"{plan} trains a candidate again whose outcome candidate {k} does not see.")
            fidelity = plan.fidelity or self.configuration.search.rungs[0]
            self._plans[k] = replace(plan, fidelity=fidelity, seeds=tuple(plan.seeds), folds=tuple(plan.folds))
        return self._plans[k]

    def parent_tree(self, plan: Plan, branch: str) -> str | None:
        """Return the text of the parent's tree, of the sum of both parents' or of a tree to start from; None if there is none."""
        start = self.configuration.evolution.start
        if plan.kinds[branch] is Kind.START:
            loss = plan.start
        elif plan.parent is not None:
            loss = self.candidates[plan.parent].loss
        elif start:
            loss = start[plan.candidate % len(start)]
        else:
            return None
        # A factor belongs to one tree; what is made of it has its own.
        factor, tree = split_factor(split_branches(loss)[branch])
        if plan.kinds[branch] is Kind.SUM and plan.partner is not None:
            other, second = split_factor(split_branches(self.candidates[plan.partner].loss)[branch])
            # The factors make the gradients equally long at the start.
            return add_texts(tree, second, other / factor)
        return tree

    def begin(self) -> Draft:
        """Return the draft of the next candidate, made when first asked for."""
        if self.draft is None:
            plan = self.plan(len(self.candidates))
            parent = None if plan.parent is None else self.candidates[plan.parent]
            self.draft = Draft(plan, parent, self.configuration, self.verdicts, self._signatures, self._choose)
        return self.draft

    def _choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Attempt]:
        # The view is made here: a draft may begin before all is there that its candidate may know.
        chosen = self._proposer.choose(plan, pools, parent, View(self._ledger, plan.candidate))
        if not isinstance(cast(Any, chosen), Mapping) or any(chosen.get(name) not in pools[name] for name in pools):
            raise ValueError(f"{chosen} is no choice of one attempt from the pool of each branch: {', '.join(pools)}.")
        return chosen

    def complete(self) -> Candidate:
        """Make the candidate of a draft without open branches, and append it."""
        candidate = self.begin().complete()
        self.draft = None
        self._append(candidate)
        return candidate

    def restore(self, candidates: Iterable[Candidate], trainings: Mapping[int, Mapping[Training, Outcome]]) -> None:
        """Bring back what a store holds: candidates in order, and the trainings of each that have ended."""
        for candidate in candidates:
            for branch, verdicts in self.verdicts.items():
                verdicts.record_all(candidate.rejected.get(branch, b""), False)
                verdicts.record_all(candidate.accepted.get(branch, b""), True)
            self._append(candidate)
            for training, outcome in trainings.get(candidate.id, {}).items():
                self.collect(candidate.id, training, outcome)

    def _append(self, candidate: Candidate) -> None:
        self._ledger.add(candidate)
        self._plans.pop(candidate.id, None)
        self.totals.update(candidate.counts)
        self._idle = 0 if candidate.origin is Origin.TRAINED else self._idle + 1
        if candidate.source is None:
            self._signatures.record(candidate.id, write_key(candidate.signature, candidate))
            self._trainings[candidate.id] = dict.fromkeys(self._list_trainings(candidate))
        elif candidate.source in self.outcomes:
            self._assign(candidate.id, self.outcomes[candidate.source])
        else:
            self._twins[candidate.source].append(candidate.id)

    def _list_trainings(self, candidate: Candidate) -> list[Training]:
        return [
            make_training(self.configuration, candidate.fidelity, number, fold)
            for number in candidate.seeds
            for fold in candidate.folds
        ]

    def collect(self, k: int, training: Training, outcome: Outcome) -> None:
        """Keep the outcome of one training of candidate k, and record that of the candidate with the last."""
        self._trainings[k][training] = outcome
        outcomes = list(filter(None, self._trainings[k].values()))
        if len(outcomes) == len(self._trainings[k]):
            self.tell(k, Outcome.pool(outcomes))

    def tell(self, k: int, outcome: Outcome) -> None:
        """Record the outcome of the trainings of candidate k, for the candidate and for its twins."""
        del self._trainings[k]
        self.trainings[self.candidates[k].fidelity] += outcome.count
        diverged = outcome.state is State.DIVERGED
        if outcome.state is State.SCORED or (diverged and self.configuration.limits.charge_diverged):
            self.charged += outcome.fidelity * outcome.count
        for told in (k, *self._twins.pop(k, ())):
            self._assign(told, outcome)

    def _assign(self, k: int, outcome: Outcome) -> None:
        # No decision reads a curve; the store keeps it, and ten thousand of them would fill a driver's memory.
        outcome = replace(outcome, curve=())
        self._ledger.tell(k, outcome)
        individual = Individual(self.candidates[k], outcome)
        if self.best is not None and self._ledger.again.get(self.best.id) == k:
            # What was the best is known better now.
            others = (Individual(self.candidates[one], found) for one, found in self.outcomes.items())
            scored = (one for one in others if one.outcome.score is not None and one.id not in self._ledger.again)
            self.best = max(scored, key=lambda one: one.rank, default=None)
        elif outcome.score is not None and (self.best is None or individual.rank > self.best.rank):
            self.best = individual
