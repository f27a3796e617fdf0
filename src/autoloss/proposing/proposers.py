"""The ways to search, by the name that the setting `search.proposer` takes, and objects in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoloss.errors import RequestError, unknown
from autoloss.proposing.archive import AgeingPopulation, Archive
from autoloss.proposing.evolution import Evolution
from autoloss.proposing.guided import Guided
from autoloss.proposing.memory import Memory
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


PROPOSERS: dict[str, Callable[[Archive, Configuration, Memory | None], Proposer]] = {
    "evolution": lambda archive, configuration, memory: Evolution(archive, configuration),
    "guided": Guided,
    "random": lambda archive, configuration, memory: RandomSearch(),
}
"""Name → what makes a proposer from an archive of parents, the settings of the run and its memory."""

_OWN, _WITH = "object ", " with object "


def name_proposer(name: str, proposer: Proposer | None, archive: Archive | None) -> str:
    """Return the name under which a run keeps its proposer: the setting, with the classes of the objects that replace it.

    Raises:
        RequestError: An archive is given beside a proposer.

    >>> name_proposer("evolution", RandomSearch(), None)
    'object RandomSearch'
    """
    if proposer is not None and archive is not None:
        raise RequestError("Found an archive and a proposer. Pass the archive to the proposer.", argument="archive")
    if proposer is not None:
        return _OWN + type(proposer).__name__
    return name if archive is None else name.partition(_WITH)[0] + _WITH + type(archive).__name__


def check_proposer(configuration: Configuration, proposer: Proposer | None, archive: Archive | None) -> None:
    """Refuse a proposer or an archive that is not the one that `search.proposer` names."""
    search = configuration.search
    given = name_proposer(search.proposer, proposer, archive)
    name, own_archive, _ = search.proposer.partition(_WITH)
    if given != search.proposer or (name.startswith(_OWN) and proposer is None) or (own_archive and archive is None):
        raise RequestError(
            f"The run's proposer is {search.proposer!r}; {given!r} is another, or the object is missing. Give the object that the "
            "run was started with, as `proposer` or `archive`.",
            argument="proposer",
        )
    if proposer is None and name not in PROPOSERS:
        raise unknown("proposer", name, PROPOSERS)


def make_proposer(
    configuration: Configuration,
    proposer: Proposer | None = None,
    archive: Archive | None = None,
    memory: Memory | None = None,
) -> Proposer:
    """Make the proposer of a run, which also promotes and plans the losses to start from.

    Args:
        proposer: In the place of the one that `search.proposer` names.
        archive: In the place of the ageing population.
        memory: Of the run (`recall`).
    """
    check_proposer(configuration, proposer, archive)
    if proposer is None:
        make = PROPOSERS[configuration.search.proposer.partition(_WITH)[0]]
        proposer = make(archive or AgeingPopulation.of(configuration), configuration, memory)
    if len(configuration.search.rungs) > 1:
        proposer = Promotion(proposer, configuration)
    return Starting(proposer, configuration.evolution.start)
