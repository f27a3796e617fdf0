"""Section 3.2, Evolution: K candidates from nothing, then offspring of parents that an archive draws."""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.proposing.archive import Archive
from autoloss.proposing.mutation import Kind, draw_kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.view import View
from autoloss.settings import Configuration

PARTNERS = 5
"""Draws of a second parent, of which one has to be another loss than the first."""


class Evolution(Proposer):
    """Draws a parent from an archive and, for each branch, whether it is copied, fresh or mutated, or a small step from it.

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
        is_bred = k >= self._settings.initial
        parent = self._archive.draw_parent(visible, visible.generator("parent")) if is_bred else None
        if parent is None:
            return Plan(k, None, dict.fromkeys(visible.branches, Kind.FRESH))
        kinds = self._draw_kinds(visible)
        partner = self._draw_partner(visible, parent) if Kind.SUM in kinds.values() else None
        if partner is None:
            kinds = {branch: Kind.MUTATION if kind is Kind.SUM else kind for branch, kind in kinds.items()}
        return Plan(k, parent, kinds, partner=partner)

    def _draw_partner(self, visible: View, parent: int) -> int | None:
        """Draw a second parent that is another loss; None where a few draws find none."""
        drawn = (self._archive.draw_parent(visible, visible.generator("partner", number)) for number in range(PARTNERS))
        loss = visible.candidate(parent).loss
        return next((k for k in drawn if k is not None and visible.candidate(k).loss != loss), None)

    def _draw_kinds(self, visible: View) -> Mapping[str, Kind]:
        every = visible.branches
        changed = (visible.generator("branch").choice(every),) if self._settings.one_branch else every
        return {
            branch: draw_kind(self._offspring, visible.generator("kind", branch)) if branch in changed else Kind.COPY
            for branch in visible.branches
        }
