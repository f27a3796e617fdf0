"""The loss-rejection protocol (Section 3.2, Eq. 5 and 6) in plain autograd: the reference that defines what is right.

A loss is tried without a network: the predictions of B samples are descended on directly, and the loss is promising when
their metric rises enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.rejection.reasons import Reason
from autoloss.settings import EngineName, ProtocolSettings, Threshold
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import output, plain_sum


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the protocol says of one loss on one branch.

    Args:
        reason: Why it was rejected, or None when it passed.
        score: g, the correlation score; None when something was not finite or there was no gradient.
        gains: ξ(p*) − ξ(p) of each sample that was optimised.
    """

    reason: Reason | None
    score: float | None = None
    gains: tuple[float, ...] = ()

    @property
    def passed(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Reference:
    """What the samples of a branch start from and could reach.

    Args:
        samples: B samples of an untrained network.
        initial: ξ₀ of each sample, the metric of the network's own prediction.
        best: ξ_best of each sample, the metric of the target used as prediction.
    """

    samples: tuple[Sample, ...]
    initial: tuple[float, ...]
    best: tuple[float, ...]

    @property
    def room(self) -> float:
        """Σ (ξ_best − ξ₀): what all samples together can gain."""
        return sum(best - initial for best, initial in zip(self.best, self.initial, strict=True))

    def score(self, gains: Sequence[float], unit: Threshold) -> float:
        """Return g of the gains of all samples, in the unit asked for."""
        return sum(gains) / (self.room if unit == "relative" else len(self.samples))


def measure_reference(branch: Branch, samples: Sequence[Sample]) -> Reference:
    """Measure where the samples start and what they could reach.

    Raises:
        RequestError: A metric is not finite, or no sample can gain anything.
    """
    initial = tuple(branch.metric(sample.prediction, sample.context) for sample in samples)
    best = tuple(branch.metric(branch.ideal(sample.context), sample.context) for sample in samples)
    if not all(map(math.isfinite, initial + best)):
        raise RequestError(
            f"The metric of the samples is not finite: {initial} before, {best} at the target. A metric needs a number "
            "for every sample; return NaN only where a sample should be redrawn, or raise rows_per_sample."
        )
    reference = Reference(tuple(samples), initial, best)
    if reference.room <= 0:
        raise RequestError(
            f"No sample can gain anything: the metric is {initial} before training and {best} at the target itself. "
            "Check that higher is better, and that the metric understands the target as a prediction."
        )
    return reference


def simulate(expression: Expression, branch: Branch, reference: Reference, settings: ProtocolSettings) -> Verdict:
    """Descend on the predictions themselves and see how far the metric rises.

    Each sample is optimised alone, so that means and pools never cross samples.

    Source: Section 3.2, Eq. 5 and 6; Appendix A.
    """
    gains: list[float] = []
    silent = 0
    for sample, initial in zip(reference.samples, reference.initial, strict=True):
        optimised = descend(expression, branch, sample, settings)
        if isinstance(optimised, Reason):
            if optimised is Reason.NOT_FINITE:
                return Verdict(optimised)
            silent += 1
            gains.append(0.0)
            continue
        gains.append(branch.metric(optimised, sample.context) - initial)
    if silent == len(reference.samples):
        return Verdict(Reason.NO_GRADIENT)
    score = reference.score(gains, settings.unit)
    if not math.isfinite(score):
        return Verdict(Reason.NOT_FINITE, None, tuple(gains))
    return Verdict(None if score >= settings.threshold else Reason.LOW_GAIN, score, tuple(gains))


class Descent:
    """One sample's prediction on its way down a loss, so many steps at a time."""

    def __init__(self, expression: Expression, branch: Branch, sample: Sample, settings: ProtocolSettings) -> None:
        self.prediction = sample.prediction.detach().float().clone()
        self._expression = expression
        self._branch = branch
        self._context = sample.context
        self._settings = settings
        self._mask = branch.mask(sample.context)
        self._velocity = torch.zeros_like(self.prediction)
        self._steps = 0
        self._end: Reason | None = None

    def advance(self, step: int) -> Reason | None:
        """Go as far as `step`; return why it ended before: not finite, or no gradient to begin with."""
        while self._end is None and self._steps < step:
            self._end = self._advance()
            self._steps += 1
        return self._end

    def _advance(self) -> Reason | None:
        prediction = self.prediction.requires_grad_(True)
        value = plain_sum(output(self._expression, self._branch, prediction, self._context), self._mask)
        self.prediction = prediction.detach()
        if not value.requires_grad:
            return Reason.NO_GRADIENT
        (gradient,) = torch.autograd.grad(value, prediction)
        if not math.isfinite(value.item()) or not bool(torch.isfinite(gradient).all()):
            return Reason.NOT_FINITE
        if self._steps == 0 and not bool(gradient.any()):
            return Reason.NO_GRADIENT
        self._velocity = self._settings.momentum * self._velocity + gradient
        self.prediction = self.prediction - self._settings.learning_rate * self._velocity
        return None


def descend(expression: Expression, branch: Branch, sample: Sample, settings: ProtocolSettings) -> Tensor | Reason:
    """Return the prediction p* after all steps, or why there is none: not finite, or no gradient to begin with."""
    descent = Descent(expression, branch, sample, settings)
    end = descent.advance(settings.steps)
    return descent.prediction if end is None else end


def correlation_score(
    expression: Expression,
    branch: Branch,
    samples: Sequence[Sample],
    engine: EngineName = "reference",
    threshold: Threshold = "relative",
) -> float | None:
    """Measure how much descending `expression` on the predictions raises the branch's metric.

    Args:
        samples: B samples of an untrained network; predictions are raw, (N, C, H, W).
        engine: `reference` is plain autograd; `fast` is the compiled engine.
        threshold: The unit of g: `absolute`, the metric's own, or `relative` to what the samples can gain.

    Returns:
        g, or None if the loss or its gradient became non-finite or there was no gradient at all.

    Raises:
        RequestError: An unknown unit or engine, or samples that can gain nothing.

    Source: Section 3.2, Eq. 5 and 6.
    """
    settings = ProtocolSettings(samples=len(samples), unit=threshold, engine=engine)
    reference = measure_reference(branch, samples)
    if engine == "reference":
        return simulate(expression, branch, reference, settings).score
    # The compiled engine stands on this module.
    from autoloss.rejection.compiled.engine import Engine

    return Engine(branch, reference, settings).verdict(expression).score
