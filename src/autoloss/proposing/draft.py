"""The next candidate while its branches are decided: one attempt after the other, in the order of their numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from autoloss.errors import RunError
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.equivalence import SignatureIndex, VerdictCache
from autoloss.proposing.mutation import resolve_kind
from autoloss.proposing.proposer import Plan
from autoloss.proposing.records import Attempt, Candidate, Origin
from autoloss.rejection.reasons import Reason
from autoloss.settings import Configuration
from autoloss.space.loss_text import add_factor, join_branches, split_branches

Choose = Callable[[Plan, Mapping[str, Sequence[Attempt]], Mapping[str, Sequence[str]]], Mapping[str, Attempt]]
"""`Proposer.choose`."""
SAMPLED_REJECTIONS = 1_000
"""One rejected attempt in this many is stored with its formula."""


class Draft:
    """A candidate in the making: what was tried at its branches, and which attempts passed.

    Args:
        parent: The plan's parent; None for a candidate drawn from nothing.
        verdicts: Branch → the verdicts known so far; those of this candidate's attempts are added.
        signatures: Of the earlier candidates.
        choose: Chooses among the attempts that passed, where the plan asks for several.
    """

    def __init__(
        self,
        plan: Plan,
        parent: Candidate | None,
        configuration: Configuration,
        verdicts: Mapping[str, VerdictCache],
        signatures: SignatureIndex,
        choose: Choose,
    ) -> None:
        self.plan = plan
        self.passed: defaultdict[str, list[Attempt]] = defaultdict(list)
        """Branch → the attempts that passed, in the order of their numbers."""
        self.tried: Counter[str] = Counter()
        """Branch → number of attempts decided."""
        self.counts: Counter[str] = Counter()
        self.rejected: defaultdict[str, bytearray] = defaultdict(bytearray)
        self.accepted: defaultdict[str, bytearray] = defaultdict(bytearray)
        self.rejected_formulas: dict[tuple[str, int], tuple[str, str]] = {}
        """The stored sample: (branch, attempt) → (formula, name of the reason)."""
        self._parent = parent
        self._configuration = configuration
        self._verdicts = verdicts
        self._signatures = signatures
        self._choose = choose

    @property
    def open(self) -> list[str]:
        """The branches that still lack attempts that pass, in the task's order."""
        return [branch for branch in self.plan.drawn if self.is_open(branch)]

    def is_open(self, branch: str) -> bool:
        """Return True if a branch needs more attempts that pass."""
        return len(self.passed[branch]) < self.plan.pool

    def decide(self, branch: str, attempt: Attempt) -> None:
        """Accept or reject the next attempt at an open branch.

        Raises:
            RunError: The attempts at this branch are used up.
            LookupError: The attempt needs the protocol's verdict and was not simulated.
        """
        reason, attempt = self._judge(branch, attempt)
        self.tried[branch] += 1
        self.counts["sampled"] += 1
        if reason is None:
            self.passed[branch].append(attempt)
            self.counts["passed"] += 1
            return
        self.counts[reason.name] += 1
        seed = derive_seed(self._configuration.seed, "keep", self.plan.candidate, branch, attempt.number)
        if seed % SAMPLED_REJECTIONS == 0:
            self.rejected_formulas[branch, attempt.number] = (attempt.formula, reason.name)
        if self.tried[branch] >= self._configuration.evolution.attempts:
            reasons = (f"{self.counts[one.name]} {one.value}" for one in Reason if self.counts[one.name])
            raise RunError(
                f"Of {self.counts['sampled']} losses drawn for the branch {branch!r} none passed the rejection protocol "
                f"({self.counts['simulated']} simulated): {', '.join(reasons)}. Run `autoloss check`, lower "
                "rejection.threshold, choose rejection.unit=relative, or raise rejection.learning_rate."
            )

    def settle(self, branch: str, attempts: Sequence[Attempt]) -> Reason | None:
        """Take the attempts that are recorded as those that passed at a branch; the others are not looked at.

        Returns:
            The reason for which one cannot have passed, or None.
        """
        if any(self._is_known_to_diverge(branch, attempt) for attempt in attempts):
            return Reason.KNOWN_DIVERGED
        self.tried[branch] = attempts[-1].number + 1
        self.counts["sampled"] += attempts[-1].number + 1
        self.counts["passed"] += len(attempts)
        self.passed[branch].extend(attempts)
        return None

    def resolve_kinds(self, attempts: Mapping[str, int | None]) -> dict[str, str]:
        """Return branch → how the attempt that is chosen there was made; None stands for a copied branch."""
        settings = self._configuration.evolution
        has_parent = self._parent is not None or bool(settings.start)
        return {
            branch: resolve_kind(kind, attempts.get(branch), settings, has_parent=has_parent).value
            for branch, kind in self.plan.kinds.items()
        }

    def complete(self) -> Candidate:
        """Return the candidate; no branch may be open any more."""
        plan = self.plan
        winners = self._choose_winners()
        trees = {} if self._parent is None else split_branches(self._parent.loss)
        trees.update({branch: add_factor(winner.formula, winner.factor) for branch, winner in winners.items()})
        attempts = {branch: winners[branch].number if branch in winners else None for branch in plan.kinds}
        signature = self._signature(winners)
        if not winners and not plan.promotes:
            origin, source = Origin.COPIED, plan.parent
        else:
            source = self._signatures.find_twin(plan.candidate, write_key(signature, plan))
            origin = Origin.TRAINED if source is None else Origin.TWIN
        return Candidate(
            id=plan.candidate,
            parent=plan.parent,
            kinds=self.resolve_kinds(attempts),
            attempts=attempts,
            loss=join_branches({branch: trees[branch] for branch in plan.kinds}),
            origin=origin,
            source=source,
            signature=signature,
            scores={
                branch: (winner.score, *winner.gains)
                for branch, winner in winners.items()
                if winner.simulated and winner.score is not None
            },
            counts=self.counts,
            rejected={branch: bytes(keys) for branch, keys in self.rejected.items()},
            accepted={branch: bytes(keys) for branch, keys in self.accepted.items()},
            fidelity=plan.fidelity,
            seeds=tuple(plan.seeds),
            folds=tuple(plan.folds),
            pool={
                branch: tuple((attempt.number, attempt.signature) for attempt in attempts)
                for branch, attempts in self.passed.items()
                if plan.pool != 1
            },
        )

    def _choose_winners(self) -> Mapping[str, Attempt]:
        pools = {branch: self.passed[branch] for branch in self.plan.drawn}
        if self.plan.pool == 1:
            return {branch: pool[0] for branch, pool in pools.items()}
        if len(pools) == 1:
            pools = {branch: self._leave_out_twins(branch, pool) for branch, pool in pools.items()}
        return self._choose(self.plan, pools, {} if self._parent is None else self._parent.signature)

    def _leave_out_twins(self, branch: str, pool: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts whose loss was not trained before, or all if none is new."""
        plan, find = self.plan, self._signatures.find_twin
        keys = [write_key(self._signature({branch: attempt}), plan) for attempt in pool]
        return [one for one, key in zip(pool, keys, strict=True) if find(plan.candidate, key) is None] or pool

    def _judge(self, branch: str, attempt: Attempt) -> tuple[Reason | None, Attempt]:
        """Return why an attempt goes no further, or None when it passes; and what it counts as."""
        if not attempt.key:
            return Reason[attempt.reason or ""], attempt
        verdicts = self._verdicts[branch]
        if attempt.key in verdicts:
            self.counts["reused"] += 1
            # A worker may have simulated it all the same; what it found must not depend on that.
            attempt = attempt._replace(simulated=False)
            reason = None if verdicts[attempt.key] else Reason.KNOWN_KEY
        elif not attempt.simulated:
            raise LookupError(f"Attempt {attempt.number} at {branch} was not simulated, and its key is unknown.")
        else:
            reason = Reason[attempt.reason] if attempt.reason else None
            verdicts[attempt.key] = reason is None
            (self.accepted if reason is None else self.rejected)[branch].extend(attempt.key)
            self.counts["simulated"] += 1
        if reason is None and self._is_known_to_diverge(branch, attempt):
            reason = Reason.KNOWN_DIVERGED
        return reason, attempt

    def _is_known_to_diverge(self, branch: str, attempt: Attempt) -> bool:
        """Return True if an attempt completes a loss that diverged in an earlier training."""
        if self.open != [branch]:
            return False
        others = {other: passed[0] for other, passed in self.passed.items() if passed}
        signature = write_key(self._signature({**others, branch: attempt}), self.plan)
        return self._signatures.is_known_to_diverge(self.plan.candidate, signature)

    def _signature(self, winners: Mapping[str, Attempt]) -> dict[str, tuple[str, ...]]:
        signature = {} if self._parent is None else dict(self._parent.signature)
        signature.update({branch: winner.signature for branch, winner in winners.items()})
        return {branch: signature[branch] for branch in self.plan.kinds}


def write_key(signature: Mapping[str, Sequence[str]], trained: Plan | Candidate) -> str:
    """Write the signatures of all branches, and how a candidate is trained, as the one text under which a loss is found again."""
    loss = join_branches({branch: " ".join(norms) for branch, norms in signature.items()})
    return f"{trained.fidelity} {trained.seeds} {trained.folds} {loss}"
