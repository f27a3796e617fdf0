"""The lineage of a loss: its ancestors, how each was made, and its counterparts at other shares of the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autoloss.numbers import figure
from autoloss.proposing.records import PROMOTED, Candidate
from autoloss.report.shares import at_share, write_share
from autoloss.run.results import Search


@dataclass(frozen=True, slots=True)
class Step:
    """A loss, or one of its ancestors.

    Args:
        score: Score of the training at `candidate.fidelity`.
        how: Branch → the origin of its tree: copied, fresh, promoted, mutated and so on.
    """

    candidate: Candidate
    score: float | None
    how: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The same loss as another candidate, at another share of the schedule; no score if it is in training or failed."""

    id: int
    fidelity: float
    score: float | None

    def __str__(self) -> str:
        """Write number, score and share.

        >>> str(Counterpart(3, 0.125, 0.8))
        '#3, score 0.8000 at 1/8'
        """
        score = "no score" if self.score is None else f"score {figure(self.score)}"
        return f"#{self.id}, {score} {at_share(self.fidelity)}"


def find_promotion_source(search: Search, number: int) -> Counterpart | None:
    """Return the candidate that was promoted to this one, or None."""
    ((candidate, _), *_) = search.reader.lineage(number)
    parent = [candidate.parent] if candidate.promoted and candidate.parent is not None else []
    return _find_counterpart(search.reader.losses(parent))


def find_promotion_target(search: Search, number: int) -> Counterpart | None:
    """Return the candidate that a loss was promoted to, or None."""
    return _find_counterpart(row for row in search.reader.offspring(number) if row["promoted"])


def _find_counterpart(rows: Iterable[Mapping[str, Any]]) -> Counterpart | None:
    return next((Counterpart(row["id"], row["fidelity"], row["score"]) for row in rows), None)


def lineage(search: Search, number: int) -> list[Step]:
    """Return a loss and its ancestors, from itself to a random tree; empty if there is no such loss."""
    line = search.reader.lineage(number)
    shares = [*(f" from {write_share(parent.fidelity)}" for parent, _ in line[1:]), ""]
    return [
        Step(candidate, score, {branch: kind + share * (kind == PROMOTED) for branch, kind in candidate.kinds.items()})
        for (candidate, score), share in zip(line, shares, strict=False)
    ]
