"""A person's own operators beside Table 1, each tried before any tree is drawn from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from autoloss.errors import RequestError, unknown
from autoloss.space.branch import Role
from autoloss.space.expression import CONSTANT
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import LEAVES

SHAPES = ((2, 3, 4, 5), (6, 3, 1, 1), (1, 1, 1, 1))
"""What an operator is tried on: images, rows, and a single number."""
SPECIAL = (0.0, 1.0, -1.0)
"""Values that every probe holds as far as it has room: one-hot targets are full of them."""


def table(own: Iterable[object] = ()) -> dict[str, Operator]:
    """Return Table 1 with further operators behind it, by name.

    Raises:
        RequestError: One is no operator, has a name that is taken, or its function changes the shape, is not finite, is not
            differentiable, or does not give the same twice.
    """
    known = dict(OPERATORS)
    for operator in own:
        if not isinstance(operator, Operator):
            raise RequestError(
                f"An operator of your own is an autoloss.Operator(name, arity, function); found a {type(operator).__name__}."
            )
        if operator.name in known or operator.name in (*LEAVES, CONSTANT):
            raise RequestError(f"The name {operator.name!r} is taken; give your operator another one.")
        for shape in SHAPES:
            for precision in (torch.float32, torch.float64):
                _try(operator, shape, precision)
        known[operator.name] = operator
    return known


def drawn(
    known: Mapping[str, Operator], without: Sequence[str], leaves: Mapping[str, Mapping[str, Role]]
) -> tuple[Operator, ...]:
    """Return the operators that trees are drawn from.

    Args:
        without: Names of those that are switched off.
        leaves: Branch → its leaves with their roles.

    Raises:
        RequestError: A name is unknown, or what is left cannot make a loss.
    """
    for name in without:
        if name not in known:
            raise unknown("operator", name, known)
    left = tuple(operator for name, operator in known.items() if name not in without)
    if not left:
        raise RequestError("All operators are switched off; leave some to draw from.")
    for branch, roles in leaves.items():
        if Role.BOTH not in roles.values() and all(operator.arity == 1 for operator in left):
            raise RequestError(
                f"A loss of the branch {branch} holds {' and '.join(roles)}, and no operator of two operands is left to join "
                "them. Keep add or mul."
            )
    return left


def _try(operator: Operator, shape: tuple[int, ...], precision: torch.dtype) -> None:
    operands = [_probe(shape, precision, seed).requires_grad_() for seed in range(operator.arity)]
    # Not the operands themselves: autograd would refuse a change in place, where a tree hands on what it computed.
    handed = [operand * 1.0 for operand in operands]
    try:
        # Whatever its signature promises.
        found, again = (cast(object, operator.function(*handed)) for _ in range(2))
    except Exception as error:
        raise _fault(operator, f"raises {type(error).__name__}: {error}", shape) from error
    if not all(torch.equal(operand, before) for operand, before in zip(handed, operands, strict=True)):
        raise _fault(operator, "changes its operands in place", shape)
    if not isinstance(found, Tensor) or found.shape != shape or found.dtype != precision:
        what = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise _fault(operator, f"returns {what}; expected the operands' shape and type, {precision}", shape)
    if not bool(torch.isfinite(found).all()):
        raise _fault(operator, "is not finite for values from -2 to 2, 0 among them", shape)
    if not isinstance(again, Tensor) or not torch.equal(found, again):
        raise _fault(operator, "gives something else the second time; a history needs the same each time", shape)
    if not found.requires_grad:
        raise _fault(operator, "has no gradient: what it returns does not depend on its operands for autograd", shape)
    slopes = cast("tuple[Tensor | None, ...]", torch.autograd.grad(found.sum(), operands, allow_unused=True))
    if any(slope is None or not bool(torch.isfinite(slope).all()) for slope in slopes):
        raise _fault(operator, "has no finite gradient in each operand for values from -2 to 2, 0 among them", shape)


def _probe(shape: tuple[int, ...], precision: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = 4 * torch.rand(shape, generator=generator, dtype=precision) - 2
    special = torch.tensor(SPECIAL[: values.numel()], dtype=precision)
    values.view(-1)[: len(special)] = special
    return values


def _fault(operator: Operator, problem: str, shape: tuple[int, ...]) -> RequestError:
    return RequestError(
        f"The operator {operator.name!r} cannot be used: on {operator.arity} operand{'s' * (operator.arity > 1)} (N, C, H, W) = "
        f"{shape} it {problem}."
    )
