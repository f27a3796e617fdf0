"""The ways to search, by the name that the setting `search.proposer` takes, and objects in their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autoloss.errors import RequestError, unknown
from autoloss.proposing.evolution import AgeingPopulation, Archive, Evolution, Guided
from autoloss.proposing.memory import Memory
from autoloss.proposing.mutation import Kind
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


class Promotion(Proposer):
    """Plans a promotion where one is due, and asks another proposer for all other candidates.

    Successive halving in the asynchronous form of ASHA (Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys
    2020), with one difference: ASHA promotes by what has arrived, here a promotion follows from the outcomes that candidate k sees.

    Of the candidates that were trained and have a score at a rung, the share `search.promote` is trained at the next, the best
    first. Twins and copies are the same loss, and not promoted beside it. A promotion is a candidate of its own, whose parent is
    the one that is promoted; the larger share is looked at first. Before others, the losses that the search started from are
    trained whole, as far as `search.promote_start` allows, the first one when all have been planned: a known loss is not given up
    because it learns slowly, and a search that is stopped early has one.
    """

    def __init__(self, proposer: Proposer, configuration: Configuration) -> None:
        self._proposer = proposer
        self._rungs = configuration.search.rungs
        self.choose = proposer.choose
        evolution = configuration.evolution
        # Promotions begin after the known losses, or after all that are drawn from nothing.
        has_known = evolution.start and configuration.search.promote_start
        self._first = len(evolution.start) if has_known else evolution.initial

    def needs_outcomes(self, k: int) -> bool:
        return k >= self._first or self._proposer.needs_outcomes(k)

    def ask(self, k: int, visible: View) -> Plan:
        decisions = visible.memo(self, lambda: _Decisions(visible.configuration, self._first))
        if k < self._first or (promotion := decisions.find(visible)) is None:
            return self._proposer.ask(k, visible)
        parent, rung = promotion
        return Plan(k, parent, dict.fromkeys(visible.branches, Kind.PROMOTION), self._rungs[rung])


class _Decisions:
    """The promotions that the first candidates of a run make, none before candidate `first`."""

    def __init__(self, configuration: Configuration, first: int) -> None:
        self._configuration = configuration
        self._rungs = configuration.search.rungs
        self._first = first
        self._decided: list[tuple[int, int] | None] = []
        """Candidate → (the one that it promotes, to which rung), None for others."""
        self._waiting: list[dict[int, float]] = [{} for _ in self._rungs]
        """For each rung, candidate → value (`View.value`) of those that are not promoted."""
        self._started: dict[int, float] = {}
        """Losses that the search started from and that are not promoted → score."""
        self._wholes = 0
        """Number of these that are promoted."""
        self._spent = 0.0
        """Training equivalents of all trainings that were seen."""
        self._scored = [0] * len(self._rungs)
        self._promoted = [0] * len(self._rungs)
        self._lags = (configuration.evolution.lag, max(configuration.evolution.lag, configuration.search.promoted_lag))

    def find(self, visible: View) -> tuple[int, int] | None:
        """Return what a candidate promotes; those before it are decided first, also where a resumed run never asks for them."""
        while (k := len(self._decided)) <= visible.k:
            for lag, promoted in zip(self._lags, (False, True), strict=True):
                seen = k - lag
                if seen >= 0 and (visible.candidate(seen).fidelity != self._rungs[0]) == promoted:
                    self._see(visible, seen)
            self._decided.append(None if k < self._first else self._decide())
        return self._decided[visible.k]

    def _see(self, visible: View, k: int) -> None:
        outcome = visible.outcome(k)
        # Twins and copies are the same loss, and not promoted beside it.
        if outcome is None or outcome.score is None or visible.candidate(k).source is not None:
            return
        self._spent += outcome.fidelity
        if outcome.fidelity in self._rungs:
            rung = self._rungs.index(outcome.fidelity)
            self._scored[rung] += 1
            self._waiting[rung][k] = visible.value(k)
            is_known = Kind.START.value in visible.candidate(k).kinds.values()
            if rung == 0 and is_known and self._configuration.search.promote_start:
                self._started[k] = outcome.score

    def _decide(self) -> tuple[int, int] | None:
        """Return what a candidate promotes, to which rung, or None where no promotion is due."""
        if self._started and self._wholes <= self._configuration.search.promote_start * self._spent:
            best = max(self._started, key=lambda one: (self._started[one], -one))
            self._wholes += 1
            del self._started[best]
            if self._waiting[0].pop(best, None) is not None:
                return best, len(self._rungs) - 1
        for rung in reversed(range(len(self._rungs) - 1)):
            waiting = self._waiting[rung]
            if self._promoted[rung] + 1 <= self._configuration.search.promote * self._scored[rung] and waiting:
                self._promoted[rung] += 1
                best = max(waiting, key=lambda one: (waiting[one], -one))
                del waiting[best]
                return best, rung + 1
        return None


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
