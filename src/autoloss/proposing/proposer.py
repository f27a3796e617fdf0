"""What decides how each candidate of a search is made: the seam at which other ways to search plug in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoloss.proposing.jobs import Attempt
from autoloss.proposing.mutation import Kind
from autoloss.proposing.records import Candidate, Outcome


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about a candidate that is decided before its first attempt is drawn, and never again.

    Whatever else is to be decided per candidate becomes a field here, so that it follows from the same outcomes.

    Args:
        candidate: Its index k.
        parent: Index of the parent, or None for a candidate drawn from nothing.
        kinds: Branch → kind of change, for every branch in the task's order.
        fidelity: Share of the schedule that it is trained at.
        pool: Number of attempts that pass at each branch, among which the proposer chooses.
    """

    candidate: int
    parent: int | None
    kinds: Mapping[str, Kind]
    fidelity: float = 1.0
    pool: int = 1

    @property
    def drawn(self) -> list[str]:
        """The branches for which trees are drawn and tested; the others are copied from the parent."""
        return [branch for branch, kind in self.kinds.items() if kind not in (Kind.COPY, Kind.PROMOTION)]

    @property
    def promotes(self) -> bool:
        """Whether it is the parent itself, trained at a larger share."""
        return Kind.PROMOTION in self.kinds.values()


class Proposer(ABC):
    """Plans the candidates k = 0, 1, 2, … of one search from the outcomes of earlier ones.

    `History` is the only caller. It calls

    - `plannable(k)` for the next candidate and for up to `evolution.lag` after it, any number of times;
    - `ask(k)` only while `plannable(k)` is true. It may ask again, or never: a resumed run does not ask for the candidates that it
      has already, and the losses that a search starts from (`evolution.start`) are planned by the history;
    - `choose(plan, pools, parent)` once for a plan whose `pool` is above 1, when so many attempts have passed at each branch;
    - `add(candidate)` once for every candidate, in order;
    - `tell(k, outcome)` once for every candidate, those that were never asked for included. Trainings end in any order, and so do
      their outcomes arrive. A twin is told the outcome of the candidate that it equals, a copy that of its parent; a candidate that
      diverged or failed has no score.

    What an implementation guarantees, and the conformance suite checks:

    - `ask(k)` is a function of settings, seed and the outcomes of candidates 0 … k − lag, and `choose` of these, of the candidates
      and of its arguments. It does not depend on the order in which
      these were told, on what else was told, or on what was asked before.
    - `plannable(k)` is true once candidates 0 … k − lag have been told, and stays true. It is true earlier only where the plan
      needs none of the outcomes that are missing: `Visibility` knows when all but the latest promotions (`search.promoted_lag`)
      have been told, for a proposer that does not look at these.
    - A plan names every branch, in the task's order. Its parent is one of the candidates 0 … k − lag, or None; then no branch is
      copied or mutated.
    - Candidates are compared by scores at one share of the schedule (`Outcome.fidelity`). A proposer plans at the first of
      `search.rungs`; `Promotion`, which wraps any proposer, plans the others.
    - No I/O, no clock, no generator that outlives a call: every draw comes from `derive_generator(seed, purpose, k, …)`.

    To add one: a class in a file of its own, and a row in `proposers.PROPOSERS`.
    """

    @abstractmethod
    def plannable(self, k: int) -> bool:
        """Say whether candidate k can be planned with the outcomes told so far."""

    @abstractmethod
    def ask(self, k: int) -> Plan:
        """Return the plan of candidate k, which is `plannable`."""

    @abstractmethod
    def tell(self, k: int, outcome: Outcome) -> None:
        """Take in what candidate k came to."""

    def add(self, candidate: Candidate) -> None:
        """Take in how a candidate was made; by default nothing is learnt from that."""
        return

    def choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]]
    ) -> Mapping[str, Attempt]:
        """Return one attempt for each branch, by default the first.

        Args:
            pools: Branch → attempts that passed, in the order of their numbers; at least one. Of losses that were trained before
                there is none, unless all were.
            parent: Signature of the parent, by branch.
        """
        return {branch: pool[0] for branch, pool in pools.items()}
