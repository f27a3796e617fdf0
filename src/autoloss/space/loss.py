"""A loss: the trees of all branches, and the two reductions of the paper.

Training divides the sum over all elements by N·H·W (Section 3.1); the rejection protocol takes the plain sum (Appendix A).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, name_kind, quote, unknown
from autoloss.options import check_arguments
from autoloss.showing import plot, to_html
from autoloss.space.activated import ActivatedBranch, fitting
from autoloss.space.branch import Branch, BranchLoss, Criterion
from autoloss.space.expression import Expression
from autoloss.space.form import Activation, Divisor, Encoding
from autoloss.space.loss_text import MAIN, join_branches
from autoloss.space.one_hot import LEAST, OneHotTree, shorten
from autoloss.space.operators import OPERATORS, Operator, upcast
from autoloss.space.parsing import MAXIMUM_CHARACTERS, FormulaError, parse

if TYPE_CHECKING:
    from autoloss.space.boosting import CatBoostObjective, LightGBMObjective, XGBoostObjective


def criterion(
    self: Loss | HandWritten,
    activation: Activation | None = None,
    *,
    ignore_index: int | None = None,
    target: Encoding = "one_hot",
    tolerance: int = 5,
    divisor: Divisor = "all",
    shares: tuple[float, ...] = (),
) -> LossModule:
    """Return the loss as an `nn.Module` for any training loop: (prediction, target) → scalar.

    Args:
        activation: The activation applied to the raw prediction: softmax, sigmoid or none. By default softmax, and that of its
            entry for a loss of the zoo.
        ignore_index: Class index whose positions are left out, such as 255.
        target: The encoding of y: `one_hot` classes, or for boundary metrics their `edge` or `band`.
        tolerance: Half width of the band in pixels.
        divisor: Divide by `all` positions N·H·W, as in the paper, or by the `valid` ones.
        shares: Of the classes in the training data, for losses with fixed class weights, which otherwise take those of a batch.

    Raises:
        RequestError: The loss has several branches, or an option is unknown.

    >>> criterion = Loss("-y * log(p)").criterion()
    >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3863)
    """
    if isinstance(self, Loss) and len(self) != 1:
        raise RequestError(
            f"This loss has the branches {', '.join(self)}; criterion() is for one branch. "
            "Use autoloss.bind(loss, task.branches), or Loss(tree).criterion() for one of the trees."
        )
    branch = ActivatedBranch(
        activation=_choose_activation(self, activation),
        ignore_index=ignore_index,
        encoding=target,
        tolerance=tolerance,
        divide_by=divisor,
        shares=tuple(shares),
    )
    name = str(self) if isinstance(self, HandWritten) else str(*self.values())
    return LossModule(name, bind({MAIN: self}, {MAIN: branch})[MAIN], branch)


def _choose_activation(loss: Loss | HandWritten, activation: Activation | None) -> Activation:
    """Return the given activation, or that of the loss; a loss of pairs or boxes has none."""
    if activation is None and loss.activation not in get_args(Activation):
        raise RequestError(
            f"This loss is for predictions of the kind {loss.activation}. Use autoloss.bind(loss, task.branches)."
        )
    return loss.activation if activation is None else activation


class Loss(Mapping[str, Expression]):
    """One tree per branch; immutable, equal by structure.

    Args:
        trees: Branch name → tree. A single tree or its text is the loss of the only branch, `main`.
        activation: That of its `criterion` by default.

    >>> loss = Loss("-y * log(p)")
    >>> loss
    Loss('neg(mul(y, log(p)))')
    >>> loss == Loss({"main": parse("-y * log(p)")})
    True
    """

    __slots__ = ("_trees", "activation")
    _repr_html_, plot = to_html, plot

    def __init__(
        self,
        trees: Mapping[str, Expression | str] | Expression | str,
        *,
        activation: Activation = "softmax",
    ) -> None:
        check_arguments(Loss.__init__, {"trees": trees})
        given = {MAIN: trees} if isinstance(trees, Expression | str) else trees
        if not given:
            raise ValueError("A loss needs a tree for at least one branch.")
        self._trees = {name: parse(tree) if isinstance(tree, str) else tree for name, tree in given.items()}
        self.activation: Activation = activation

    @classmethod
    def parse(
        cls,
        text: str,
        leaves: Mapping[str, Iterable[str]] | None = None,
        operators: Mapping[str, Operator] = OPERATORS,
    ) -> Loss:
        """Parse `rpn_cls: …; rpn_reg: …`, or a single formula as the loss of the only branch, `main`.

        Args:
            leaves: Branch → its allowed leaves; `LEAVES` by default.
            operators: The allowed operators, by name.

        Raises:
            FormulaError: A formula is wrong, or a branch is repeated or has no name.

        >>> loss = Loss.parse("cls: -y * log(p); reg: 1 - i / u")
        >>> str(loss["reg"])
        'add(1, neg(mul(i, inv(u))))'
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
                raise FormulaError(text, start, f"branch {quote(name)} is given twice")
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

    @property
    def operators(self) -> int:
        """The number of operators over all branches: the size of the loss."""
        return sum(len(tree.operators) for tree in self._trees.values())

    criterion = criterion

    def objective(
        self,
        library: str,
        labels: Any,
        weight: Any = None,
        *,
        activation: Activation | None = None,
        classes: int | None = None,
        **options: Any,
    ) -> LightGBMObjective | XGBoostObjective | CatBoostObjective:
        """Return the loss as an objective of gradient boosting, checked on the labels of the training set.

        Gradient and Hessian are exact, in double precision. The loss is scaled so that its gradients at the start are as large as
        those of cross entropy, or of squares: learning rate and regularisation mean what they mean for the built-in objective.

        Args:
            library: `lightgbm`, `xgboost` or `catboost`.
            labels: Of the rows of the training set, (N,): 0 and 1, the numbers of the classes, or numbers with
                `activation="none"`. Two classes have one score, and the formula is summed over both, as in `criterion`.
            weight: Of these rows.
            activation: Of the scores: softmax, sigmoid (for each class by itself) or none. By default as in `criterion`.
            classes: The number of classes; found in the labels by default.
            options: `hessian`: `true`, `abs` (of the true one), `standard` (of cross entropy or squares), or `ones`. `floor`: the
                least Hessian as a share of the standard one, 0.05 by default. `scale`: `standard`; `mean`: Hessians of each round
                have the mean 1; or `none`. `start`: `loss`, the best constant score; `standard`; or numbers. `standardise`: whether
                p and y of `activation="none"` are standardised by the labels, as in tables; True by default.

        Raises:
            RequestError: The loss has several branches or mixes rows, the library is missing or too old, or labels, weights or
                options are wrong.

        >>> import numpy as np
        >>> objective = Loss("-y * log(p)").objective("lightgbm", np.array([0, 0, 0, 1]))
        >>> first, second = objective.objective.differentiate(objective.objective.start + np.zeros((2, 1)), np.array([0, 1]))
        >>> first.ravel().round(4).tolist(), second.ravel().round(4).tolist()
        ([0.25, -0.75], [0.1875, 0.1875])
        """
        from autoloss.space.boosting import make_library_objective

        if len(self) != 1:
            raise RequestError(
                f"This loss has the branches {', '.join(self)}; an objective is for one. Use Loss(tree).objective() for one of "
                "the trees."
            )
        (tree,) = self.values()
        chosen = _choose_activation(self, activation)
        return make_library_objective(library, tree, labels, weight, chosen, classes, options)


def plain_sum(output: Tensor, mask: Tensor | None) -> Tensor:
    """Sum the elements of o (N, C, H, W) at positions that count: the reduction of the rejection protocol.

    Masked elements are replaced, not multiplied by 0, since 0·NaN is NaN.
    """
    return (output if mask is None else torch.where(mask, output, torch.zeros_like(output))).sum()


def mean_over_positions(output: Tensor, mask: Tensor | None, divisor: float | Tensor) -> Tensor:
    """Sum over channels and average over positions: the reduction of training, L = (1/NHW) Σ o (Section 3.1)."""
    return plain_sum(output, mask) / divisor


def output(expression: Expression, branch: Branch, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
    """Evaluate the tree of a branch, in at least float32 also under autocast."""
    with torch.autocast(prediction.device.type, enabled=False):
        return expression.evaluate(branch.leaves(upcast(prediction), context))


def bind(loss: Mapping[str, Expression | BranchLoss | Loss | HandWritten], branches: Mapping[str, Branch]) -> Criterion:
    """Return the criterion that trains a network: one callable per branch, (raw prediction, context) → scalar.

    A tree is multiplied by the weight of its branch, and uses its mask and divisor. Hand-written losses are kept as they are.

    Args:
        loss: A `Loss`, or branch name → tree, hand-written loss or what `zoo.get` returns. A hand-written loss applies its own
            weight.
        branches: The branches of the task; each needs a loss.

    Raises:
        RequestError: The loss lacks a branch, or has one that the task does not have, or a value is not a loss.

    >>> criterion = bind(Loss("-y * log(p)"), {"main": ActivatedBranch()})
    >>> criterion["main"](torch.zeros(2, 4), {"target": torch.tensor([0, 3])})
    tensor(1.3863)
    """
    for name in loss:
        if name not in branches:
            raise unknown("branch", name, branches)
    for name in branches:
        if name not in loss:
            raise unknown("loss for the branch", name, loss)
    return {name: _bind_branch(name, loss[name], branches[name]) for name in branches}


def scale_criterion(criterion: Criterion, scale: Mapping[str, float]) -> Criterion:
    """Multiply the losses of the branches that `scale` names; `main` stands for the only branch, whatever its name.

    >>> scaled = scale_criterion({"cls": lambda prediction, context: prediction.sum()}, {"main": 10.0})
    >>> scaled["cls"](torch.ones(2), {})
    tensor(20.)
    """
    if len(criterion) == 1 and MAIN in scale:
        scale = dict.fromkeys(criterion, scale[MAIN])
    return {name: _times(loss, scale[name]) if name in scale else loss for name, loss in criterion.items()}


def _times(loss: BranchLoss, factor: float) -> BranchLoss:
    return lambda prediction, context: factor * loss(prediction, context)


def _bind_branch(name: str, loss: Expression | BranchLoss | Loss | HandWritten, branch: Branch) -> BranchLoss:
    if isinstance(loss, HandWritten):
        return loss.make(branch)
    if isinstance(loss, Loss) and len(loss) == 1:
        loss = next(iter(loss.values()))
    if not isinstance(loss, Expression):
        if isinstance(loss, LossModule) or not callable(loss):
            raise RequestError(
                f"The loss of the branch {name} is {_describe(loss)}; expected a tree (autoloss.parse), a Loss of one branch, or "
                "a function (raw prediction, context) → scalar."
            )
        return loss
    return TreeLoss(loss, branch, shorten(loss, branch))


@dataclass(frozen=True, slots=True)
class TreeLoss:
    """The loss that a tree gives a branch: (raw prediction, context) → scalar.

    Args:
        one_hot: The tree as functions of p alone, for targets that are class indices.
        least: Numbers in a prediction from which it is used.
    """

    expression: Expression
    branch: Branch
    one_hot: OneHotTree | None = None
    least: int = LEAST

    def __call__(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        mask = self.branch.mask(context)
        if self.one_hot is None or prediction.numel() < self.least or context["target"].is_floating_point():
            value = output(self.expression, self.branch, prediction, context)
        else:
            with torch.autocast(prediction.device.type, enabled=False):
                value = self.one_hot.evaluate(prediction, context["target"], mask)
        return self.branch.weight * mean_over_positions(value, mask, self.branch.divisor(context))


def _describe(found: object) -> str:
    if isinstance(found, Loss):
        return f"a Loss of the branches {', '.join(found)}"
    if isinstance(found, LossModule):
        return "a criterion, which takes a target instead of a context"
    return "None" if found is None else f"{name_kind(found)}, {quote(found)}"


@dataclass(frozen=True, slots=True)
class HandWritten:
    """A named loss that is not a tree; its text form is its name."""

    name: str
    make: Callable[[Branch], BranchLoss]
    activation: Activation = "softmax"

    def __str__(self) -> str:
        return self.name

    criterion = criterion


class LossModule(nn.Module):
    """A loss as a module like those of torch: (raw prediction, target) → scalar.

    Args:
        name: The formula of a tree, or the name of a hand-written loss.
        loss: The loss on the branch.
    """

    def __init__(self, name: str, loss: BranchLoss, branch: ActivatedBranch) -> None:
        super().__init__()
        self.name = name
        self.branch = branch
        self._loss = loss

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Compute the loss.

        Args:
            prediction: Raw, (N, C, H, W), (N, C, D, H, W), (N, C, L), (N, C) or (N,).
            target: Class indices without the channel dimension, or values of the prediction's shape.

        Raises:
            RequestError: Shapes or types do not fit, or a class index is out of range.
        """
        for name, found in (("prediction", prediction), ("target", target)):
            if not torch.is_tensor(found):
                raise RequestError(f"The {name} is {name_kind(found)}; expected a tensor: torch.as_tensor({name}).")
        return self._loss(prediction, {"target": fitting(target, prediction, self.branch.activation)})

    def extra_repr(self) -> str:
        return f"{self.name}, activation={self.branch.activation!r}"
