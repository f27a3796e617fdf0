"""The loss-rejection protocol (Section 3.2, Eq. 5 and 6): how much a loss must raise the metric of B samples to pass.

A loss is tested without training a network. The predictions of the samples are optimised directly by gradient descent on the
loss, and the loss passes when their metric rises enough. `reference.py` defines the descent in plain autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from autoloss.errors import RequestError
from autoloss.rejection.reasons import Reason
from autoloss.settings import ProtocolSettings, Threshold
from autoloss.space.branch import Branch, Sample

ROUNDING = 1e-9
"""Tolerance on g. A bound this close to the threshold decides nothing."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The protocol's result for one loss on one branch.

    Args:
        reason: Why the loss was rejected, or None when it passed.
        score: The correlation score g; None when something was not finite, without a gradient, or after an early rejection.
        gains: ξ(p*) − ξ(p) of each sample that was optimised.
    """

    reason: Reason | None
    score: float | None = None
    gains: tuple[float, ...] = ()

    @property
    def passed(self) -> bool:
        """True if the loss was not rejected."""
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Reference:
    """The samples of a branch, with the metric they start from and the metric of the target.

    Args:
        samples: B samples of an untrained network.
        initial: ξ₀ of each sample, the metric of the network's own prediction.
        best: ξ_best of each sample, the metric of the target used as prediction.
    """

    samples: tuple[Sample, ...]
    initial: tuple[float, ...]
    best: tuple[float, ...]

    @property
    def attainable_gain(self) -> float:
        """Σ (ξ_best − ξ₀): what all samples together can gain."""
        return sum(best - initial for best, initial in zip(self.best, self.initial, strict=True))

    def score(self, gains: Sequence[float], unit: Threshold) -> float:
        """Compute g from the gains of all samples, in the unit asked for."""
        return sum(gains) / (self.attainable_gain if unit == "relative" else len(self.samples))


def measure_reference(branch: Branch, samples: Sequence[Sample]) -> Reference:
    """Measure the metric of the samples' predictions and of their targets."""
    initial = tuple(float(branch.metric(sample.prediction, sample.context)) for sample in samples)
    best = tuple(float(branch.metric(branch.ideal(sample.context), sample.context)) for sample in samples)
    if not all(map(math.isfinite, initial + best)):
        raise RequestError(
            f"The metric of the samples is not finite: {initial} untrained, {best} for the target itself. Return a number for "
            "every sample, or raise rows_per_sample."
        )
    reference = Reference(tuple(samples), initial, best)
    if reference.attainable_gain <= 0:
        raise RequestError(
            f"No sample can improve: the metric is {initial} before training and {best} for the target itself. Check that higher "
            "is better, and that the metric accepts the target as a prediction."
        )
    return reference


class Descent(ABC):
    """The predictions of all samples of a branch while they descend on one loss.

    Each sample is optimised alone, so that means and pools never mix samples; samples may be advanced in any order. The state
    of a sample after `step` steps depends on the loss, the sample and `step` only: neither on the other samples nor on the
    number of calls that took it there. `prediction` and `gain` are called only for samples whose last `advance` returned None.

    Args:
        branch: Its metric is evaluated on the predictions.
        reference: The samples.
    """

    def __init__(self, branch: Branch, reference: Reference) -> None:
        self.branch = branch
        self.reference = reference
        self._steps: dict[int, int] = {}
        self._ends: dict[int, Reason | None] = {}

    def advance(self, sample: int, step: int) -> Reason | None:
        """Advance a sample, by its index, until it has taken `step` steps in total.

        Returns:
            None, or why the descent ended before: `NOT_FINITE`, or `NO_GRADIENT` at the first step. Once ended, it stays ended.
        """
        if self._ends.get(sample) is None:
            taken, self._steps[sample] = self._steps.get(sample, 0), step
            self._ends[sample] = self._run(sample, taken, step)
        return self._ends[sample]

    @abstractmethod
    def _run(self, sample: int, taken: int, step: int) -> Reason | None:
        """Take the steps of a sample that follow the first `taken`; return why the descent ended, if it did."""

    @abstractmethod
    def prediction(self, sample: int, extrapolation: float = 1.0) -> Tensor:
        """Return the current raw prediction of a sample, float32, in the sample's own shape.

        Args:
            extrapolation: Multiple of the displacement so far: initial + extrapolation · (current − initial).
        """

    def gain(self, sample: int, extrapolation: float = 1.0) -> float:
        """Measure the rise of a sample's metric, ξ − ξ₀; infinite where an extrapolated prediction is not finite."""
        prediction = self.prediction(sample, extrapolation)
        # 0·x is NaN unless x is finite; torch.isfinite takes four times as long.
        if extrapolation != 1.0 and not math.isfinite((0 * prediction).sum().item()):
            return math.inf
        context = self.reference.samples[sample].context
        return float(self.branch.metric(prediction, context)) - self.reference.initial[sample]


def conclude(descent: Descent, settings: ProtocolSettings, bounds: Sequence[float] | None = None) -> Verdict:
    """Run all steps on all samples and compare g with the threshold.

    Args:
        bounds: The largest possible gain of each sample. When given, the run ends with `LOW_GAIN` and no score as soon as the
            threshold is out of reach, unless no sample so far had a gradient.

    Source: Section 3.2, Eq. 5 and 6; Appendix A.
    """
    reference = descent.reference
    gains: list[float] = []
    without_gradient = 0
    for sample in range(len(reference.samples)):
        if bounds is not None and without_gradient < sample and misses_threshold(gains, bounds, reference, settings):
            return Verdict(Reason.LOW_GAIN)
        end = descent.advance(sample, settings.steps)
        if end is Reason.NOT_FINITE:
            return Verdict(Reason.NOT_FINITE)
        without_gradient += end is Reason.NO_GRADIENT
        gains.append(descent.gain(sample) if end is None else 0.0)
    if without_gradient == len(gains):
        return Verdict(Reason.NO_GRADIENT)
    score = reference.score(gains, settings.unit)
    if not math.isfinite(score):
        return Verdict(Reason.NOT_FINITE, None, tuple(gains))
    return Verdict(None if score >= settings.threshold else Reason.LOW_GAIN, score, tuple(gains))


def misses_threshold(
    gains: Sequence[float], bounds: Sequence[float], reference: Reference, settings: ProtocolSettings
) -> bool:
    """Check whether the first samples' gains leave the threshold out of reach, given the bounds of the other samples."""
    most = reference.score([*gains, *bounds[len(gains) :]], settings.unit)
    return most < settings.threshold - ROUNDING
