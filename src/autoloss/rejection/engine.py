"""The interface of what computes the loss-rejection protocol (Section 3.2): gradients and verdicts of losses on one branch.

The paper's signature, the norms of the gradient, is the same for L and −L, so it is compared only among losses that passed. The
key that is looked up before the 500 steps also holds the inner product of each gradient with a fixed random direction.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from autoloss.errors import unknown
from autoloss.rejection.protocol import Descent, Reference, Verdict, conclude
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch, Sample
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.loss import output, plain_sum

NORM_DIGITS = 2
"""Significant digits of a gradient's norm (Section 3.2)."""
PRODUCT_DIGITS = 3
"""Significant digits, with the sign, of its inner product with the fixed direction."""

EXPLODING = 1e6
"""Norm above which a tree's key is unique to its text. The first step then moves the prediction so far that the rest of the
descent depends on more than the first gradient: of 358 trees that took over the verdict of an equal key, the reference decided
two differently, both with a norm of 1e18.
"""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient ∂L/∂prediction at the initial predictions of a branch, in float64, as two numbers per sample.

    Args:
        norms: ‖∂L/∂prediction_b‖₂.
        products: Its inner product with the sample's fixed direction.
    """

    norms: tuple[float, ...]
    products: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """True if the gradient is finite on all samples."""
        return all(map(math.isfinite, self.norms))

    @property
    def zero(self) -> bool:
        """True if the gradient is zero on all samples."""
        return not any(self.norms)

    @property
    def signature(self) -> tuple[str, ...]:
        """The paper's signature: the rounded norms."""
        return tuple(round_digits(norm, NORM_DIGITS) for norm in self.norms)

    def key(self, text: str) -> bytes:
        """Return eight bytes that identify the gradient's norms and its direction.

        Args:
            text: The tree's canonical text; part of the key where a norm is above `EXPLODING`.
        """
        parts = [*self.signature, *(round_digits(product, PRODUCT_DIGITS) for product in self.products)]
        if max(self.norms) > EXPLODING:
            parts.append(text)
        return hashlib.blake2b(" ".join(parts).encode(), digest_size=8).digest()


def round_digits(value: float, digits: int) -> str:
    """Format a number with this many significant digits, zero as `0`."""
    return f"{value:.{digits - 1}e}" if value else "0"


def draw_directions(samples: Sequence[Sample], seed: int) -> tuple[Tensor, ...]:
    """Draw one fixed random direction per sample, float64, of the prediction's shape."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(sample.prediction.shape, generator=generator, dtype=torch.float64) for sample in samples)


def compute_gradient(
    expression: Expression, branch: Branch, samples: Sequence[Sample], directions: Sequence[Tensor]
) -> Gradient:
    """Differentiate the plain sum with respect to the raw initial predictions, in float64 on the CPU.

    Args:
        directions: One fixed direction per sample, from `draw_directions`.

    Source: Section 3.2, gradient-equivalence check.
    """
    norms: list[float] = []
    products: list[float] = []
    for sample, direction in zip(samples, directions, strict=True):
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


OPERATOR_CAP = 64
"""Default for the number of operators of the largest tree."""


class Engine(ABC):
    """Computes gradients and verdicts of losses on one branch.

    The contract, which `tests/rejection/test_conformance.py` checks:

    - A rejection test calls `gradients` first, to look up keys, and then, for the trees that are left, either `verdicts` or the
      screen (`screen_losses`), which calls `start_descent`, also of an engine of the same class that it constructs with the
      arguments below for samples whose targets are exchanged. An engine serves one thread.
    - `gradients` and `verdicts` take any number of trees, also none, and return one result per tree in the same order. A
      result is a pure function of its tree: it equals the result of a batch of one, whatever was computed before.
    - `verdicts` equals `conclude` of each tree's descent. `ReferenceEngine` defines what is right: other engines return its
      gradients and verdicts up to rounding, and serve every tree that it serves, if need be by handing it over.
    - A gradient that is zero or not finite, and a descent that ends early, are results. A tree with a leaf that the branch does
      not have, or with more than `operator_cap` operators in an engine that enforces it, is a `RequestError`.

    To add an engine, subclass this in a file of its own and add a row to `autoloss.rejection.engines.ENGINES`.

    Args:
        branch: Its metric is evaluated on the optimised predictions.
        reference: The samples, with their metric at the start and at the target.
        directions: One fixed direction per sample for `Gradient.products`; by default those of seed 0.
        operator_cap: The most operators of a tree, for engines that reserve memory by it. The reference accepts any tree.

    Attributes:
        batch_size: Number of trees that a caller should pass at once, if it has them. Everything after the first loss that
            passes is computed in vain, so an engine that gains nothing from batches leaves this at 1.
        allows_early_stops: Whether a search may screen losses before it runs all steps (see `screen.py`).
    """

    batch_size: ClassVar[int] = 1
    allows_early_stops: ClassVar[bool] = True

    def __init__(
        self,
        branch: Branch,
        reference: Reference,
        settings: ProtocolSettings,
        *,
        directions: Sequence[Tensor] | None = None,
        operator_cap: int = OPERATOR_CAP,
    ) -> None:
        self.branch = branch
        self.reference = reference
        self.settings = settings
        self.directions = tuple(draw_directions(reference.samples, seed=0) if directions is None else directions)
        self.operator_cap = operator_cap
        self._prepare()

    def _prepare(self) -> None:
        """Make what the engine computes with, once; nothing by default."""
        return

    @abstractmethod
    def gradients(self, expressions: Sequence[Expression]) -> list[Gradient]:
        """Differentiate each loss's plain sum with respect to the raw initial predictions, in float64."""

    def verdicts(self, expressions: Sequence[Expression]) -> list[Verdict]:
        """Run the whole protocol for each loss."""
        return [conclude(self.start_descent(expression), self.settings) for expression in expressions]

    @abstractmethod
    def start_descent(self, expression: Expression) -> Descent:
        """Return the descent of one loss on all samples, before its first step."""

    def check_leaves(self, expression: Expression) -> None:
        """Check that the branch has all leaves of a tree.

        Raises:
            RequestError: It lacks one.
        """
        for name in sorted(expression.leaves - {CONSTANT}):
            if name not in self.branch.leaves_and_roles:
                raise unknown("leaf of this branch", name, self.branch.leaves_and_roles)
