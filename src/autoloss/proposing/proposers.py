"""The ways to search, by the name that the setting `search.proposer` takes, and objects in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoloss.errors import RequestError, unknown
from autoloss.proposing.archive import AgeingPopulation, Archive
from autoloss.proposing.evolution import Evolution
from autoloss.proposing.guided import Guided
from autoloss.proposing.mutation import Kind
from autoloss.proposing.promotion import Promotion
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.view import View
from autoloss.settings import Configuration


class RandomSearch(Proposer):
    """Draws every candidate from nothing, under the same rejection protocol: the control of every experiment."""

    def needs_outcomes(self, k: int) -> bool:
        return False

    def ask(self, k: int, visible: View) -> Plan:
        return Plan(k, None, dict.fromkeys(visible.branches, Kind.FRESH))


class Starting(Proposer):
    """Plans the losses that a search starts from, and asks another proposer for all other candidates."""

    def __init__(self, proposer: Proposer, losses: Sequence[str]) -> None:
        self._losses = losses
        self._proposer = proposer
        self.choose = proposer.choose

    def needs_outcomes(self, k: int) -> bool:
        return k >= len(self._losses) and self._proposer.needs_outcomes(k)

    def ask(self, k: int, visible: View) -> Plan:
        if k >= len(self._losses):
            return self._proposer.ask(k, visible)
        return Plan(k, None, dict.fromkeys(visible.branches, Kind.START), start=self._losses[k])


PROPOSERS: dict[str, Callable[[Archive, Configuration], Proposer]] = {
    "evolution": Evolution,
    "guided": Guided,
    "random": lambda archive, configuration: RandomSearch(),
}
"""Name → what makes a proposer from an archive of parents and the settings of the run."""


def make_proposer(
    configuration: Configuration, proposer: Proposer | None = None, archive: Archive | None = None
) -> Proposer:
    """Make the proposer of a run, which also promotes and plans the losses to start from.

    Args:
        proposer: In the place of the one that `search.proposer` names.
        archive: In the place of the ageing population.

    Raises:
        RequestError: There is no proposer of that name, or the run was started with an object that is not given.
    """
    search = configuration.search
    name, _, own_archive = search.proposer.partition(_AND)
    if own_archive and archive is None:
        raise RequestError(
            f"The run was started with an archive of its own, {own_archive}: give it again as `archive`.",
            argument="archive",
        )
    if proposer is None:
        if name not in PROPOSERS and name.isidentifier() and name[0].isupper():
            raise RequestError(
                f"The run was started with a proposer of its own, {name}: give it again as `proposer`.",
                argument="proposer",
            )
        if name not in PROPOSERS:
            raise unknown("proposer", name, PROPOSERS)
        proposer = PROPOSERS[name](archive or AgeingPopulation.of(configuration), configuration)
    if len(search.rungs) > 1:
        proposer = Promotion(proposer, configuration)
    return Starting(proposer, configuration.evolution.start)


_AND = " + "


def name_proposer(name: str, proposer: Proposer | None, archive: Archive | None) -> str:
    """Return the name under which a run keeps its proposer: the setting, with the classes of the objects that replace it.

    Raises:
        RequestError: An archive is given beside a proposer that is not handed one.
    """
    if proposer is not None and archive is not None:
        raise RequestError(
            "An archive is given beside a proposer. Hand the archive to the proposer, or give one of the two.",
            argument="archive",
        )
    if proposer is not None:
        return type(proposer).__name__
    return name.partition(_AND)[0] if archive is None else f"{name.partition(_AND)[0]}{_AND}{type(archive).__name__}"
