"""Table 1: the primitive operators of the search space."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

EPSILON = 1e-12
"""Keeps logarithms, roots and inverses finite at 0 (Table 1). It is 0 in float16: see `upcast`."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of Table 1: maps `arity` tensors of one shape, (N, C, H, W) or (N, C, D, H, W), to that same shape.

    Operators are equal by name and arity, so that one sent to another process stays equal. The function of a user-defined
    operator has to keep the shape and be differentiable; `own_operators.build_operator_table` checks it.

    Args:
        latex: A template such as `\\tanh\\left({0}\\right)`; by default the name with its operands.

    Raises:
        ValueError: The name is not an identifier, or the arity is neither 1 nor 2.

    >>> sine = Operator("sin", 1, torch.sin)
    >>> sine.function(torch.zeros(1))
    tensor([0.])
    >>> sine == Operator("sin", 1, torch.cos)
    True
    """

    name: str
    arity: int
    function: Callable[..., Tensor] = field(compare=False)
    latex: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"An operator's name must be an identifier, like 'tanh'; found {self.name!r}.")
        if self.arity not in (1, 2):
            raise ValueError(f"Operator {self.name!r} has arity {self.arity}; expected 1 or 2.")
        if not self.latex:
            operands = ", ".join(f"{{{number}}}" for number in range(self.arity))
            named = self.name.replace("_", r"\_")
            object.__setattr__(self, "latex", rf"\mathrm{{{{{named}}}}}\left({operands}\right)")


def inverse(x: Tensor) -> Tensor:
    """Return 1 / (x + ε)."""
    return 1.0 / (x + EPSILON)


def signed_log(x: Tensor) -> Tensor:
    """Return sign(x) · log(|x| + ε)."""
    # sign(0) is 0, so both the value and the gradient are 0 at x = 0. The gradient of sign is 0: autograd need not compute it.
    return x.detach().sign() * (x.abs() + EPSILON).log()


def signed_sqrt(x: Tensor) -> Tensor:
    """Return sign(x) · √(|x| + ε)."""
    return x.detach().sign() * (x.abs() + EPSILON).sqrt()


def mean_nhw(x: Tensor) -> Tensor:
    """Return the mean over batch and positions, for each channel."""
    return x.mean(dim=(0, *range(2, x.ndim)), keepdim=True).expand_as(x)


def mean_c(x: Tensor) -> Tensor:
    """Return the mean over the channels."""
    return x.mean(dim=1, keepdim=True).expand_as(x)


def max_pool(x: Tensor) -> Tensor:
    """Return the maximum over each position and its neighbours."""
    # torch pads with minus infinity, so padding never wins; of equal values the first takes the gradient.
    pool = F.max_pool3d if x.ndim == 5 else F.max_pool2d
    return pool(x, kernel_size=3, stride=1, padding=1)


def min_pool(x: Tensor) -> Tensor:
    """Return the minimum over each position and its neighbours."""
    return -max_pool(-x)


OPERATORS: dict[str, Operator] = {
    row.name: row
    for row in (
        Operator("add", 2, torch.add, r"\left({0} + {1}\right)"),
        Operator("mul", 2, torch.mul, r"{0} \cdot {1}"),
        Operator("neg", 1, torch.neg, r"-{0}"),
        Operator("abs", 1, torch.abs, r"\left|{0}\right|"),
        Operator("inv", 1, inverse, r"\frac{{1}}{{{0}}}"),
        Operator("log", 1, signed_log, r"\log\left({0}\right)"),
        Operator("exp", 1, torch.exp, r"\exp\left({0}\right)"),
        Operator("tanh", 1, torch.tanh, r"\tanh\left({0}\right)"),
        Operator("square", 1, torch.square, r"\left({0}\right)^2"),
        Operator("sqrt", 1, signed_sqrt, r"\sqrt{{{0}}}"),
        Operator("mean_nhw", 1, mean_nhw, r"\mathrm{{Mean}}_{{nhw}}\left({0}\right)"),
        Operator("mean_c", 1, mean_c, r"\mathrm{{Mean}}_{{c}}\left({0}\right)"),
        Operator("max_pool", 1, max_pool, r"\mathrm{{MaxPool}}\left({0}\right)"),
        Operator("min_pool", 1, min_pool, r"\mathrm{{MinPool}}\left({0}\right)"),
    )
}

COMMUTATIVE = frozenset({"add", "mul"})


def is_own(operator: Operator) -> bool:
    """Return True if an operator, or the function behind its name, is not that of Table 1."""
    return operator.name not in OPERATORS or operator.function is not OPERATORS[operator.name].function


def upcast(x: Tensor) -> Tensor:
    """Convert 16-bit tensors to float32: `EPSILON` is 0 in float16, and no loss is computed in 16 bits."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
