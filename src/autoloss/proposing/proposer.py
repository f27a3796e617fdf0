"""The way in which each candidate of a search is made: the seam at which other ways to search plug in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoloss.options import Count, Natural, Share
from autoloss.proposing.mutation import Kind
from autoloss.proposing.records import Attempt
from autoloss.proposing.view import View


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided about a candidate before its first attempt is drawn.

    Whatever else is to be decided per candidate becomes a field here, so that it follows from the same outcomes.

    Args:
        candidate: Its index k.
        parent: Index of the parent, or None for a candidate drawn from nothing.
        kinds: Branch → kind of change, for every branch in the task's order.
        fidelity: Share of the schedule that it is trained at; 0 stands for the first of `search.rungs`.
        pool: Number of attempts that pass at each branch, among which the proposer chooses.
        start: Text of the loss that branches of the kind `START` begin with.
        partner: Index of the second parent, for branches of the kind `SUM`.
        seeds: Numbers of the training seeds; 0 is the one that all candidates share by default.
        folds: Folds of the data. The candidate is trained once for each pair of seed and fold, and has the mean of the scores.
    """

    candidate: Natural
    parent: Natural | None
    kinds: Mapping[str, Kind]
    fidelity: Share = 0.0
    pool: Count = 1
    start: str = ""
    partner: Natural | None = None
    seeds: Sequence[Natural] = (0,)
    folds: Sequence[Natural] = (0,)

    @property
    def drawn(self) -> list[str]:
        """The branches for which trees are drawn and tested; the others are copied from the parent."""
        return [branch for branch, kind in self.kinds.items() if kind not in (Kind.COPY, Kind.PROMOTION)]

    @property
    def promotes(self) -> bool:
        """True if it is the parent itself, trained at a larger share, or again at the same with other seeds or folds."""
        return Kind.PROMOTION in self.kinds.values()


class Proposer(ABC):
    """Plans the candidates k = 0, 1, 2, … of a search from the outcomes of earlier ones.

    The history of a run is the only caller. It calls

    - `needs_outcomes(k)`, any number of times;
    - `ask(k, visible)` for the next candidate and for up to `evolution.lag` after it, once all that candidate k may know is there;
      earlier, and with an empty view, where the plan needs no outcomes. It may ask again, or never: a resumed run does not ask for
      the candidates that it has;
    - `choose(plan, pools, parent, visible)` once for a plan whose `pool` is above 1, when so many attempts have passed at each
      branch.

    What an implementation guarantees, and `tests/proposing/conformance.py` checks:

    - `ask` and `choose` are functions of their arguments alone. `visible` holds what candidate k may know: the candidates up to
      k − lag with their outcomes, the settings, the branches. So a run has one history for any number of workers and after a kill.
    - What is kept between calls, for speed, is a memo of the view (`View.memo`).
    - No I/O, no clock, no generator that outlives a call: every draw comes from `visible.generator(purpose, …)`.
    - A plan names every branch, in the task's order. Its parent is one of the visible candidates, or None; then no branch is
      copied or mutated.
    - A proposer plans at the first of `search.rungs`; where there are several, the best of its candidates are trained at the others
      by `Promotion`, which wraps it. Losses to start from come before the candidates of any proposer.

    An object is handed to `search`, and to `resume` and `replay` of that run again. A proposer that comes with autoloss is a row of
    `proposers.PROPOSERS`.

    >>> import autoloss
    >>> class Climb(autoloss.Proposer):
    ...     def ask(self, k, visible):
    ...         scored = visible.scored(fidelity=1.0)
    ...         best = max(scored, key=lambda earlier: visible.outcome(earlier).score, default=None)
    ...         kind = autoloss.Kind.FRESH if best is None else autoloss.Kind.MUTATION
    ...         return autoloss.Plan(k, best, dict.fromkeys(visible.branches, kind))
    >>> task = autoloss.tasks.get("tabular", data="iris", steps=20)
    >>> quick = {"rejection.engine": "reference", "rejection.steps": 20, "rejection.threshold": 0.01, "search.rungs": "1"}
    >>> found = autoloss.search(task, evaluations=2, workers=0, final=False, settings=quick, proposer=Climb())
    >>> found.configuration.search.proposer
    'object Climb'
    """

    def needs_outcomes(self, k: int) -> bool:
        """Return True if the plan of candidate k depends on outcomes, as by default; other candidates are planned immediately."""
        return True

    @abstractmethod
    def ask(self, k: int, visible: View) -> Plan:
        """Return the plan of candidate k."""

    def choose(
        self, plan: Plan, pools: Mapping[str, Sequence[Attempt]], parent: Mapping[str, Sequence[str]], visible: View
    ) -> Mapping[str, Attempt]:
        """Return one attempt for each branch, by default the first.

        Args:
            pools: Branch → attempts that passed, in the order of their numbers; at least one. Of losses that were trained before
                there is none, unless all were.
            parent: Signature of the parent, by branch.
        """
        return {branch: pool[0] for branch, pool in pools.items()}
