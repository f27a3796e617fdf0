"""One loss on its way through the rejection protocol (Section 3.2) in plain autograd, for the screen.

What the compiled engine does not know, such as an operator of one's own, is screened all the same: the reference takes its
steps.
"""

from __future__ import annotations

import math

import torch

from autoloss.rejection.compiled.interpreter import DONE, NO_GRADIENT, NOT_FINITE
from autoloss.rejection.protocol import Descent, Reference
from autoloss.rejection.reasons import Reason
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch
from autoloss.space.expression import Expression

ENDS = {None: DONE, Reason.NOT_FINITE: NOT_FINITE, Reason.NO_GRADIENT: NO_GRADIENT}


class UncompiledAttempt:
    """One tree, sample by sample; it answers as the compiled engine's `Attempt` does."""

    def __init__(
        self, expression: Expression, branch: Branch, reference: Reference, settings: ProtocolSettings
    ) -> None:
        self._branch = branch
        self._reference = reference
        self._descents = [Descent(expression, branch, sample, settings) for sample in reference.samples]

    def advance(self, number: int, step: int) -> int:
        """Take a sample as far as `step`; return how the descent ended: what ended before the last step stays ended."""
        return ENDS[self._descents[number].advance(step)]

    def gain(self, number: int, reach: float = 1.0) -> float:
        """Measure how far the metric of a sample has risen.

        Args:
            reach: Measure at so many times the way gone; where that is not finite the gain is infinite.
        """
        sample, way = self._reference.samples[number], self._descents[number].prediction
        if reach != 1.0:
            start = sample.prediction.float()
            way = start + reach * (way - start)
            if not bool(torch.isfinite(way).all()):
                return math.inf
        return self._branch.metric(way, sample.context) - self._reference.initial[number]
