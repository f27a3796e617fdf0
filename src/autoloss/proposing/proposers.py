"""The ways to search, by the name that the setting `search.proposer` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoloss.errors import unknown
from autoloss.proposing.evolution import make_evolution
from autoloss.proposing.guided import Guided
from autoloss.proposing.promotion import Promotion
from autoloss.proposing.proposer import Proposer
from autoloss.proposing.random_search import RandomSearch
from autoloss.settings import Configuration

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
