"""The next candidate while its branches are decided: one attempt after the other, in the order of their numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoloss.errors import RunError
from autoloss.rejection.reasons import Reason
from autoloss.search.attempts import resolve_kind
from autoloss.search.chance import derive_seed
from autoloss.search.equivalence import SignatureIndex, VerdictCache
from autoloss.search.jobs import Attempt
from autoloss.search.proposer import Plan
from autoloss.search.records import Candidate, Origin
from autoloss.settings import Configuration
from autoloss.space.loss_text import add_factor, join_branches, split_branches

SAMPLED_REJECTIONS = 1_000
"""One rejected attempt in this many is stored with its formula."""


class Draft:
    """A candidate in the making: what was tried at its branches, and which attempts won.

    Args:
        parent: The plan's parent; None for a candidate drawn from nothing.
        verdicts: Branch → the verdicts known so far; those of this candidate's attempts are added.
        signatures: Of the earlier candidates.
    """

    def __init__(
        self,
        plan: Plan,
        parent: Candidate | None,
        configuration: Configuration,
        verdicts: Mapping[str, VerdictCache],
        signatures: SignatureIndex,
    ) -> None:
        self.plan = plan
        self.winners: dict[str, Attempt] = {}
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

    @property
    def open(self) -> list[str]:
        """The branches that still lack a tree, in the task's order."""
        return [branch for branch in self.plan.drawn if branch not in self.winners]

    def decide(self, branch: str, attempt: Attempt) -> None:
        """Accept or reject the next attempt at an open branch.

        Raises:
            RunError: The attempts at this branch are used up.
            LookupError: The attempt needs the protocol's verdict and was not simulated.
        """
        if attempt.number != self.tried[branch]:
            raise ValueError(f"Attempt {attempt.number} at {branch} was given; attempt {self.tried[branch]} is next.")
        reason, attempt = self._judge(branch, attempt)
        self.tried[branch] += 1
        self.counts["sampled"] += 1
        if reason is None:
            self.winners[branch] = attempt
            self.counts["passed"] += 1
            return
        self.counts[reason.name] += 1
        seed = derive_seed(self._configuration.seed, "keep", self.plan.candidate, branch, attempt.number)
        if seed % SAMPLED_REJECTIONS == 0:
            self.rejected_formulas[branch, attempt.number] = (attempt.formula, reason.name)
        if self.tried[branch] >= self._configuration.evolution.attempts:
            raise RunError(_describe_exhaustion(branch, self.counts))

    def settle(self, branch: str, attempt: Attempt) -> Reason | None:
        """Take the attempt that is recorded as the winner of a branch; those before it are not looked at.

        Returns:
            The reason for which it cannot have won, or None.
        """
        if self._is_known_to_diverge(branch, attempt):
            return Reason.KNOWN_DIVERGED
        self.tried[branch] = attempt.number + 1
        self.counts["sampled"] += attempt.number + 1
        self.counts["passed"] += 1
        self.winners[branch] = attempt
        return None

    def complete(self) -> Candidate:
        """Return the candidate; no branch may be open any more."""
        plan = self.plan
        trees = {} if self._parent is None else split_branches(self._parent.loss)
        trees.update({branch: add_factor(winner.formula, winner.factor) for branch, winner in self.winners.items()})
        attempts = {branch: self.winners[branch].number if branch in self.winners else None for branch in plan.kinds}
        signature = self._signature(self.winners)
        if not self.winners and not plan.promotes:
            origin, source = Origin.COPIED, plan.parent
        else:
            source = self._signatures.find_twin(plan.candidate, write_key(signature, plan.fidelity))
            origin = Origin.TRAINED if source is None else Origin.TWIN
        return Candidate(
            id=plan.candidate,
            parent=plan.parent,
            kinds={branch: resolve_kind(kind, attempts[branch]).value for branch, kind in plan.kinds.items()},
            attempts=attempts,
            loss=join_branches({branch: trees[branch] for branch in plan.kinds}),
            origin=origin,
            source=source,
            signature=signature,
            scores={
                branch: (winner.score, *winner.gains)
                for branch, winner in self.winners.items()
                if winner.simulated and winner.score is not None
            },
            counts=self.counts,
            rejected={branch: bytes(keys) for branch, keys in self.rejected.items()},
            accepted={branch: bytes(keys) for branch, keys in self.accepted.items()},
            fidelity=plan.fidelity,
        )

    def _judge(self, branch: str, attempt: Attempt) -> tuple[Reason | None, Attempt]:
        """Return why an attempt goes no further, or None when it wins its branch; and what it counts as."""
        if not attempt.key:
            return Reason[attempt.reason or ""], attempt
        verdicts = self._verdicts[branch]
        if attempt.key in verdicts:
            self.counts["reused"] += 1
            # A worker may have simulated it all the same; what it found must not depend on that.
            attempt = replace(attempt, simulated=False)
            reason = None if verdicts[attempt.key] else Reason.KNOWN_KEY
        elif not attempt.simulated:
            raise LookupError(f"Attempt {attempt.number} at {branch} was not simulated, and its key is unknown.")
        else:
            reason = Reason[attempt.reason] if attempt.reason else None
            verdicts.record(attempt.key, reason is None)
            (self.accepted if reason is None else self.rejected)[branch].extend(attempt.key)
            self.counts["simulated"] += 1
        if reason is None and self._is_known_to_diverge(branch, attempt):
            reason = Reason.KNOWN_DIVERGED
        return reason, attempt

    def _is_known_to_diverge(self, branch: str, attempt: Attempt) -> bool:
        """Say whether an attempt completes a loss that diverged in an earlier training."""
        if self.open != [branch]:
            return False
        signature = write_key(self._signature({**self.winners, branch: attempt}), self.plan.fidelity)
        return self._signatures.is_known_to_diverge(self.plan.candidate, signature)

    def _signature(self, winners: Mapping[str, Attempt]) -> dict[str, tuple[str, ...]]:
        signature = {} if self._parent is None else dict(self._parent.signature)
        signature.update({branch: winner.signature for branch, winner in winners.items()})
        return {branch: signature[branch] for branch in self.plan.kinds}


def write_key(signature: Mapping[str, Sequence[str]], fidelity: float) -> str:
    """Write the signatures of all branches, and the share of the schedule, as the one text under which a loss is found again."""
    return f"{fidelity} {join_branches({branch: ' '.join(norms) for branch, norms in signature.items()})}"


def _describe_exhaustion(branch: str, counts: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{counts[reason.name]} {reason.value}" for reason in Reason if counts.get(reason.name))
    return (
        f"Of {counts['sampled']} losses drawn for the branch {branch!r} none passed the rejection protocol "
        f"({counts.get('simulated', 0)} simulated): {reasons}. Look at what `autoloss check` says of the task, lower "
        "rejection.threshold, choose rejection.unit=relative, or raise rejection.learning_rate."
    )
