"""Section 3.2, Evolution: K candidates from nothing, then offspring of parents that an archive draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoloss.proposing.archive import AgeingPopulation, Archive
from autoloss.proposing.chance import derive_generator
from autoloss.proposing.correction import ScoreCorrection
from autoloss.proposing.mutation import Kind, draw_kind
from autoloss.proposing.niches import make_niches
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Candidate, Outcome
from autoloss.proposing.visibility import Visibility
from autoloss.settings import Configuration


class Evolution(Proposer):
    """Draws a parent from an archive and, for each branch, whether it is copied, fresh or mutated.

    Args:
        archive: Where parents are found.
    """

    def __init__(
        self,
        branches: Sequence[str],
        archive: Archive,
        configuration: Configuration,
    ) -> None:
        self._branches = tuple(branches)
        self._archive = archive
        self._settings = configuration.evolution
        self._offspring = configuration.offspring
        self._seed = configuration.seed
        self._fidelity = configuration.search.rungs[0]
        self._visibility = Visibility(configuration)

    def plannable(self, k: int) -> bool:
        return k < self._settings.initial or self._visibility.covers(k)

    def ask(self, k: int) -> Plan:
        parent = None
        if k >= self._settings.initial:
            parent = self._archive.draw_parent(k, derive_generator(self._seed, "parent", k))
        if parent is None:
            return Plan(k, None, dict.fromkeys(self._branches, Kind.FRESH), self._fidelity)
        return Plan(k, parent, self._draw_kinds(k), self._fidelity)

    def add(self, candidate: Candidate) -> None:
        self._visibility.add(candidate)
        self._archive.observe(candidate)

    def tell(self, k: int, outcome: Outcome) -> None:
        self._visibility.tell(k)
        self._archive.add(k, outcome)

    def _draw_kinds(self, k: int) -> Mapping[str, Kind]:
        changed = self._branches
        if self._settings.one_branch:
            changed = (derive_generator(self._seed, "branch", k).choice(self._branches),)
        return {
            branch: draw_kind(self._offspring, derive_generator(self._seed, "kind", k, branch))
            if branch in changed
            else Kind.COPY
            for branch in self._branches
        }


def make_evolution(branches: Sequence[str], configuration: Configuration) -> Evolution:
    """Return the paper's evolution: parents come from an ageing population by tournament."""
    settings, rungs = configuration.evolution, configuration.search.rungs
    archive = AgeingPopulation(
        size=settings.population,
        tournament=settings.tournament,
        lag=settings.lag,
        fidelity=rungs[0],
        correction=ScoreCorrection(branches, configuration) if len(rungs) > 1 else None,
        niches=make_niches(branches, configuration),
    )
    return Evolution(branches, archive, configuration)
