"""The records of a run as values: how a candidate was made, the outcome of its trainings, and the jobs of workers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import fmean, stdev
from typing import NamedTuple

from autoloss.errors import keep_text
from autoloss.proposing.chance import derive_seed
from autoloss.settings import Configuration
from autoloss.training.training import Curve, Diverged, Replicates, Scored, Stopped, Training, thin_curve

REASON_CHARACTERS, NAME_CHARACTERS = 10_000, 200
"""The longest reason, and the longest name of a task, a branch or a metric, that a run keeps."""
FURTHER_METRICS = 100
"""Maximum number of further metrics that a run keeps."""
RESAMPLES = 1000
"""The most resamples of a split whose scores a run keeps."""
STEPS = 1 << 31
"""Steps of a training are below."""
PROMOTED = "promoted"
"""Kind of every branch of a candidate that is an earlier one, trained at a larger share of the schedule."""


class State(Enum):
    """The end of a training."""

    SCORED = "scored"
    DIVERGED = "diverged"
    STOPPED = "stopped"
    """Cut short by a rule that was fixed when the candidate was planned."""
    FAILED = "failed"
    """No fault of the loss for sure: killed three times, past its deadline, or the task's own code raised."""


class Origin(Enum):
    """Source of a candidate's outcome."""

    TRAINED = "trained"
    TWIN = "twin"
    """It has the signature of an earlier candidate, whose outcome it shares."""
    COPIED = "copied"
    """All its branches are its parent's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """How a candidate was made, which follows from configuration, seed and earlier outcomes.

    Args:
        attempts: Branch → number of the attempt that passed; None for a copied branch.
        source: The candidate whose outcome it shares; None where it is trained itself.
        scores: Branch → (g, gains…) of what was simulated.
        counts: `sampled`, `simulated`, `passed`, `reused`, and rejections by the name of their reason.
        rejected: Branch → direction-aware keys of what was simulated and rejected for it, eight bytes each.
        accepted: Branch → keys of what was simulated and passed.
        fidelity: Share of the schedule that it is trained at.
        pool: Branch → number and signature of each attempt that it was chosen among, where there were several.
        seeds: Numbers of the training seeds it is trained with; 0 is the one that all candidates share by default.
        folds: Folds of the data it is trained on; it has one training for each pair of seed and fold.
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
    seeds: tuple[int, ...] = (0,)
    folds: tuple[int, ...] = (0,)

    @property
    def promoted(self) -> bool:
        """True if it is an earlier candidate, trained at a larger share of the schedule or again at the same."""
        return PROMOTED in self.kinds.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one training, or of several of one loss at one fidelity, as plain values that can be stored.

    Args:
        score: The metric, or its mean over several trainings; finite when the state is `scored`, else None. Higher is better.
        also: Further metrics by name, or their means.
        deviation: Standard deviation of the score over the trainings; None for a single one.
        also_deviation: Standard deviations of the further metrics by name; empty for a single training.
        count: Number of trainings (seeds, folds).
        curve: (step, training loss); empty for several trainings.
        step: Optimizer step at which it diverged or was stopped.
        reason: Why it has no score.
        seconds: Duration, of all trainings together.
        fidelity: Share of the schedule that was trained.
        replicates: The score on resamples of the split, where it was asked for; None for several trainings.

    Raises:
        ValueError: The score does not fit the state.
    """

    state: State
    score: float | None = None
    also: Mapping[str, float] = field(default_factory=dict[str, float])
    deviation: float | None = None
    also_deviation: Mapping[str, float] = field(default_factory=dict[str, float])
    count: int = 1
    curve: Curve = ()
    step: int | None = None
    reason: str = ""
    seconds: float = 0.0
    fidelity: float = field(default=1.0, compare=False)
    replicates: Replicates | None = None

    def __post_init__(self) -> None:
        if (self.state is State.SCORED) != (self.score is not None and math.isfinite(self.score)):
            raise ValueError(f"A training that is {self.state.value} cannot have the score {self.score}.")

    @classmethod
    def pool(cls, outcomes: Sequence[Outcome]) -> Outcome:
        """Return the outcome of all these trainings of one loss together.

        Where one has no score, the whole has none: it is the first that diverged, else the first that failed, else the first that
        was stopped. Further metrics are those that every training measured.

        Raises:
            ValueError: There are none, or they are of several fidelities.

        >>> pooled = Outcome.pool([Outcome(state=State.SCORED, score=score) for score in (0.5, 0.6, 0.7)])
        >>> f"{pooled.score:.2f} ± {pooled.deviation:.2f} over {pooled.count}"
        '0.60 ± 0.10 over 3'
        """
        if len({outcome.fidelity for outcome in outcomes}) != 1:
            raise ValueError("Trainings are pooled at one fidelity; found " + str([one.fidelity for one in outcomes]))
        if len(outcomes) == 1:
            return outcomes[0]
        count, seconds = len(outcomes), sum(one.seconds for one in outcomes)
        states = (State.DIVERGED, State.FAILED, State.STOPPED)
        if unscored := [one for state in states for one in outcomes if one.state is state]:
            return replace(unscored[0], count=count, seconds=seconds, curve=())
        scores = [one.score or 0.0 for one in outcomes]
        common = [name for name in outcomes[0].also if all(name in one.also for one in outcomes)]
        also = {name: [one.also[name] for one in outcomes] for name in common}
        return cls(
            state=State.SCORED,
            score=fmean(scores),
            also={name: fmean(values) for name, values in also.items()},
            deviation=stdev(scores),
            also_deviation={name: stdev(values) for name, values in also.items()},
            count=count,
            seconds=seconds,
            fidelity=outcomes[0].fidelity,
        )


def to_record(outcome: Scored | Diverged | Stopped) -> Outcome:
    """Return a training's outcome as plain values of limited length; a score that is not finite is no score.

    Raises:
        TypeError: A task's `train` returned something else.
        ValueError: A step is not a number of a step.
    """
    match outcome:
        case Diverged() | Stopped():
            state = State.DIVERGED if isinstance(outcome, Diverged) else State.STOPPED
            return Outcome(
                state=state, step=_step(outcome.step), reason=keep_text(str(outcome.reason), REASON_CHARACTERS)
            )
        case Scored():
            score = float(outcome.score)
            curve = thin_curve([(_step(step), float(loss)) for step, loss in outcome.curve])
            if not math.isfinite(score):
                return Outcome(state=State.DIVERGED, curve=curve, reason=f"the metric is {score}")
            kept = itertools.islice(outcome.also.items(), FURTHER_METRICS)
            also = {keep_text(str(name), NAME_CHARACTERS): float(value) for name, value in kept}
            finite = {name: value for name, value in also.items() if math.isfinite(value)}
            replicates = None if outcome.replicates is None else _shorten(outcome.replicates)
            return Outcome(state=State.SCORED, score=score, also=finite, curve=curve, replicates=replicates)
        case _:
            raise TypeError(f"train() returned a {type(outcome).__name__}; expected Scored, Diverged or Stopped.")


def _shorten(replicates: Replicates) -> Replicates:
    """Return scores of a limited number and of seven digits, which are enough for a spread."""
    scores = [None if score is None else float(f"{score:.7g}") for score in replicates.scores[:RESAMPLES]]
    finite = [None if score is None or not math.isfinite(score) else score for score in scores]
    return Replicates(int(replicates.examples), tuple(finite))


def _step(step: int) -> int:
    if not abs(step) < STEPS:
        raise ValueError(f"train() returned a step of {keep_text(repr(step), 60)}; expected a number below {STEPS}.")
    return int(step)


@dataclass(frozen=True, slots=True)
class Individual:
    """A candidate with its outcome, its own or a shared one."""

    candidate: Candidate
    outcome: Outcome

    @property
    def id(self) -> int:
        """Index of the candidate."""
        return self.candidate.id

    @property
    def score(self) -> float:
        """The mean of the metric; minus infinity where there is none."""
        return float("-inf") if self.outcome.score is None else self.outcome.score

    @property
    def rank(self) -> tuple[float, float, int]:
        """Sort key of individuals: first the share of the schedule, then the score; of equal ones the earlier is better."""
        return self.outcome.fidelity, self.score, -self.id

    @property
    def formula(self) -> str:
        """Text of its loss."""
        return self.candidate.loss


@dataclass(frozen=True, slots=True)
class RejectionBatch:
    """Test attempts `first` to `first + count - 1` at one branch of a candidate, up to the first that passes, or the n-th.

    Args:
        kind: Value of the `Kind` by which the branch is made.
        parent: Text of the parent's tree, or None for a candidate drawn from nothing.
        known: Key → whether the losses with it pass, of the latest verdicts that the driver knows; they are not simulated again.
        passes: n, the number of passing attempts after which the rest is not tested.
    """

    candidate: int
    branch: str
    kind: str
    parent: str | None
    first: int
    count: int
    known: Mapping[bytes, bool] = field(default_factory=dict[bytes, bool])
    passes: int = 1


class Attempt(NamedTuple):
    """The result of testing one attempt; a tuple, since batches hold thousands and frozen dataclasses are pickled slowly.

    Args:
        number: j, its number among the attempts at this branch of this candidate.
        formula: Text of the tree.
        reason: Name of the `Reason` for which it goes no further, or None.
        key: Its direction-aware key, where the gradient was computed.
        signature: Norms of the gradient, where the gradient was computed.
        simulated: Whether the protocol ran; if not, the driver looks the verdict up by the key.
        score: g.
        gains: Per sample.
        factor: What the tree is multiplied by in training, where the attempt may win.
    """

    number: int
    formula: str
    reason: str | None = None
    key: bytes = b""
    signature: tuple[str, ...] = ()
    simulated: bool = False
    score: float | None = None
    gains: tuple[float, ...] = ()
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Train:
    """Train with a loss and measure it.

    Args:
        loss: A formula, a loss of several branches, or a name in the zoo.
        candidate: The candidate whose training it is; None beside a search.
    """

    loss: str
    training: Training
    candidate: int | None = None


Job = RejectionBatch | Train
CompletedJob = tuple[Job, Outcome | list[Attempt], float]
"""A job with its result, and how many seconds it took."""
RejectedFormulas = Mapping[tuple[str, int], tuple[str, str]]
"""(branch, attempt) → (formula, reason): a sample of what was rejected for a candidate."""


def make_training(configuration: Configuration, fidelity: float = 1.0, number: int = 0, fold: int = 0) -> Training:
    """Return a training of a search.

    Common random numbers: by default every training of a search has the same seed, which leaves less noise in selection.

    Args:
        number: Of the training seed.
    """
    settings = configuration.search
    return Training(
        seed=derive_seed(configuration.seed, "training", *([number] if number else [])),
        fold=fold,
        fidelity=fidelity,
        learning_rate=settings.learning_rate,
        step_rule=settings.step_rule,
        tuned_threshold=settings.tuned_threshold,
    )
