"""Early rejection in the loss-rejection protocol (Section 3.2): a loss that improves no metric early is not run to the end.

Many metrics stay constant until a decision changes, so a gain of 0 after a few steps is weak evidence. The direction in which the
predictions move is strong evidence: when the metric rises nowhere along it, however far it is extrapolated, the remaining steps
do not help. A loss that passes has run all steps on all samples; the screen can only reject.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoloss.rejection.engine import Engine
from autoloss.rejection.protocol import Descent, Reference, Verdict, conclude
from autoloss.rejection.reasons import Reason
from autoloss.settings import ProtocolSettings
from autoloss.space.expression import Expression

PAPER_STEPS = 500
"""Appendix A's number of steps, for which the early stops were measured; with another number they come at the same fraction."""
MIN_STEPS = 100
"""With fewer steps there are no early stops: such a run is too short to judge, and cheap."""
METRIC_CEILING = 1.0
"""No metric is assumed to rise above this value and above its value at the target."""

MAX_DROP = 1.0
"""A loss whose metric has fallen by more is not judged early. A metric without a lower bound, such as R², falls by millions when a
singularity moves the predictions far away, and may recover: this happened to 15 of 58 losses that pass for R²."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """A step at which a loss is rejected when its metric rises too little along the direction taken so far.

    Args:
        step: The step, out of 500.
        samples: The number of samples that are evaluated, the first of the B.
        extrapolations: Multiples of the displacement so far at which the metric is measured; the largest value counts.
        fraction: Fraction of η that the gain of these samples must exceed.
    """

    step: int
    samples: int
    extrapolations: tuple[float, ...]
    fraction: float


LARGE_PREDICTION = 1024
"""Elements of a raw prediction from which on there are several early stops: its run is long, and its metric fine-grained."""

IMAGE_STOPS = (
    EarlyStop(step=10, samples=2, extrapolations=(1, 100), fraction=1 / 20),
    EarlyStop(step=100, samples=2, extrapolations=(1, 10), fraction=4 / 25),
    EarlyStop(step=200, samples=2, extrapolations=(1, 3), fraction=6 / 25),
)
"""For images. Measured on losses that pass, fresh and mutated as in a search: 243 on scenes of discs (mIoU, 21 classes, 32×32), 123
on digits-seg at 16×16 (mIoU), 160 (BF1). The smallest gain of any of them was 2.6, 2.0 and 2.0 times what the three stops require.
Of 664 fresh losses on discs that do not pass, 90 % are rejected early, 84 % at the first stop. `bench/agreement.py` compares the
decisions with the reference's.

One sample is not enough, although it would be on discs: a sample with little to gain (BF1, 0.33 instead of 1) hid 37 of 45 losses
that pass. A stop after 30 or 50 steps would have lost one of the 123.
"""

ROW_STOPS = (EarlyStop(step=10, samples=3, extrapolations=(1, 100, 10), fraction=1 / 20),)
"""For small predictions. Measured on 3,897 losses, fresh and mutated as in a search, against the engine's full run: none of the
1,398 that pass is rejected. Of those that do not pass, the stop rejects for tabular (F1 of a rare class) 84 %, (AUC) 99 %,
(balanced accuracy) 86 %, (R²) 47 %.

The metric of the current predictions (extrapolation 1) is not enough: after 250 steps, 29 of 774 losses that pass for F1 still had
no gain at all. With extrapolations up to 30 at step 10, 57 of the 1,398 would have been lost. On other samples for F1, later stops
lost 2 of 290, which move all rows alike before they separate them: hence there are none here.
"""

BOX_STOPS = (
    *ROW_STOPS,
    EarlyStop(step=100, samples=3, extrapolations=(1, 10, 3), fraction=1 / 4),
    EarlyStop(step=200, samples=3, extrapolations=(1, 3), fraction=2 / 5),
)
"""For many rows, such as all boxes of an image. On the box branches of digits-det, none of 10 losses that pass was rejected, and 67
of 79 others were; this is little evidence.
"""


def screen_losses(
    engine: Engine, expressions: Sequence[Expression], early_stops: Sequence[EarlyStop] | None = None
) -> list[Verdict]:
    """Decide as `Engine.verdicts` does, most rejections much sooner.

    Args:
        early_stops: By default those measured for predictions of this size.

    Returns:
        One verdict per tree, in order, each a pure function of its tree. Early rejections have the reason `LOW_GAIN` and no
        score.

    Raises:
        RequestError: A tree has too many operators, or a leaf that the branch does not have.
    """
    stops = select_early_stops(engine.reference) if early_stops is None else early_stops
    if engine.settings.steps < MIN_STEPS or engine.settings.threshold <= 0:
        stops = ()
    bounds = bound_gains(engine.reference)
    return [
        _screen_descent(engine.start_descent(expression), engine.settings, stops, bounds) for expression in expressions
    ]


def select_early_stops(reference: Reference) -> Sequence[EarlyStop]:
    """Return the early stops that were measured on predictions like those of the samples."""
    prediction = reference.samples[0].prediction
    if prediction.numel() < LARGE_PREDICTION:
        return ROW_STOPS
    return IMAGE_STOPS if prediction.ndim > 2 and prediction.shape[2:].numel() > 1 else BOX_STOPS


def bound_gains(reference: Reference) -> tuple[float, ...]:
    """Return the largest possible gain of each sample.

    The bound holds for metrics that no prediction can raise above the larger of 1 and the metric of the target. The target reaches
    the maximum of every metric that counts correct answers; where it does not, as with points decoded from a coarse grid, 1 does.
    """
    pairs = zip(reference.initial, reference.best, strict=True)
    return tuple(max(best, METRIC_CEILING) - initial for initial, best in pairs)


def _screen_descent(
    descent: Descent, settings: ProtocolSettings, stops: Sequence[EarlyStop], bounds: Sequence[float]
) -> Verdict:
    for stop in stops:
        reason = _check_early_stop(descent, settings, stop)
        if reason is not None:
            return Verdict(reason)
    return conclude(descent, settings, bounds)


def _check_early_stop(descent: Descent, settings: ProtocolSettings, stop: EarlyStop) -> Reason | None:
    """Advance the first samples to a stop, and return why the loss is rejected there, or None."""
    reference = descent.reference
    count = min(stop.samples, len(reference.samples))
    attainable = sum(reference.best[:count]) - sum(reference.initial[:count])
    required = stop.fraction * settings.threshold * (attainable if settings.unit == "relative" else count)
    total = 0.0
    has_gradient = False
    for sample in range(count):
        end = descent.advance(sample, stop.step * settings.steps // PAPER_STEPS)
        if end is Reason.NOT_FINITE:
            return Reason.NOT_FINITE
        if end is not None:
            continue
        has_gradient = True
        best = 0.0
        for extrapolation in stop.extrapolations:
            gain = descent.gain(sample, extrapolation)
            best = max(best, gain)
            dropped = extrapolation == 1 and gain < -MAX_DROP
            if dropped or total + best > required or not math.isfinite(gain):
                return None
        total += best
    return Reason.LOW_GAIN if has_gradient else None
