"""The gradient-equivalence check (Section 3.2), and the direction-aware keys that may be used before the protocol.

The paper's signature, the norms of the gradient, cannot tell L from −L, so it decides only among losses that passed. What is
looked up before the 500 steps holds, besides each norm, the inner product with a fixed random direction.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import output, plain_sum

NORM_DIGITS = 2
"""Significant digits of a gradient's norm (Section 3.2)."""
PRODUCT_DIGITS = 3
"""Significant digits, with the sign, of its inner product with the fixed direction."""

EXPLODING = 1e6
"""A norm beyond which a key is a tree's own. The first step then throws the prediction far off, and what follows depends on more
than the gradient: of 358 trees that shared the verdict of an equal key, the reference decided two otherwise, both of norm 1e18.
"""


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a loss does to the initial predictions of a branch: one figure per sample, of ∂L/∂prediction in float64.

    Args:
        norms: ‖∂L/∂prediction_b‖₂.
        products: Its inner product with the sample's fixed direction.
    """

    norms: tuple[float, ...]
    products: tuple[float, ...]

    @property
    def finite(self) -> bool:
        return all(map(math.isfinite, self.norms))

    @property
    def zero(self) -> bool:
        return not any(self.norms)

    @property
    def signature(self) -> tuple[str, ...]:
        """The paper's: the norms, rounded."""
        return tuple(_rounded(norm, NORM_DIGITS) for norm in self.norms)

    def key(self, text: str) -> bytes:
        """Return eight bytes that tell direction as well as size.

        Args:
            text: The tree's canonical text, which counts where the gradient explodes.
        """
        parts = [*self.signature, *(_rounded(product, PRODUCT_DIGITS) for product in self.products)]
        if max(self.norms) > EXPLODING:
            parts.append(text)
        return hashlib.blake2b(" ".join(parts).encode(), digest_size=8).digest()


def _rounded(value: float, digits: int) -> str:
    return f"{value:.{digits - 1}e}" if value else "0"


def directions(samples: Sequence[Sample], seed: int) -> tuple[Tensor, ...]:
    """Return one fixed random direction per sample, float64, of the prediction's shape."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(sample.prediction.shape, generator=generator, dtype=torch.float64) for sample in samples)


def gradient(expression: Expression, branch: Branch, samples: Sequence[Sample], towards: Sequence[Tensor]) -> Gradient:
    """Differentiate the plain sum with respect to the raw initial predictions, in float64 on the CPU.

    Args:
        towards: The fixed `directions` of the samples.

    Source: Section 3.2, gradient-equivalence check.
    """
    norms: list[float] = []
    products: list[float] = []
    for sample, direction in zip(samples, towards, strict=True):
        prediction = sample.prediction.detach().double().cpu().requires_grad_(True)
        value = plain_sum(output(expression, branch, prediction, sample.context), branch.mask(sample.context))
        if not value.requires_grad:
            norms.append(0.0)
            products.append(0.0)
            continue
        (slope,) = torch.autograd.grad(value, prediction)
        norms.append(math.sqrt(float(slope.square().sum())) if math.isfinite(value.item()) else math.nan)
        products.append(float((slope * direction).sum()))
    return Gradient(tuple(norms), tuple(products))
