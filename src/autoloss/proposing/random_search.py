"""Random search: every candidate is drawn from nothing, under the same rejection protocol; the control of every experiment."""

from __future__ import annotations

from collections.abc import Sequence

from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Outcome
from autoloss.settings import Configuration


class RandomSearch(Proposer):
    """Learns nothing from outcomes, so every candidate is plannable at once."""

    def __init__(self, branches: Sequence[str], configuration: Configuration) -> None:
        self._branches = tuple(branches)
        self._fidelity = configuration.search.rungs[0]

    def plannable(self, k: int) -> bool:
        return True

    def ask(self, k: int) -> Plan:
        return Plan(k, None, dict.fromkeys(self._branches, Kind.FRESH), self._fidelity)

    def tell(self, k: int, outcome: Outcome) -> None:
        pass
