"""The rows of a run as values: how a candidate was made, and what its training came to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

REASON_CHARACTERS, NAME_CHARACTERS = 10_000, 200
"""The longest reason, and the longest name of a task, a branch or a metric, that a run keeps."""
FURTHER_METRICS = 100
"""The most metrics beside the score that a run keeps."""
PROMOTED = "promoted"
"""Kind of every branch of a candidate that is an earlier one, trained at a larger share of the schedule."""


def keep_text(text: str, characters: int) -> str:
    """Return a text as a run keeps it: what UTF-8 cannot write is escaped, and the middle of a longer one is left out.

    >>> keep_text("a" * 100, 30)
    'aaaaaaa … shortened … aaaaaaa'
    """
    # A subclass's methods are not ours.
    text = str.__str__(text)
    # What cannot be written is rare, and long texts are cut before they are copied again.
    if len(text) > characters:
        half = (characters - len(_CUT)) // 2
        text = text[:half] + _CUT + text[-half:]
    plain = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return plain if plain == text else keep_text(plain, characters)


_CUT = " … shortened … "


class State(Enum):
    """Everything an individual can come to."""

    SCORED = "scored"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    """Cut short by a rule that was fixed when the candidate was planned."""
    FAILED = "failed"
    """No fault of the loss for sure: killed three times, past its deadline, or the task's own code raised."""


class Origin(Enum):
    """Where a candidate's outcome comes from."""

    TRAINED = "trained"
    TWIN = "twin"
    """It has the signature of an earlier candidate, whose outcome it shares."""
    COPIED = "copied"
    """All its branches are its parent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """How a candidate was made; all of it follows from configuration, seed and earlier outcomes.

    Args:
        attempts: Branch → number of the attempt that passed; None for a copied branch.
        source: The candidate whose outcome it shares; None where it is trained itself.
        scores: Branch → (g, gains…) of what was simulated.
        counts: `sampled`, `simulated`, `passed`, `reused`, and rejections by the name of their reason.
        rejected: Branch → direction-aware keys of what was simulated and rejected for it, eight bytes each.
        accepted: Branch → keys of what was simulated and passed.
        fidelity: Share of the schedule that it is trained at.
        pool: Branch → number and signature of each attempt that it was chosen among, where there were several.
    """

    id: int
    parent: int | None
    kinds: Mapping[str, str]
    attempts: Mapping[str, int | None]
    loss: str
    origin: Origin
    source: int | None
    signature: Mapping[str, tuple[str, ...]]
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    counts: Mapping[str, int] = field(default_factory=Counter[str])
    rejected: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    accepted: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    fidelity: float = 1.0
    pool: Mapping[str, tuple[tuple[int, tuple[str, ...]], ...]] = field(
        default_factory=dict[str, tuple[tuple[int, tuple[str, ...]], ...]]
    )

    @property
    def promoted(self) -> bool:
        """Whether it is an earlier candidate that is trained at a larger share."""
        return PROMOTED in self.kinds.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a training came to, as plain values that can be stored.

    Args:
        score: The metric; finite when the state is `scored`, else None.
        also: Further figures by name.
        curve: (step, training loss).
        step: Where it diverged or was stopped.
        reason: Why it has no score.
        seconds: How long it took.
        fidelity: Share of the schedule that was trained.

    Raises:
        ValueError: The score does not fit the state.
    """

    state: State
    score: float | None = None
    also: Mapping[str, float] = field(default_factory=dict[str, float])
    curve: tuple[tuple[int, float], ...] = ()
    step: int | None = None
    reason: str = ""
    seconds: float = 0.0
    fidelity: float = field(default=1.0, compare=False)

    def __post_init__(self) -> None:
        if (self.state is State.SCORED) != (self.score is not None and math.isfinite(self.score)):
            raise ValueError(f"A training that is {self.state.value} cannot have the score {self.score}.")


@dataclass(frozen=True, slots=True)
class Individual:
    """A child with the outcome that is its own or shared."""

    child: Candidate
    outcome: Outcome

    @property
    def id(self) -> int:
        return self.child.id

    @property
    def score(self) -> float:
        """The proxy's metric; minus infinity where there is none."""
        return float("-inf") if self.outcome.score is None else self.outcome.score

    @property
    def rank(self) -> tuple[float, float, int]:
        """What individuals are ranked by: a score at a larger share of the schedule counts more, and of equal ones the earlier."""
        return self.outcome.fidelity, self.score, -self.id

    @property
    def formula(self) -> str:
        return self.child.loss
