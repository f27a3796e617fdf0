"""Section 3.2, Evolution: K candidates from nothing, then offspring of parents that an archive draws."""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.proposing.archive import Archive
from autoloss.proposing.mutation import Kind, draw_kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.view import View
from autoloss.settings import Configuration


class Evolution(Proposer):
    """Draws a parent from an archive and, for each branch, whether it is copied, fresh or mutated.

    Args:
        archive: Where parents are found; the paper's is `AgeingPopulation`.
    """

    def __init__(self, archive: Archive, configuration: Configuration) -> None:
        self._archive = archive
        self._settings = configuration.evolution
        self._offspring = configuration.offspring

    def needs_outcomes(self, k: int) -> bool:
        return k >= self._settings.initial

    def ask(self, k: int, visible: View) -> Plan:
        parent = None
        if k >= self._settings.initial:
            parent = self._archive.draw_parent(visible, visible.generator("parent"))
        kinds = dict.fromkeys(visible.branches, Kind.FRESH) if parent is None else self._draw_kinds(visible)
        return Plan(k, parent, kinds)

    def _draw_kinds(self, visible: View) -> Mapping[str, Kind]:
        changed = visible.branches
        if self._settings.one_branch:
            changed = (visible.generator("branch").choice(visible.branches),)
        return {
            branch: draw_kind(self._offspring, visible.generator("kind", branch)) if branch in changed else Kind.COPY
            for branch in visible.branches
        }
