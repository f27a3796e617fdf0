"""The scale of a loss: the factor at which its gradient is as large as that of the loss in common use.

A loss and its multiple point the same way, but in training the factor acts like one on the learning rate, which nobody chose for a
loss that was drawn. Trained at one norm of the gradient, losses are compared by their form alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from autoloss.rejection.engine import PRODUCT_DIGITS, Engine, Gradient, round_digits
from autoloss.rejection.protocol import Reference
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss_text import LARGEST_FACTOR, LEAST_FACTOR, round_factor

SHARE_RIGHT = 0.5
"""Share of the positions at which partly right predictions differ from the initial ones."""
DIGITS = 2


class ScaleMeasure:
    """Measures the scale of losses on one branch.

    Args:
        partly: An engine whose samples are those of an untrained network with partly right predictions (`move_to_ideal`).
        standard: Joint norm of the standard loss's gradient on the samples of an untrained network.
        direction: Whether signatures are those of the direction alone (`search.direction`): a factor that depends on the whole
            batch, such as any function of the loss's mean brings, then makes no other loss.
    """

    def __init__(self, partly: Engine, standard: float, *, direction: bool = False) -> None:
        self._partly = partly
        self._standard = standard
        self._direction = direction

    def measure(self, tree: Expression, gradient: Gradient) -> tuple[float, tuple[str, ...]]:
        """Return the scale of a loss.

        Args:
            gradient: Of the loss on the samples of an untrained network; finite and not zero.

        Returns:
            The factor, as `round_factor` returns it, and the signature: norms and inner products of its gradient at that scale,
            first where the network starts and then where half of the predictions are right: near their beginning, all losses of a
            kind point in nearly the same direction. Of the direction alone: the inner products of the gradients on each sample,
            each divided by its norm.
        """
        later = self._partly.gradients([tree])[0]
        # Within the range of factors: losses that no factor brings to the standard's scale are not equal in training.
        ratio = min(max(self._standard / math.hypot(*gradient.norms), LEAST_FACTOR), LARGEST_FACTOR)
        values = (*gradient.norms, *gradient.products, *later.norms, *later.products)
        if self._direction:
            pairs = [pair for one in (gradient, later) for pair in zip(one.products, one.norms, strict=True)]
            cosines = [product / norm if norm else 0.0 for product, norm in pairs]
            return round_factor(ratio), tuple(round_digits(value, PRODUCT_DIGITS) for value in cosines)
        return round_factor(ratio), tuple(round_digits(value * ratio, DIGITS) for value in values)


def measure_norm(loss: Expression | BranchLoss, engine: Engine) -> float:
    """Return the joint norm of a loss's gradient on the samples, in the unit of a tree's plain sum.

    A hand-written loss has its own reduction; it is brought to that unit by the branch's divisor and weight.
    """
    if isinstance(loss, Expression):
        return math.hypot(*engine.gradients([loss])[0].norms)
    return math.hypot(*(_measure_mean(loss, engine.branch, sample) for sample in engine.reference.samples))


def _measure_mean(loss: BranchLoss, branch: Branch, sample: Sample) -> float:
    prediction = sample.prediction.detach().double().requires_grad_(True)
    value = loss(prediction, sample.context)
    if not value.requires_grad:
        return 0.0
    (slope,) = torch.autograd.grad(value, prediction)
    return math.sqrt(float(slope.square().sum())) * float(branch.divisor(sample.context)) / branch.weight


def move_to_ideal(branch: Branch, reference: Reference, seed: int) -> Reference:
    """Return the samples with half of the positions moved towards the ideal prediction."""
    generator = torch.Generator().manual_seed(seed)
    samples = tuple(move_half_to_ideal(branch, sample, generator) for sample in reference.samples)
    return replace(reference, samples=samples)


def move_half_to_ideal(branch: Branch, sample: Sample, generator: torch.Generator) -> Sample:
    """Return a sample with half of its positions moved towards the ideal prediction; half of these beyond it, where they may be."""
    prediction = sample.prediction
    ideal = branch.ideal(sample.context).to(prediction).reshape(prediction.shape)
    drawn: Tensor = torch.rand((prediction.shape[0], 1, *prediction.shape[2:]), generator=generator)
    step = branch.step_to_ideal
    if branch.overshoots:
        step = torch.where(drawn < SHARE_RIGHT / 2, 2 - step, step).to(prediction)
    moved = prediction + step * (ideal - prediction)
    return replace(sample, prediction=torch.where(drawn < SHARE_RIGHT, moved, prediction))
