"""The loss-rejection protocol in plain autograd (Section 3.2): the reference that defines what is right.

It evaluates any operator, including a user's own, on any branch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from autoloss.rejection.engine import Engine, Gradient, compute_gradient
from autoloss.rejection.protocol import Descent, Reference, Verdict, conclude
from autoloss.rejection.reasons import Reason
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch
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

    def __init__(self, tree: Expression, branch: Branch, reference: Reference, settings: ProtocolSettings) -> None:
        super().__init__(branch, reference)
        self._tree = tree
        self._settings = settings
        self._states: dict[int, tuple[Tensor, Tensor]] = {}
        """Sample → prediction and velocity."""

    def _run(self, sample: int, taken: int, step: int) -> Reason | None:
        start, context = self.reference.samples[sample].prediction, self.reference.samples[sample].context
        mask = self.branch.mask(context)
        prediction, velocity = self._states.get(sample) or (start.detach().float().clone(), torch.zeros(()))
        for number in range(taken, step):
            prediction.requires_grad_(True)
            value = plain_sum(output(self._tree, self.branch, prediction, context), mask)
            if not value.requires_grad:
                return Reason.NO_GRADIENT
            (gradient,) = torch.autograd.grad(value, prediction)
            if not math.isfinite(value.item()) or not bool(torch.isfinite(gradient).all()):
                return Reason.NOT_FINITE
            if number == 0 and not bool(gradient.any()):
                return Reason.NO_GRADIENT
            velocity = self._settings.momentum * velocity + gradient
            prediction = prediction.detach() - self._settings.learning_rate * velocity
        self._states[sample] = prediction, velocity
        return None

    def prediction(self, sample: int, extrapolation: float = 1.0) -> Tensor:
        current, _ = self._states[sample]
        if extrapolation == 1.0:
            return current
        start = self.reference.samples[sample].prediction.float()
        return start + extrapolation * (current - start)
