"""The threshold of decisions between yes and no, chosen on the valid split after a training.

Predictions are moved so that the threshold comes to 0.5, where metrics decide: a metric needs no argument for it, and one that
looks at the order of predictions alone, such as AUC, is unchanged. For one that looks at the probabilities the threshold is 0.5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from autoloss.space.form import Activation

RARE = (0.002, 0.005, 0.01, 0.02, 0.03)
"""Thresholds of rare or costly decisions: where a missed one costs a hundred false alarms, the best is about 1/101."""
THRESHOLDS = (*RARE, *(step / 20 for step in range(1, 20)), *(1 - one for one in reversed(RARE)))
EXACT = 1e-6
"""Share of the range of a metric by which it may change where all decisions stay the same."""
ROUNDING = 3e-3
"""Share of the range of a metric by which thresholds change a metric of the order alone: probabilities near 0 and 1 are rounded."""
Batches = Sequence[tuple[Tensor, Tensor]]
"""Raw predictions (N, C, …) or (N,) and targets, batch by batch."""
Measure = Callable[[Batches], float]
"""A metric of raw predictions and targets; NaN where it is undefined."""


def has_threshold(activation: Activation, channels: int) -> bool:
    """Return True if predictions are decisions between yes and no: of each channel, or between two classes."""
    return activation == "sigmoid" or (activation == "softmax" and channels <= 2)


def move_threshold(prediction: Tensor, threshold: float, activation: Activation) -> Tensor:
    """Return raw predictions (N, C, …) or (N,) at which a probability of `threshold` became 0.5.

    >>> import torch
    >>> move_threshold(torch.logit(torch.tensor([[0.25]])), 0.25, "sigmoid").sigmoid()
    tensor([[0.5000]])
    """
    moved = prediction.clone()
    # Of two classes, the second one is "yes"; a single channel, or none, is its logit.
    yes = moved[:, 1:] if activation == "softmax" and moved.shape[1:2] == (2,) else moved
    yes -= math.log(threshold / (1 - threshold))
    return moved


def _move(batches: Batches, threshold: float, activation: Activation) -> Batches:
    return [(move_threshold(prediction, threshold, activation), target) for prediction, target in batches]


def _try_thresholds(
    batches: Batches, thresholds: Sequence[float], activation: Activation, measure: Measure
) -> dict[float, float]:
    """Return a metric at thresholds, 0.5 among them; nothing where it is not one of decisions, or is undefined."""
    found = {threshold: measure(_move(batches, threshold, activation)) for threshold in thresholds}
    known = {threshold: score for threshold, score in found.items() if not math.isnan(score)}
    halved, opposite = (measure([(factor * one, target) for one, target in batches]) for factor in (0.5, -1))
    # Opposite predictions give the metric's range, which no constant that is added to it changes.
    worth = [*known.values(), *([] if math.isnan(opposite) else [opposite])]
    spread, whole = (max(scores, default=0.0) - min(scores, default=0.0) for scores in (known.values(), worth))
    # Halved, decisions stay as they are; moving the probabilities of a metric such as the log loss is no decision.
    is_of_probabilities = abs(halved - found[0.5]) > EXACT * whole
    # Examples whose predictions moved by different thresholds have another order.
    return {} if is_of_probabilities or spread <= ROUNDING * whole else known


def measure_undecided(
    metrics: Mapping[str, Measure], valid: Batches, evaluated: Batches, activation: Activation
) -> dict[str, float]:
    """Measure the metrics that are not of decisions: of the probabilities, or of their order, which no threshold changes."""
    tried = (0.5, *THRESHOLDS[::5])
    return {
        name: measure(evaluated)
        for name, measure in metrics.items()
        if not _try_thresholds(valid, tried, activation, measure)
    }


def tune_threshold(
    valid: Batches, evaluated: Batches, activation: Activation, measure: Measure
) -> tuple[float, Batches]:
    """Choose the threshold with the highest metric on the valid split, and apply it: that threshold, and moved predictions.

    Where the valid split itself is evaluated (`evaluated` is the same object), each half of its examples is decided at the
    threshold that is best on the other half, so that the choice does not flatter the score.
    """

    def choose(batches: Batches) -> float:
        known = _try_thresholds(batches, THRESHOLDS, activation, measure)
        # Of equal thresholds the one nearest to 0.5.
        return max(known, key=lambda one: (known[one], -abs(one - 0.5)), default=0.5)

    chosen = choose(valid)
    if evaluated is not valid:
        return chosen, _move(evaluated, chosen, activation)
    # Every second example of the split, also where a batch has one alone.
    counts = itertools.accumulate((len(prediction) for prediction, _ in valid), initial=0)
    parts = [[slice((count + half) % 2, None, 2) for half in (0, 1)] for count in counts]
    halves = [
        [(one[part[half]], two[part[half]]) for (one, two), part in zip(valid, parts, strict=False)] for half in (0, 1)
    ]
    halves = [[batch for batch in half if len(batch[0])] for half in halves]
    if not all(halves):
        return chosen, valid
    # The examples stay in their order, so that resamples of the split are those of trainings without a tuned threshold.
    thresholds = [choose(halves[1]), choose(halves[0])]
    moved: list[tuple[Tensor, Tensor]] = []
    for (prediction, target), part in zip(valid, parts, strict=False):
        decided = prediction.clone()
        for half, threshold in zip(part, thresholds, strict=True):
            decided[half] = move_threshold(prediction[half], threshold, activation)
        moved.append((decided, target))
    return chosen, moved
