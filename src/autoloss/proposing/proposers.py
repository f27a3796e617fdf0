"""The ways to search, by the name that the setting `search.proposer` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoloss.errors import unknown
from autoloss.proposing.evolution import make_evolution
from autoloss.proposing.guided import Guided
from autoloss.proposing.mutation import Kind
from autoloss.proposing.promotion import Promotion
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Outcome
from autoloss.settings import Configuration


class RandomSearch(Proposer):
    """Draws every candidate from nothing, under the same rejection protocol: the control of every experiment."""

    def __init__(self, branches: Sequence[str], configuration: Configuration) -> None:
        self._branches = tuple(branches)
        self._fidelity = configuration.search.rungs[0]

    def plannable(self, k: int) -> bool:
        return True

    def ask(self, k: int) -> Plan:
        return Plan(k, None, dict.fromkeys(self._branches, Kind.FRESH), self._fidelity)

    def tell(self, k: int, outcome: Outcome) -> None:
        pass


MakeProposer = Callable[[Sequence[str], Configuration], Proposer]
"""Makes a proposer from the names of the branches, in the task's order, and the settings of the run."""

PROPOSERS: dict[str, MakeProposer] = {
    "evolution": make_evolution,
    "guided": Guided,
    "random": RandomSearch,
}


def make_proposer(branches: Sequence[str], configuration: Configuration) -> Proposer:
    """Make the proposer that the settings name; with several rungs it also promotes."""
    proposer = find_proposer(configuration.search.proposer)(branches, configuration)
    return proposer if len(configuration.search.rungs) == 1 else Promotion(proposer, branches, configuration)


def find_proposer(name: str) -> MakeProposer:
    """Return what makes the proposer of that name.

    Raises:
        RequestError: There is none.
    """
    if name not in PROPOSERS:
        raise unknown("proposer", name, PROPOSERS)
    return PROPOSERS[name]
