"""A requested training and its possible outcomes (Section 3); needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from autoloss.options import Natural, Positive, PositiveShare, declare
from autoloss.settings import StepRule

Curve = tuple[tuple[int, float], ...]
"""(step, training loss) pairs."""
CURVE_POINTS = 100
"""Largest number of points kept of a training curve."""
THRESHOLD = "threshold"
"""Name of the further figure of a training that tells its tuned threshold."""


class ItemWeights(NamedTuple):
    """Factors on what single items contribute to the gradient of a branch's loss.

    Args:
        grouping: What decides the group of an item: `class` or `confidence`; see `space.item_weights`.
        weights: One factor for each group.
    """

    branch: str
    grouping: str
    weights: tuple[float, ...]


@declare("Training.", "setting of a training")
class Training:
    """Everything that decides the outcome of a training; the key under which the outcome is stored.

    Args:
        seed: Seed of the initial weights, the order of the data and the augmentation; at least 0.
        split: Split that is evaluated: `valid` during a search, `test` for final figures only.
        fold: Number of the partition of the data into training and `valid` split, from 0; see `Task.folds`. A run
            counts from the partition that the seed chooses, so several seeds are evaluated on different examples.
        schedule: One of the task's schedules.
        fidelity: Share of the schedule that is trained, in (0, 1].
        learning_rate: Factor on the schedule's learning rate, above 0.
        scale: Branch → factor on its loss, above 0; 1 for branches left out. The caller of `Task.train` multiplies the
            criterion by it; the task does not.
        step_rule: How gradients become steps; see `Task.step_rules`.
        length: Factor on the number of epochs, above 0.
        tuned_threshold: Decide at the threshold that is best on the valid split instead of 0.5; see `Task.tunes_threshold`.
        resampled: Also measure `Scored.replicates`, where the task can. The score is the same, so this is no part of the key.
        paced_by: Loss that is trained alike before; the gradient of each step is scaled to the norm that it has there. Empty for
            none; see `Task.train`.
        item_weights: Factors on the gradients of items, which the caller of `Task.train` applies, as it does the scale.

    Raises:
        RequestError: A value is outside its range.

    >>> Training(seed=0, split="test").schedule
    'proxy'
    """

    seed: Natural
    split: str = "valid"
    fold: Natural = 0
    schedule: str = "proxy"
    fidelity: PositiveShare = 1.0
    learning_rate: Positive = 1.0
    scale: Mapping[str, Positive] = field(default_factory=dict, hash=False)
    step_rule: StepRule = "recipe"
    length: Positive = 1.0
    tuned_threshold: bool = False
    resampled: bool = field(default=False, compare=False, repr=False)
    paced_by: str = ""
    item_weights: tuple[ItemWeights, ...] = ()

    def __post_init__(self) -> None:
        # Equal trainings have equal keys: factors of 1 are dropped, and branches sorted.
        object.__setattr__(self, "scale", {name: factor for name, factor in sorted(self.scale.items()) if factor != 1})


@dataclass(frozen=True, slots=True)
class Replicates:
    """The score on bootstrap resamples of the evaluated split; they show how much of a score its examples decide.

    Each resample has as many examples as the split, drawn with replacement. They are the same for every training on a split, so
    differences between losses are paired over examples, too.

    Args:
        examples: Number of examples of the split: rows, or images.
        scores: One per resample; None where the metric is undefined.
    """

    examples: int
    scores: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A training that ran to its end.

    Args:
        score: The metric on the evaluated split; higher is better.
        also: Further metrics by name; a run keeps the first 100, and 200 characters of a name.
        curve: (step, training loss) pairs; a run keeps 100 of them, evenly spaced.
        replicates: The score on resamples of the split, where `Training.resampled` asks for it; None where the task cannot.
    """

    score: float
    also: Mapping[str, float] = field(default_factory=dict)
    curve: Curve = ()
    replicates: Replicates | None = None


@dataclass(frozen=True, slots=True)
class Diverged:
    """A training in which a loss, a gradient or the metric became non-finite.

    Args:
        step: Optimizer step at which it was noticed, counted from 1.
        reason: A clause that names it, such as "the loss is not finite".
    """

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A training that was ended early by a rule fixed before it began.

    Args:
        step: Last optimizer step, counted from 1.
        reason: The rule.
    """

    step: int
    reason: str


Observe = Callable[[int, float], None]
"""Called with (step, training loss) after each step of a training."""


def thin_curve(curve: Sequence[tuple[int, float]]) -> Curve:
    """Return at most `CURVE_POINTS` evenly spaced points of a curve, including the first and the last."""
    if len(curve) <= CURVE_POINTS:
        return tuple(curve)
    distance = (len(curve) - 1) / (CURVE_POINTS - 1)
    return tuple(curve[round(point * distance)] for point in range(CURVE_POINTS))
