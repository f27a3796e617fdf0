"""Losses of one-hot targets: y is 1 at the target's channel t and 0 at all others, so an element-wise tree is two functions of p.

Σ_c f(p_c, y_c) = f(p_t, 1) + Σ_{c≠t} f(p_c, 0). Where f(p, 0) does not depend on p, as in −y·log(p), the network's other
channels matter by the softmax alone, which is why cross entropy is cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from autoloss.space.activated import ActivatedBranch, index_classes, is_plain, spatial, to_logits
from autoloss.space.branch import Branch
from autoloss.space.expression import CONSTANT, Expression, Symbol, arity
from autoloss.space.operators import EPSILON, OPERATORS, Operator
from autoloss.space.ranges import LARGE, UNIT, Range, bound_operation, bound_slope

ELEMENTWISE = frozenset({"add", "mul", "neg", "abs", "inv", "log", "exp", "tanh", "square", "sqrt"})
ACTIVATIONS = ("softmax", "sigmoid")
ROUNDING = 1e-11
"""Largest displacement of f(p, 0) where ε is left out of it; single precision rounds more."""
LEAST = 2**14
"""Numbers in a prediction from which the shorter way is the faster one; below, all channels take fewer calls."""
USUAL = (0.5, 0.999, 0.25, 0.1, 0.03, 0.01, 0.001)
"""Probabilities of which one stands for the target's where f(p, 0) is summed over all channels."""


@dataclass(frozen=True, slots=True)
class OneHotTree:
    """A tree as its two functions of p.

    Args:
        tree: f, of the leaves y and p.
        others: f(p, 0), written shorter; y is 0 in it.
        usual: The one of `USUAL` at which |f(p, 0)| is least: what it adds to the sum, and is subtracted, rounds nothing else. None
            where f(p, 0) does not depend on p.
        branch: What makes p and the classes.
    """

    tree: Expression
    others: Expression
    usual: float | None
    branch: ActivatedBranch

    def evaluate(self, prediction: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        """Compute the sum over channels of the tree's output, (N, 1, H, W).

        Args:
            prediction: Raw.
            target: Class indices.
            mask: True where a position counts; elsewhere the result means nothing, and has no gradient.

        Raises:
            RequestError: The shapes do not fit, or a class index is not among the channels.
        """
        logits, is_softmax = to_logits(spatial(prediction), self.branch.activation)
        classes = index_classes(target, logits, self.branch.ignore_index)
        picked, p = separate_channels(logits, classes, is_softmax, self.usual)
        if mask is not None:
            picked = torch.where(mask, picked, USUAL[0])
        output = self.tree.compute({"y": logits.new_ones(()), "p": picked})
        if self.others.root == "y":
            return output
        zero = logits.new_zeros(())
        if self.usual is None:
            return output + (p.shape[1] - 1) * self.others.compute({"y": zero})
        usual = self.others.compute({"y": zero, "p": logits.new_full((), self.usual)})
        return output + (self.others.compute({"y": zero, "p": p}).sum(dim=1, keepdim=True) - usual)


def separate_channels(
    logits: Tensor,
    classes: Tensor,
    is_softmax: bool,
    usual: float | None,
) -> tuple[Tensor, Tensor]:
    """Return the probability of each position's class, (N, 1, H, W), and those of all channels with `usual` in its place.

    Args:
        logits: (N, C, H, W).
        classes: Class indices, (N, 1, H, W).
        usual: None where only the former are needed.
    """
    if is_softmax and not torch.compiler.is_compiling():
        return SeparateSoftmax.apply(logits, classes, usual)
    channels = torch.arange(logits.shape[1], device=logits.device)
    is_class = classes == channels.view(-1, *[1] * (logits.ndim - 2))
    if is_softmax:
        scores = logits.log_softmax(dim=1)
        picked = torch.where(is_class, scores, 0.0).sum(dim=1, keepdim=True).exp()
        # Compiled code on a CPU keeps every exp that is used twice; exp2 is computed again, which is faster.
        p = (scores * math.log2(math.e)).exp2()
    else:
        p = logits.sigmoid()
        picked = torch.where(is_class, p, 0.0 * p.detach()).sum(dim=1, keepdim=True)
    return picked, p if usual is None else torch.where(is_class, usual, p)


class SeparateSoftmax(torch.autograd.Function):
    """`separate_channels` of a softmax; the gradient takes no more memory than that of the softmax alone."""

    @staticmethod
    def forward(
        logits: Tensor,
        classes: Tensor,
        usual: float | None,
    ) -> tuple[Tensor, Tensor]:
        p = logits.softmax(dim=1)
        picked = p.gather(1, classes)
        return picked, p if usual is None else p.scatter_(1, classes, usual)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output, inputs[1])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None, None]:
        picked, p, classes = ctx.saved_tensors
        of_picked, of_p = grad_outputs
        slope = torch.zeros_like(picked) if of_picked is None else of_picked
        if of_p is None:
            mean = picked * slope
            found = p * -mean
        else:
            found = (p * of_p).scatter_(1, classes, picked * slope)
            mean = found.sum(dim=1, keepdim=True)
            found = found.addcmul_(p, mean, value=-1)
        return found.scatter_(1, classes, picked * (slope - mean)), None, None


def find_one_hot_tree(tree: Expression, branch: Branch) -> OneHotTree | None:
    """Return a tree as its two functions of p, or None where the branch or the tree has none."""
    if not is_plain(branch) or branch.encoding != "one_hot" or branch.activation not in ACTIVATIONS:
        return None
    others = find_others(tree)
    return None if others is None else OneHotTree(tree, others, _find_usual(others), branch)


def _find_usual(others: Expression) -> float | None:
    if "p" not in others.leaves:
        return None
    p = torch.tensor(USUAL, device="cpu", dtype=torch.float64)
    found = others.compute({"y": torch.zeros_like(p), "p": p}).abs()
    return USUAL[int(found.argmin())]


def find_others(tree: Expression) -> Expression | None:
    """Return f(p, 0) in a shorter form, or None where the tree has none that is exact for all p in [0, 1].

    The tree has to be element-wise in p and y. f(p, 0), all that it is computed from, and all gradients have to stay finite in
    single precision, by interval arithmetic: only then 0·x is 0, and its gradient too. A root that is squared becomes its operand
    where that displaces f(p, 0) by at most `ROUNDING`; ε is left out there. Everything else is computed as before.
    """
    if not {"y", "p"} <= tree.leaves <= {"y", "p", CONSTANT} or not all(map(_is_elementwise, tree.operators)):
        return None
    below = _find_operands(tree)
    given: dict[int, _Node] = {}
    for place in reversed(range(len(tree.symbols))):
        node = _make_node(tree.symbols[place], [given[each] for each in below[place]])
        if not node.range.within(-LARGE, LARGE):
            return None
        given[place] = node
    slopes = _bound_slopes(tree, below, given)
    if not all(slope <= LARGE for slope in slopes):
        return None
    short: dict[int, _Node] = {}
    for place in reversed(range(len(tree.symbols))):
        parts = [short[each] for each in below[place]]
        short[place] = _shorten(tree.symbols[place], parts, slopes[place] * EPSILON <= ROUNDING)
    return short[0].to_expression(tree.factor)


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A node of f(p, 0).

    Args:
        constant: Its value in single and in double precision; empty where it depends on p.
    """

    symbol: Symbol
    parts: tuple[_Node, ...]
    range: Range
    constant: tuple[Tensor, ...] = ()

    def is_exactly(self, value: float) -> bool:
        """Say whether the node has this value in single and in double precision: ε makes log(1) one thing or the other."""
        return bool(self.constant) and all(float(each) == value for each in self.constant)

    def to_expression(self, factor: float) -> Expression:
        symbols: list[Symbol] = []
        waiting: list[_Node] = [self]
        while waiting:
            node = waiting.pop()
            symbols.append(node.symbol)
            waiting.extend(reversed(node.parts))
        return Expression(tuple(symbols), factor)


def _is_elementwise(operator: Operator) -> bool:
    return operator.name in ELEMENTWISE and operator.function is OPERATORS[operator.name].function


def _find_operands(tree: Expression) -> list[tuple[int, ...]]:
    """Return the places of each node's operands."""
    found: list[tuple[int, ...]] = [()] * len(tree.symbols)
    stack: list[int] = []
    for place in reversed(range(len(tree.symbols))):
        found[place] = tuple(stack.pop() for _ in range(arity(tree.symbols[place])))
        stack.append(place)
    return found


def _make_node(symbol: Symbol, parts: list[_Node]) -> _Node:
    if symbol == "p":
        return _Node(symbol, (), UNIT)
    if isinstance(symbol, str):
        value = torch.tensor(float(symbol == CONSTANT), device="cpu", dtype=torch.float64)
        constant = value.float(), value
    elif all(part.constant for part in parts):
        constant = tuple(symbol.function(*each) for each in zip(*(part.constant for part in parts), strict=True))
    else:
        return _Node(symbol, tuple(parts), bound_operation(symbol.name, [part.range for part in parts]))
    # The difference tells numbers that are not finite, which have no range.
    low, high = min(map(float, constant)), max(map(float, constant))
    return _Node(symbol, tuple(parts), Range(low, high) if math.isfinite(high - low) else Range(), constant)


def _bound_slopes(tree: Expression, below: list[tuple[int, ...]], nodes: dict[int, _Node]) -> list[float]:
    """Return the largest absolute value of the gradient that reaches each node from the root."""
    slopes = [abs(tree.factor)] * len(tree.symbols)
    for place, operands in enumerate(below):
        for each in operands:
            operator = cast(Operator, tree.symbols[place])
            other = operands[0] if each == operands[-1] else operands[-1]
            own, one, two = (nodes[known].range for known in (place, each, other))
            # What a constant gets goes nowhere.
            slopes[each] = 0.0 if nodes[each].constant else slopes[place] * bound_slope(operator.name, own, one, two)
    return slopes


def _shorten(symbol: Symbol, parts: list[_Node], drops_epsilon: bool) -> _Node:
    """Return a node above shortened parts, itself shortened."""
    if not isinstance(symbol, Operator):
        return _make_node(symbol, parts)
    for part, other in zip(parts, parts[::-1], strict=True) if len(parts) == 2 else ():
        if symbol.name == "mul" and part.is_exactly(0):
            return part
        if (symbol.name == "mul" and part.is_exactly(1)) or (symbol.name == "add" and part.is_exactly(0)):
            return other
    inner = parts[0]
    if symbol.name == "square" and not inner.constant:
        if _is_call(inner, "neg"):
            inner = inner.parts[0]
        if drops_epsilon and _is_call(inner, "sqrt") and inner.parts[0].range.low >= 0:
            return inner.parts[0]
        parts = [inner]
    node = _make_node(symbol, parts)
    for number, name in ((0.0, "y"), (1.0, CONSTANT)):
        if node.is_exactly(number):
            return _make_node(name, [])
    return node


def _is_call(node: _Node, name: str) -> bool:
    return isinstance(node.symbol, Operator) and node.symbol.name == name
