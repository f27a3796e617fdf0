"""Early rejection in the loss-rejection protocol (Section 3.2): a loss that goes nowhere is not run to the end.

Two findings of different kinds must agree before a loss is rejected after a few steps. The metric rises nowhere along the
direction in which the predictions move, however far it is extrapolated. And the predictions do not follow the target: with the
target of another sample in place of its own, a sample moves the same way, or clearly away from what changed. The metric alone
misleads where it is coarse, such as the IoU of the worst class of a network that predicts one class everywhere; the target alone
misleads where a metric asks for less than the target, such as the borders between classes. Later the metric alone decides.

There are early stops only where predictions pass through a softmax. Its channels compete at every position, so a loss that is
evaluated element by element keeps the direction in which it starts. Without competition, positions with different targets drift
independently: the metric may fall for hundreds of steps and rise in the end. Those predictions, and small ones, whose whole run is
cheap, are rejected by exact bounds only. A loss that passes has run all steps on all samples; the screen can only reject.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from weakref import WeakKeyDictionary

from torch import Tensor

from autoloss.rejection.engine import Engine
from autoloss.rejection.protocol import Descent, Reference, Verdict, conclude
from autoloss.rejection.reasons import Reason
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Expression

PAPER_STEPS = 500
"""Appendix A's number of steps, for which the early stops were measured; with another number they come at the same fraction."""
MIN_STEPS = 100
"""With fewer steps there are no early stops: such a run is too short to judge, and cheap."""
METRIC_CEILING = 1.0
"""No metric is assumed to rise above this value and above its value at the target."""
MAX_DROP = 1.0
"""A loss whose metric has fallen by more is not judged early. A metric without a lower bound falls by millions when a singularity
moves the predictions far away, and may recover."""
LARGE_PREDICTION = 1024
"""Elements of a raw prediction from which on there are early stops; below, they cost about what they save."""
JUDGED_SAMPLES = 2
"""Samples that an early stop evaluates. One is not enough: a sample with little to gain (BF1, 0.33 instead of 1) hid 37 of 45
losses that pass."""
MIN_CHANGED = 16
"""Elements at least in which the targets of two samples differ when one takes the place of the other."""
RESPONSE_STEP = 5
"""Step, out of 500, at which predictions are compared with those that descend towards another target."""
CLEAR_AGREEMENT = 0.25
"""Agreement beyond which a prediction clearly follows its target, or clearly moves away from it. It lies between for good losses
whose pools blur the target: of those that pass for FWIoU and gAcc on digits, -0.12 to 0.05 in nine and six of 110."""
FLAT = 0.01
"""Share of its displacement below which the target plays no role."""
DRIFT = 1 / 3
"""Where a prediction clearly follows its target, and the target makes less than this share of its displacement, the rest hides it
from the metric until the end: removing the bias to one class comes before telling classes apart, for example. Of the losses that
passed although the metric stood still at step 100, the largest share was 0.27, and the smallest agreement 0.98."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """A step at which a loss may be rejected.

    Args:
        step: The step, out of 500.
        extrapolations: Multiples of the displacement so far at which the metric is measured; the largest value counts.
        fraction: Fraction of η that the gain of the judged samples must exceed.
        still_tells: Whether a metric that stands exactly still counts; at its lowest value it says nothing of what follows.
    """

    step: int
    extrapolations: tuple[float, ...]
    fraction: float
    still_tells: bool = True


FIRST_STOP = EarlyStop(step=10, extrapolations=(1, 100), fraction=1 / 20)
"""For predictions that do not follow their target."""
LATE_STOP = EarlyStop(step=200, extrapolations=(1, 3, 10), fraction=1 / 10, still_tells=False)
"""For all whose target is not hidden. It comes late, since pools spread step by step what separates classes: of the losses that
passed, the smallest gain was 0.06 of η at step 100, and 0.35 at this stop. Under a constant gradient and momentum 0.9, 500 steps
lead 119 times as far as 10, and 2.6 times as far as 200."""
LAST_STOP = EarlyStop(step=500, extrapolations=(1, 2), fraction=2 / 5)
"""For all: the judged samples stand for the others. They may need twice the displacement of these: an all-or-nothing metric stood
still on one that started farthest from its target, and g was 0.67. `bench/rejection/agreement.py` measures the share of losses that
are lost, for each metric."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A sample with the target of another in place of its own.

    Args:
        index: Of the sample among those of the branch.
        sample: Its prediction with the context of the other.
        change: Sign of the change of the ideal prediction from the other's target to its own, (N, C, H, W).
        changed: Number of elements where it is not 0.
        one_hot: Whether each position has one class, as the leaf y. Otherwise, as for the edges of classes, no channel competes
            for most positions, and a good loss may first move away from the target.
    """

    index: int
    sample: Sample
    change: Tensor
    changed: int
    one_hot: bool


_Preparation = tuple[tuple[float, ...], tuple[Exchange, ...], Engine | None]
"""Computed once for an engine: the bounds, and where there are early stops the exchanged samples and an engine on them."""
_PREPARATIONS: WeakKeyDictionary[Engine, _Preparation] = WeakKeyDictionary()


def screen_losses(engine: Engine, expressions: Sequence[Expression]) -> list[Verdict]:
    """Decide as `Engine.verdicts` does, most rejections much sooner.

    Returns:
        One verdict per tree, in order, each a pure function of its tree and of the engine's samples and settings. Early
        rejections have the reason `LOW_GAIN` and no score.
    """
    if engine not in _PREPARATIONS:
        _PREPARATIONS[engine] = _prepare(engine)
    return [_decide(engine, _PREPARATIONS[engine], expression) for expression in expressions]


def _prepare(engine: Engine) -> _Preparation:
    bounds, settings = bound_gains(engine.reference), engine.settings
    if settings.steps < MIN_STEPS or settings.threshold <= 0:
        return bounds, (), None
    exchanges = exchange_targets(engine.branch, engine.reference)
    if len(exchanges) < JUDGED_SAMPLES:
        return bounds, (), None
    # Their metric is never measured.
    unknown = (math.nan,) * len(exchanges)
    reference = Reference(tuple(each.sample for each in exchanges), unknown, unknown)
    return bounds, exchanges, type(engine)(engine.branch, reference, settings, operator_cap=engine.operator_cap)


def exchange_targets(branch: Branch, reference: Reference) -> tuple[Exchange, ...]:
    """Exchange the targets of the samples that early stops judge: the two with most to gain; none where there are no early stops.

    The other target is that of the sample whose target differs most, among those of the same shape.
    """
    samples = reference.samples
    channels = samples[0].prediction.shape[1] if samples[0].prediction.ndim > 1 else 1
    if not branch.has_competition(channels) or samples[0].prediction.numel() < LARGE_PREDICTION:
        return ()
    ideals = [branch.ideal(sample.context) for sample in samples]
    found: list[Exchange] = []
    for index in sorted(range(len(samples)), key=lambda index: reference.initial[index] - reference.best[index]):
        others = [
            other
            for other in range(len(samples))
            if _shapes(samples[other].context) == _shapes(samples[index].context)
            and ideals[other].shape == ideals[index].shape == samples[index].prediction.shape
        ]
        changes = [_centre(ideals[index].float() - ideals[other].float()) for other in others]
        counts = [int(change.count_nonzero()) for change in changes]
        most = counts.index(max(counts)) if counts else 0
        if counts and counts[most] >= MIN_CHANGED and reference.best[index] > reference.initial[index]:
            sample = Sample(samples[index].prediction, samples[others[most]].context)
            found.append(Exchange(index, sample, changes[most].sign(), counts[most], _is_one_hot(branch, sample)))
    return tuple(found[:JUDGED_SAMPLES])


def _is_one_hot(branch: Branch, sample: Sample) -> bool:
    if branch.pair is None:
        return False
    leaves, mask = branch.leaves(sample.prediction, sample.context), branch.mask(sample.context)
    total = leaves[branch.pair[1]].sum(dim=1, keepdim=True)
    return bool(((total == 1) | (False if mask is None else ~mask)).all())


def _shapes(context: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in context.items()}


def _centre(values: Tensor) -> Tensor:
    """Subtract the mean over the channels, which a softmax does not see; one channel stands for the difference of two."""
    return values - values.mean(dim=1, keepdim=True) if values.ndim > 1 and values.shape[1] > 1 else values


def bound_gains(reference: Reference) -> tuple[float, ...]:
    """Return the largest possible gain of each sample.

    The bound holds for metrics that no prediction can raise above the larger of 1 and the metric of the target. The target reaches
    the maximum of every metric that counts correct answers; where it does not, as with points decoded from a coarse grid, 1 does.
    """
    pairs = zip(reference.initial, reference.best, strict=True)
    return tuple(max(best, METRIC_CEILING) - initial for initial, best in pairs)


def _decide(engine: Engine, prepared: _Preparation, expression: Expression) -> Verdict:
    bounds, exchanges, exchanged = prepared
    descent = engine.start_descent(expression)
    if exchanged is not None:
        reason = _stop_early(engine, exchanges, descent, exchanged.start_descent(expression))
        if reason is not None:
            return Verdict(reason)
    return conclude(descent, engine.settings, bounds)


def _stop_early(engine: Engine, exchanges: Sequence[Exchange], descent: Descent, exchanged: Descent) -> Reason | None:
    """Return why a loss is rejected early, or None."""
    scale = engine.settings.steps / PAPER_STEPS
    end = _advance(descent, exchanges, int(RESPONSE_STEP * scale))
    if end is not None:
        return end if end is Reason.NOT_FINITE else None
    match _respond(descent, exchanged, exchanges, int(RESPONSE_STEP * scale)):
        case Response.NONE:
            stops = (FIRST_STOP, LATE_STOP, LAST_STOP)
        case Response.CLEAR:
            stops = (LATE_STOP, LAST_STOP)
        case Response.HIDDEN:
            stops = (LAST_STOP,)
    for stop in stops:
        if _advance(descent, exchanges, int(stop.step * scale)) is Reason.NOT_FINITE:
            return Reason.NOT_FINITE
        if not _rises(descent, exchanges, stop, engine.settings):
            return Reason.LOW_GAIN
    return None


def _advance(descent: Descent, exchanges: Sequence[Exchange], step: int) -> Reason | None:
    """Advance the judged samples to a step; return why one of them ended before, if one did."""
    for each in exchanges:
        end = descent.advance(each.index, step)
        if end is not None:
            return end
    return None


class Response(Enum):
    """The effect of a prediction's own target, in place of another, on its displacement."""

    NONE = "nothing, or it moves it away"
    CLEAR = "it moves as the target does, or otherwise"
    HIDDEN = "it follows its target, and moves much farther in ways that have nothing to do with it"


def _respond(descent: Descent, exchanged: Descent, exchanges: Sequence[Exchange], step: int) -> Response:
    """Compare the judged predictions with those that descend towards another target; the first that follows its own decides."""
    for number, each in enumerate(exchanges):
        if exchanged.advance(number, step) is not None:
            # Nothing can be compared, so the loss runs to its end.
            return Response.HIDDEN
        prediction = descent.prediction(each.index)
        changed = _centre(prediction - exchanged.prediction(number))
        distance = _norm(prediction - descent.reference.samples[each.index].prediction)
        share = _norm(changed) / distance if distance > 0 else math.nan
        agreement = float((changed.sign() * each.change).sum()) / each.changed
        away = each.one_hot and agreement < -CLEAR_AGREEMENT
        if not (share < FLAT or away):
            return Response.HIDDEN if agreement > CLEAR_AGREEMENT and share < DRIFT else Response.CLEAR
    return Response.NONE


def _norm(values: Tensor) -> float:
    return math.sqrt(float(values.square().sum()))


def _rises(descent: Descent, exchanges: Sequence[Exchange], stop: EarlyStop, settings: ProtocolSettings) -> bool:
    """Check whether the metric of the judged samples rises enough along the direction taken so far, or cannot tell."""
    reference = descent.reference
    attainable = sum(reference.best[each.index] - reference.initial[each.index] for each in exchanges)
    required = stop.fraction * settings.threshold * (attainable if settings.unit == "relative" else len(exchanges))
    total, moves = 0.0, stop.still_tells
    for each in exchanges:
        best = 0.0
        for extrapolation in stop.extrapolations:
            gain = descent.gain(each.index, extrapolation)
            moves = moves or gain != 0
            best = max(best, gain)
            dropped = extrapolation == 1 and gain < -MAX_DROP
            if dropped or total + best > required or not math.isfinite(gain):
                return True
        total += best
    return not moves
