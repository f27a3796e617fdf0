"""What decides before the loss-rejection protocol (Section 3.2) has run to its end: a candidate that goes nowhere is dropped.

Many metrics stand still until a decision changes, so that a gain of 0 says little. What says much is the way that the
predictions have taken after a few steps: when the metric rises nowhere along it, however far it is followed, the other steps
do not help. Every loss that passes has run all steps on all samples; screening can only reject.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoloss.rejection.compiled.engine import Attempt, Engine
from autoloss.rejection.compiled.interpreter import DONE, NOT_FINITE
from autoloss.rejection.protocol import Reference, Verdict
from autoloss.rejection.reasons import Reason
from autoloss.rejection.uncompiled import UncompiledAttempt
from autoloss.space.expression import Expression

STEPS = 500
"""Appendix A's steps, for which the looks were measured; with others, a look comes after the same share of them."""
LEAST_STEPS = 100
"""With fewer steps nothing is looked at: a run is too short to tell, and cheap."""
CEILING = 1.0
"""No metric is expected to rise above this and above its value at the target."""

THROWN = 1.0
"""Of the metric: predictions that fell by more are not judged. A metric without a floor, such as R², falls by millions when a
singularity throws them far off, and they may come back all the same: 15 of 58 losses accepted for R² did so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A candidate is dropped when all that the metric can be made to rise is too little.

    Args:
        step: Of 500, after which the predictions are looked at.
        samples: So many of the B are looked at, the first ones.
        reaches: The metric is measured at so many times the way gone; the best counts.
        share: Of η, the rise over those samples that must be exceeded.
    """

    step: int
    samples: int
    reaches: tuple[float, ...]
    share: float


LARGE = 1024
"""Elements of a raw prediction from which on it is looked at more than once: its run is long, and its metric fine-grained."""

OF_IMAGES = (
    Look(step=10, samples=2, reaches=(1, 100), share=1 / 20),
    Look(step=100, samples=2, reaches=(1, 10), share=4 / 25),
    Look(step=200, samples=2, reaches=(1, 3), share=6 / 25),
)
"""Measured on losses that pass, fresh and mutated as in a search: scenes of discs (mIoU, 21 classes, 32×32) 243, digits-seg at
16×16 (mIoU) 123, (BF1) 160. The least rise of any was 2.6, 2.0 and 2.0 times what the three looks ask for. Of 664 fresh losses on
discs that do not pass 90 % are dropped, 84 % at the first look. `bench/agreement.py` holds them against the reference.

One sample will not do, although it would on discs: a sample with little to gain (BF1, 0.33 instead of 1) hid 37 of 45 losses
that pass. Nor will a look after 30 or 50 steps, which lost one of the 123.
"""

OF_ROWS = (Look(step=10, samples=3, reaches=(1, 100, 10), share=1 / 20),)
"""Measured on 3,897 losses, fresh and mutated as in a search, against the engine's full run: of 1,398 that pass none is
dropped. Of the rejected are dropped: tabular (F1 of a rare class) 84 %, (AUC) 99 %, (balanced accuracy) 86 %, (R²) 47 %.

The metric where the predictions are (reach 1) will not do alone: after 250 steps 29 of 774 losses that pass for F1 still
showed no gain at all. Of reaches up to 30 at step 10, 57 of the 1,398 would have been lost. On other samples for F1 later
looks lost 2 of 290, which move all rows alike before they tell them apart: hence none here.
"""

OF_BOXES = (
    *OF_ROWS,
    Look(step=100, samples=3, reaches=(1, 10, 3), share=1 / 4),
    Look(step=200, samples=3, reaches=(1, 3), share=2 / 5),
)
"""Of many rows, such as all boxes of an image. On the box branches of digits-det none of 10 losses that pass was dropped, and
67 of 79 others; that is little evidence.
"""


def screened(engine: Engine, expression: Expression, looks: Sequence[Look] | None = None) -> Verdict:
    """Decide as `Engine.verdict` does, most rejections much sooner.

    Args:
        looks: Those measured for predictions of this size when left out.

    Returns:
        A pure function of the tree. What is rejected before its end has the reason `LOW_GAIN` and no score.

    Raises:
        RequestError: The tree has too many operators, or a leaf that the branch does not have.
    """
    attempt = Attempt(engine, expression) if engine.compiles(expression) else engine.uncompiled(expression)
    if engine.settings.steps >= LEAST_STEPS and engine.settings.threshold > 0:
        for look in fitting_looks(engine.reference) if looks is None else looks:
            reason = _dropped(engine, attempt, look)
            if reason is not None:
                return Verdict(reason)
    return engine.conclude(attempt, limits(engine.reference))


def fitting_looks(reference: Reference) -> Sequence[Look]:
    """Return the looks that were measured on predictions like those of the samples."""
    prediction = reference.samples[0].prediction
    if prediction.numel() < LARGE:
        return OF_ROWS
    return OF_IMAGES if prediction.ndim > 2 and prediction.shape[2:].numel() > 1 else OF_BOXES


def limits(reference: Reference) -> tuple[float, ...]:
    """Return what each sample can gain at most.

    A bound follows only from a metric that no prediction can raise further. The target itself reaches it for all that
    counts right answers; where it does not, as with points that are decoded from a coarse grid, 1 stands above it.
    """
    pairs = zip(reference.initial, reference.best, strict=True)
    return tuple(max(best, CEILING) - initial for initial, best in pairs)


def _dropped(engine: Engine, attempt: Attempt | UncompiledAttempt, look: Look) -> Reason | None:
    """Take the first samples as far as a look, and return why the candidate goes no further, or None."""
    reference, settings = engine.reference, engine.settings
    count = min(look.samples, len(reference.samples))
    room = sum(reference.best[:count]) - sum(reference.initial[:count])
    enough = look.share * settings.threshold * (room if settings.unit == "relative" else count)
    risen = 0.0
    moving = False
    for number in range(count):
        end = attempt.advance(number, look.step * settings.steps // STEPS)
        if end == NOT_FINITE:
            return Reason.NOT_FINITE
        if end != DONE:
            continue
        moving = True
        best = 0.0
        for reach in look.reaches:
            gain = attempt.gain(number, reach)
            best = max(best, gain)
            thrown = reach == 1 and gain < -THROWN
            if thrown or risen + best > enough or not math.isfinite(gain):
                return None
        risen += best
    return Reason.LOW_GAIN if moving else None
