"""User-defined operators in addition to Table 1, each checked before trees are drawn from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from autoloss.errors import FAILURES, RequestError, describe_user_error, name_kind, unknown
from autoloss.space.branch import Role
from autoloss.space.expression import CONSTANT
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import LEAVES

SHAPES = ((2, 3, 4, 5), (6, 3, 1, 1), (1, 1, 1, 1))
"""Shapes that an operator is checked on: images, rows, and a single number."""
SPECIAL = (0.0, 1.0, -1.0)
"""The first values of every operand of a check; one-hot targets consist of such values."""


def build_operator_table(own: Iterable[object] = ()) -> dict[str, Operator]:
    """Return the operators of Table 1, followed by user-defined ones, by name.

    Raises:
        RequestError: An element of `own` is not an operator, its name is taken, or its function changes the shape, is not
            finite, not differentiable or not deterministic.

    >>> list(build_operator_table([Operator("sin", 1, torch.sin)]))[-2:]
    ['min_pool', 'sin']
    """
    known = dict(OPERATORS)
    for operator in own:
        if not isinstance(operator, Operator):
            raise RequestError(f"Expected an autoloss.Operator(name, arity, function); found {name_kind(operator)}.")
        if operator.name in known or operator.name in (*LEAVES, CONSTANT):
            raise RequestError(f"The name {operator.name!r} is taken; give your operator another one.")
        for shape in SHAPES:
            for precision in (torch.float32, torch.float64):
                _check_operator(operator, shape, precision)
        known[operator.name] = operator
    return known


def select_operators(
    known: Mapping[str, Operator], without: Sequence[str], leaves: Mapping[str, Mapping[str, Role]]
) -> tuple[Operator, ...]:
    """Return the operators that trees are drawn from.

    Args:
        without: Names of the operators that are switched off.
        leaves: Branch → its leaves with their roles.
    """
    for name in without:
        if name not in known:
            raise unknown("operator", name, known)
    left = tuple(operator for name, operator in known.items() if name not in without)
    if not left:
        raise RequestError("All operators are excluded; keep at least one.")
    for branch, roles in leaves.items():
        if Role.BOTH not in roles.values() and all(operator.arity == 1 for operator in left):
            raise RequestError(
                f"A loss of the branch {branch} contains {' and '.join(roles)}, and no operator of two operands is left to "
                "combine them. Keep add or mul."
            )
    return left


def _check_operator(operator: Operator, shape: tuple[int, ...], precision: torch.dtype) -> None:
    operands = [_make_operand(shape, precision, seed).requires_grad_() for seed in range(operator.arity)]
    # Not the operands themselves: autograd refuses to change leaf tensors in place, but not intermediate values of a tree.
    handed = [operand * 1.0 for operand in operands]
    try:
        # The function may return anything, whatever its annotation says.
        found, again = (cast(object, operator.function(*handed)) for _ in range(2))
    except FAILURES as error:
        raise _make_error(operator, f"raises {describe_user_error(error)}", shape) from error
    if not all(torch.equal(operand, before) for operand, before in zip(handed, operands, strict=True)):
        raise _make_error(operator, "changes its operands in place", shape)
    if not isinstance(found, Tensor) or found.shape != shape or found.dtype != precision:
        what = f"{tuple(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else type(found).__name__
        raise _make_error(operator, f"returns {what}; expected the operands' shape and type, {precision}", shape)
    if not bool(torch.isfinite(found).all()):
        raise _make_error(operator, "is not finite for values from -2 to 2, including 0", shape)
    if not isinstance(again, Tensor) or not torch.equal(found, again):
        raise _make_error(operator, "returns another result the second time; it must be deterministic", shape)
    if not found.requires_grad:
        raise _make_error(operator, "has no gradient: for autograd its result does not depend on its operands", shape)
    slopes = cast("tuple[Tensor | None, ...]", torch.autograd.grad(found.sum(), operands, allow_unused=True))
    if any(slope is None or not bool(torch.isfinite(slope).all()) for slope in slopes):
        raise _make_error(operator, "has no finite gradient in each operand from -2 to 2, including 0", shape)


def _make_operand(shape: tuple[int, ...], precision: torch.dtype, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    values = 4 * torch.rand(shape, generator=generator, dtype=precision) - 2
    special = torch.tensor(SPECIAL[: values.numel()], dtype=precision)
    values.view(-1)[: len(special)] = special
    return values


def _make_error(operator: Operator, problem: str, shape: tuple[int, ...]) -> RequestError:
    return RequestError(
        f"The operator {operator.name!r} cannot be used: on {operator.arity} operand{'s' * (operator.arity > 1)} (N, C, H, W) = "
        f"{shape} it {problem}."
    )
