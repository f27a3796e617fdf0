"""Losses of one-hot targets: y is 1 at the target's channel t and 0 at all others, so an element-wise tree is two functions of p.

Σ_c f(p_c, y_c) = f(p_t, 1) + Σ_{c≠t} f(p_c, 0). Where f(p, 0) does not depend on p, as in −y·log(p), the network's other
channels matter by the softmax alone, which is why cross entropy is cheap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autoloss.space.activated import ActivatedBranch, index_classes, is_plain, spatial, to_logits
from autoloss.space.branch import Branch
from autoloss.space.derivatives import ELEMENTWISE
from autoloss.space.expression import CONSTANT, Expression, build, leaf
from autoloss.space.form import PROBABILITIES
from autoloss.space.operators import OPERATORS, Operator, is_own

ZERO, ONE = leaf("y"), leaf(CONSTANT)
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-5}
"""Largest displacement of f(p, 0), relative and absolute, in each precision."""
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


def shorten(tree: Expression, branch: Branch) -> OneHotTree | None:
    """Return a tree as its two functions of p, or None where it has none with the same value and gradient."""
    if not is_plain(branch) or branch.encoding != "one_hot" or branch.activation not in PROBABILITIES:
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

    The tree has to be element-wise in p and y. f(p, 0) is a function of one number, so that it is compared with the tree all over
    its range: value and gradient have to be finite and the same in both precisions. A root that is squared becomes its operand
    where leaving out ε displaces too little to be seen. Everything else is computed as before.
    """
    if not {"y", "p"} <= tree.leaves <= {"y", "p", CONSTANT}:
        return None
    if any(one.name not in ELEMENTWISE or is_own(one) for one in tree.operators):
        return None
    for drops_roots in (True, False):
        found = tree.fold(leaf, partial(_shorten_node, drops_roots=drops_roots)).scaled(tree.factor)
        if all(_agree(tree, found, *each) for each in TOLERANCES.items()):
            return found
    return None


def _shorten_node(operator: Operator, parts: list[Expression], drops_roots: bool) -> Expression:
    """Return a node above shortened parts, itself shortened; `y` stands for 0."""
    for part, other in zip(parts, parts[::-1], strict=True) if len(parts) == 2 else ():
        if operator.name == "mul" and part == ZERO:
            return ZERO
        if (operator.name == "mul" and part == ONE) or (operator.name == "add" and part == ZERO):
            return other
    if operator.name == "square" and parts[0].root == OPERATORS["neg"]:
        parts = [*parts[0].children(0)]
    if operator.name == "square" and drops_roots and parts[0].root == OPERATORS["sqrt"]:
        return parts[0].children(0)[0]
    node = build(operator, *parts)
    if "p" in node.leaves:
        return node
    # ε makes log(1) one number or the other.
    values = {float(node.compute({"y": torch.zeros((), dtype=precision, device="cpu")})) for precision in TOLERANCES}
    return ZERO if values == {0.0} else ONE if values == {1.0} else node


def _agree(tree: Expression, others: Expression, precision: torch.dtype, tolerance: float) -> bool:
    halves = 0.5 ** torch.arange(150, dtype=torch.float64, device="cpu")
    grid = torch.cat([halves, 1 - halves[:53], torch.linspace(0, 1, 250, dtype=torch.float64, device="cpu")])
    found = [_differentiate(one, grid.to(precision)) for one in (others, tree)]
    return all(
        bool(wanted.isfinite().all()) and torch.allclose(one, wanted, rtol=tolerance, atol=tolerance)
        for one, wanted in zip(*found, strict=True)
    )


def _differentiate(tree: Expression, grid: Tensor) -> tuple[Tensor, Tensor]:
    """Return f(p, 0), and its slope times p, which is a factor of the slope of every activation."""
    with torch.inference_mode(False), torch.enable_grad():
        p = grid.clone().requires_grad_()
        value = tree.compute({"y": torch.zeros_like(grid), "p": p})
        slope = torch.autograd.grad(value.sum(), p)[0] if value.requires_grad else torch.zeros_like(grid)
    return value.detach(), slope * grid
