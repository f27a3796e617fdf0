"""Trainings by the trainer of another library, which calls a loss of prediction and target."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.training.loop import Curve, thin_curve
from autoloss.training.training import Diverged, Observe, Training

FitElsewhere = Callable[[nn.Module, nn.Module, Training], object]
"""Called with a new network, the loss (prediction, target) → scalar, and the training; trains the network in place."""


class _NotFiniteError(Exception):
    """Ends the trainer of another library at a loss that is not finite."""


class _WatchedLoss(nn.Module):
    """A loss that records its value at each call with gradients, and raises at the first one that is not finite."""

    def __init__(self, compute: Callable[[Tensor, Tensor], Tensor], observe: Observe | None) -> None:
        super().__init__()
        self._compute = compute
        self._observe = observe
        self.curve: list[tuple[int, float]] = []

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        value = self._compute(prediction, target)
        if torch.is_grad_enabled():
            self.curve.append((len(self.curve) + 1, value.item()))
            if not math.isfinite(self.curve[-1][1]):
                raise _NotFiniteError
            if self._observe is not None:
                self._observe(*self.curve[-1])
        return value


def fit_elsewhere(
    fit: FitElsewhere,
    compute: Callable[[Tensor, Tensor], Tensor],
    network: nn.Module,
    training: Training,
    observe: Observe | None,
) -> Curve | Diverged:
    """Train a network with the trainer of another library; stop at the first loss that is not finite.

    Args:
        compute: (raw prediction, target) → loss.
        observe: Called with (call, loss).

    Returns:
        The training loss by call, thinned, or where and why the training diverged.

    Raises:
        RequestError: The trainer never called the loss.
    """
    loss = _WatchedLoss(compute, observe)
    try:
        # Seeds of 64 bits are too large for NumPy, which other libraries seed.
        fit(network.train(), loss, dataclasses.replace(training, seed=training.seed % 2**32))
    except _NotFiniteError:
        return Diverged(len(loss.curve), "the loss is not finite")
    if not loss.curve:
        raise RequestError(
            "The trainer never called the loss that it was given. Let it compute loss(prediction, target) in each step, with raw "
            "predictions, and train the network that it was given in place."
        )
    if not all(bool(parameter.isfinite().all()) for parameter in network.parameters()):
        return Diverged(len(loss.curve), "a weight is not finite")
    return thin_curve(loss.curve)
