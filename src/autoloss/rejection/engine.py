"""The interface of what computes the loss-rejection protocol (Section 3.2): gradients and verdicts of losses on one branch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from autoloss.errors import unknown
from autoloss.rejection.gradients import Gradient, draw_directions
from autoloss.rejection.protocol import Descent, Reference, Verdict, conclude
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch
from autoloss.space.expression import CONSTANT, Expression

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
