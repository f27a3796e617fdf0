"""The loss-rejection protocol in plain autograd (Section 3.2): the reference that defines what is right.

It evaluates any operator, including a user's own, on any branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from autoloss.rejection.engine import Engine
from autoloss.rejection.gradients import Gradient, compute_gradient
from autoloss.rejection.protocol import Descent, Reference, Verdict, conclude
from autoloss.rejection.reasons import Reason
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import output, plain_sum


class ReferenceEngine(Engine):
    """The protocol in plain autograd, one tree after the other. It never stops early, since its verdicts are the definition."""

    allows_early_stops: ClassVar[bool] = False

    def gradients(self, expressions: Sequence[Expression]) -> list[Gradient]:
        for expression in expressions:
            self.check_leaves(expression)
        samples = self.reference.samples
        return [compute_gradient(expression, self.branch, samples, self.directions) for expression in expressions]

    def start_descent(self, expression: Expression) -> Descent:
        self.check_leaves(expression)
        return ReferenceDescent(expression, self.branch, self.reference, self.settings)


def simulate(expression: Expression, branch: Branch, reference: Reference, settings: ProtocolSettings) -> Verdict:
    """Run the protocol for one loss in plain autograd.

    Source: Section 3.2, Eq. 5 and 6; Appendix A.
    """
    return conclude(ReferenceDescent(expression, branch, reference, settings), settings)


class ReferenceDescent(Descent):
    """SGD with momentum on the raw predictions of each sample, on the plain sum of the loss."""

    def __init__(
        self, expression: Expression, branch: Branch, reference: Reference, settings: ProtocolSettings
    ) -> None:
        super().__init__(branch, reference)
        self._expression = expression
        self._settings = settings
        self._samples: dict[int, _SampleDescent] = {}

    def advance(self, sample: int, step: int) -> Reason | None:
        if sample not in self._samples:
            state = _SampleDescent(self._expression, self.branch, self.reference.samples[sample], self._settings)
            self._samples[sample] = state
        return self._samples[sample].advance(step)

    def prediction(self, sample: int, extrapolation: float = 1.0) -> Tensor:
        current = self._samples[sample].prediction
        if extrapolation == 1.0:
            return current
        start = self.reference.samples[sample].prediction.float()
        return start + extrapolation * (current - start)


class _SampleDescent:
    """The prediction of one sample during its descent."""

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
        while self._end is None and self._steps < step:
            self._end = self._take_step()
            self._steps += 1
        return self._end

    def _take_step(self) -> Reason | None:
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
