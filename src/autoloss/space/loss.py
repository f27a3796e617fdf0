"""Trees of all branches → one scalar, and the two reductions of the paper, each by its name.

Training divides the sum over all elements by N·H·W (Section 3.1); the rejection protocol takes the plain sum (Appendix A).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, shown, unknown
from autoloss.space.activated import ActivatedBranch, Divisor, Encoding, fitting
from autoloss.space.branch import Activation, Branch, BranchLoss, Criterion
from autoloss.space.expression import Expression
from autoloss.space.loss_text import MAIN, join_branches
from autoloss.space.operators import OPERATORS, Operator, raised
from autoloss.space.parsing import MAXIMUM_CHARACTERS, FormulaError, parse


class Loss(Mapping[str, Expression]):
    """One tree per branch; immutable, equal by structure.

    Args:
        trees: Branch name → tree. A bare tree or its text is the loss of the one branch `main`.
    """

    __slots__ = ("_trees",)

    def __init__(self, trees: Mapping[str, Expression | str] | Expression | str) -> None:
        given = {MAIN: trees} if isinstance(trees, Expression | str) else trees
        if not given:
            raise ValueError("A loss needs a tree for at least one branch.")
        parsed = {name: parse(tree) if isinstance(tree, str) else tree for name, tree in given.items()}
        self._trees = MappingProxyType(parsed)

    @classmethod
    def parse(
        cls,
        text: str,
        leaves: Mapping[str, Iterable[str]] | None = None,
        operators: Mapping[str, Operator] = OPERATORS,
    ) -> Loss:
        """Read `rpn_cls: …; rpn_reg: …`, or the bare formula of the one branch `main`.

        Args:
            leaves: Branch → the leaves that may occur there; any of the known ones by default.
            operators: The operators that may occur, by name.

        Raises:
            FormulaError: A formula is wrong, a branch comes twice, or one has no name.
        """
        allowed = leaves or {}
        if len(text) > MAXIMUM_CHARACTERS:
            raise FormulaError(text, MAXIMUM_CHARACTERS, f"a loss has at most {MAXIMUM_CHARACTERS} characters")
        if ":" not in text:
            return cls({MAIN: parse(text, allowed.get(MAIN), operators)})
        trees: dict[str, Expression] = {}
        end = 0
        for part in text.split(";"):
            start, end = end + len(part) - len(part.lstrip()), end + len(part) + 1
            if not part.strip():
                continue
            name, colon, formula = part.partition(":")
            name = name.strip()
            if not colon or not name.isidentifier():
                raise FormulaError(text, start, "expected 'branch: formula' between semicolons")
            if name in trees:
                raise FormulaError(text, start, f"branch {shown(name)} comes twice")
            trees[name] = parse(formula, allowed.get(name), operators)
        return cls(trees)

    def __str__(self) -> str:
        return join_branches(self._trees)

    def __repr__(self) -> str:
        return f"Loss({str(self)!r})"

    def __getitem__(self, branch: str) -> Expression:
        return self._trees[branch]

    def __iter__(self) -> Iterator[str]:
        return iter(self._trees)

    def __len__(self) -> int:
        return len(self._trees)

    def __hash__(self) -> int:
        return hash(frozenset(self._trees.items()))

    def __reduce__(self) -> tuple[type[Loss], tuple[dict[str, Expression]]]:
        return Loss, (dict(self._trees),)

    @property
    def operators(self) -> int:
        """The number of operators over all branches: the size of the loss."""
        return sum(len(tree.operators) for tree in self._trees.values())

    def criterion(
        self,
        activation: Activation = "softmax",
        *,
        ignore_index: int | None = None,
        target: Encoding = "one_hot",
        tolerance: int = 5,
        divisor: Divisor = "all",
    ) -> LossModule:
        """Return the loss as an `nn.Module` for any training loop: (prediction, target) → scalar.

        Args:
            activation: What the network leaves to its loss: softmax, sigmoid or none.
            ignore_index: Class index that counts nowhere, such as 255.
            target: What y is: the classes, or for boundary metrics their `edge` or `band`.
            tolerance: Half width of the band in pixels.
            divisor: Divide by `all` positions N·H·W as the paper does, or by the `valid` ones.

        Raises:
            RequestError: The loss has several branches, or an option is unknown.
        """
        if len(self) != 1:
            raise RequestError(
                f"This loss has the branches {', '.join(self)}; criterion() serves networks with one. "
                "Use autoloss.bind(loss, task.branches), or criterion() of a Loss of one of the trees."
            )
        branch = ActivatedBranch(
            activation=activation, ignore_index=ignore_index, encoding=target, tolerance=tolerance, divide_by=divisor
        )
        return LossModule(next(iter(self.values())), branch)


class LossModule(nn.Module):
    """A loss in the form of torch's own: called with raw predictions and targets, gives a scalar."""

    def __init__(self, expression: Expression, branch: ActivatedBranch) -> None:
        super().__init__()
        self.expression = expression
        self.branch = branch
        self._loss = bind({MAIN: expression}, {MAIN: branch})[MAIN]

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Compute the loss.

        Args:
            prediction: Raw, (N, C, H, W), (N, C, L), (N, C) or (N,).
            target: Class indices without the channel dimension, or values of the prediction's shape.

        Raises:
            RequestError: Shapes do not fit, a class is unknown, or `ignore_index` meets values.
        """
        fitted = fitting(target, prediction)
        if self.branch.ignore_index is not None and fitted.dtype != target.dtype and fitted.is_floating_point():
            raise RequestError(
                f"Integers of the prediction's own shape {tuple(target.shape)} are values, so no index among them can be "
                "ignored. Drop the channel dimension to give class indices, or leave ignore_index out."
            )
        return self._loss(prediction, {"target": fitted})

    def extra_repr(self) -> str:
        return f"{self.expression}, activation={self.branch.activation!r}"


def plain_sum(output: Tensor, mask: Tensor | None) -> Tensor:
    """Sum all elements of o (N, C, H, W) that count: the rejection protocol's reduction.

    Masked elements leave by selection, since 0·NaN would be NaN.
    """
    return (output if mask is None else torch.where(mask, output, torch.zeros_like(output))).sum()


def mean_over_positions(output: Tensor, mask: Tensor | None, divisor: float | Tensor) -> Tensor:
    """Sum channels and average over positions: training's reduction, L = (1/NHW) Σ o (Section 3.1)."""
    return plain_sum(output, mask) / divisor


def output(expression: Expression, branch: Branch, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
    """Evaluate a branch's tree, never in 16 bits, whatever autocast says."""
    with torch.autocast(prediction.device.type, enabled=False):
        return expression.evaluate(branch.leaves(raised(prediction), context))


def bind(loss: Mapping[str, Expression | BranchLoss], branches: Mapping[str, Branch]) -> Criterion:
    """Make the criterion that trains a network: trees with their weight, mask and divisor; hand-written losses as they are.

    Args:
        loss: A `Loss`, or branch name → tree or hand-written loss. A hand-written one brings its own weight.
        branches: The task's branches; each needs a loss.

    Raises:
        RequestError: The loss lacks a branch or names one that the task does not have.
    """
    for name in loss:
        if name not in branches:
            raise unknown("branch", name, branches)
    for name in branches:
        if name not in loss:
            raise unknown("loss for the branch", name, loss)
    return {name: _bound(loss[name], branches[name]) for name in branches}


def _bound(loss: Expression | BranchLoss, branch: Branch) -> BranchLoss:
    if not isinstance(loss, Expression):
        return loss
    expression = loss

    def bound(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        value = output(expression, branch, prediction, context)
        return branch.weight * mean_over_positions(value, branch.mask(context), branch.divisor(context))

    return bound
