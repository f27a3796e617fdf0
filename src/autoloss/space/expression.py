"""The tree of Section 3.1 as an immutable value: traverse, replace, evaluate, write as text.

A tree is stored as its symbols in prefix order: a subtree is a slice, an edit is a concatenation, and neither evaluation
nor text needs recursion, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from autoloss.errors import unknown
from autoloss.showing import plot, to_html
from autoloss.space.branch import Role
from autoloss.space.loss_text import add_factor, round_factor
from autoloss.space.operators import COMMUTATIVE, OPERATORS, Operator, upcast

T = TypeVar("T")

CONSTANT = "1"
Symbol = Operator | str
"""A node: an operator, or the name of a leaf."""


def arity(symbol: Symbol) -> int:
    """Return the number of operands of a node; 0 for a leaf."""
    return symbol.arity if isinstance(symbol, Operator) else 0


@dataclass(frozen=True, slots=True)
class Expression:
    """A rooted tree of operators over named leaves, equal by structure, and a factor on its value.

    Args:
        symbols: The nodes in prefix order, an operator before its children.
        factor: The scale at which a search trains the tree, as a part of the loss; 1 for trees that are drawn.

    Raises:
        ValueError: The symbols are not exactly one complete tree, or the factor is not one that `round_factor` returns.

    >>> tree = build("neg", build("mul", leaf("y"), build("log", leaf("p"))))
    >>> str(tree), tree.depth, len(tree.operators)
    ('neg(mul(y, log(p)))', 3, 3)
    """

    symbols: tuple[Symbol, ...]
    factor: float = 1.0
    _repr_html_, plot = to_html, plot

    def __post_init__(self) -> None:
        if self.factor != 1 and self.factor != round_factor(self.factor):
            raise ValueError(f"The factor {self.factor} does not fit its text; round it by round_factor.")
        missing = 1
        for position, symbol in enumerate(self.symbols):
            if missing == 0:
                raise ValueError(f"The tree is complete before its symbol {position + 1} of {len(self.symbols)}.")
            missing += arity(symbol) - 1
        if missing:
            raise ValueError(f"The tree lacks {missing} of its leaves.")

    def __str__(self) -> str:
        """Return the prefix text, `neg(mul(y, log(p)))` or `0.250 * log(p)`, which parses back to an equal tree."""
        tree = self.fold(lambda name: name, lambda operator, parts: f"{operator.name}({', '.join(parts)})")
        return add_factor(tree, self.factor)

    @property
    def root(self) -> Symbol:
        """The symbol at the top of the tree."""
        return self.symbols[0]

    @property
    def leaves(self) -> frozenset[str]:
        """The names of the leaves in the tree, the constant 1 included."""
        return frozenset(symbol for symbol in self.symbols if isinstance(symbol, str))

    @property
    def operators(self) -> tuple[Operator, ...]:
        """The operators of the tree in prefix order, repeated ones included."""
        return tuple(symbol for symbol in self.symbols if isinstance(symbol, Operator))

    @property
    def depth(self) -> int:
        """The largest number of operators on a path from the root to a leaf."""
        return self.fold(lambda name: 0, lambda operator, parts: 1 + max(parts))

    def end(self, node: int) -> int:
        """Return the position after the last symbol of the subtree at `node`."""
        missing = 1
        while missing:
            missing += arity(self.symbols[node]) - 1
            node += 1
        return node

    def subtree(self, node: int) -> Expression:
        """Return the subtree whose root is the symbol at `node`, without the factor."""
        return Expression(self.symbols[node : self.end(node)])

    def children(self, node: int) -> tuple[Expression, ...]:
        """Return the operands of `node`, in order; none for a leaf."""
        found: list[Expression] = []
        position = node + 1
        for _ in range(arity(self.symbols[node])):
            found.append(self.subtree(position))
            position = self.end(position)
        return tuple(found)

    def replace(self, node: int, replacement: Expression) -> Expression:
        """Return the tree with `replacement` in place of the subtree at `node`."""
        return Expression(self.symbols[:node] + replacement.symbols + self.symbols[self.end(node) :], self.factor)

    def scaled(self, factor: float) -> Expression:
        """Return the tree with this factor instead of its own."""
        return Expression(self.symbols, factor)

    def fold(self, at_leaf: Callable[[str], T], at_operator: Callable[[Operator, list[T]], T]) -> T:
        """Combine values from the leaves up to the root, without recursion; right operands come before left ones."""
        stack: list[T] = []
        for symbol in reversed(self.symbols):
            if isinstance(symbol, str):
                stack.append(at_leaf(symbol))
            else:
                parts = [stack.pop() for _ in range(symbol.arity)]
                stack.append(at_operator(symbol, parts))
        return stack.pop()

    def canonical(self) -> Expression:
        """Return the tree with the operands of `add` and `mul` sorted.

        Floating-point addition and multiplication are commutative, so value and gradient are unchanged.
        """

        def join(operator: Operator, parts: list[Expression]) -> Expression:
            return build(operator, *(sorted(parts, key=str) if operator.name in COMMUTATIVE else parts))

        return self.fold(leaf, join).scaled(self.factor)

    def holds(self, leaves_and_roles: Mapping[str, Role]) -> bool:
        """Return whether the tree depends on both prediction and target (Section 3.1)."""
        roles = {leaves_and_roles[name] for name in self.leaves if name != CONSTANT}
        return Role.BOTH in roles or {Role.PREDICTION, Role.TARGET} <= roles

    def evaluate(self, leaves: Mapping[str, Tensor]) -> Tensor:
        """Compute the output tensor o of Section 3.1.

        Args:
            leaves: One tensor per leaf of the tree, all of one shape (N, C, H, W); the constant 1 needs none.
                16-bit tensors are converted to float32.

        Returns:
            (N, C, H, W), in the precision of the leaves.

        Raises:
            ValueError: A leaf is missing, or shapes differ.

        >>> tree = build("add", leaf("y"), leaf("p"))
        >>> tree.evaluate({"y": torch.ones(1, 1, 1, 2), "p": torch.zeros(1, 1, 1, 2)})
        tensor([[[[1., 1.]]]])
        """
        tensors = {name: upcast(tensor) for name, tensor in leaves.items()}
        _check_leaves(self, tensors)
        return self.compute(tensors)

    def compute(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Compute what `evaluate` does, unchecked; leaves of an element-wise tree may be broadcast, such as a y of shape ()."""
        value = self.fold(
            lambda name: torch.ones_like(next(iter(tensors.values()))) if name == CONSTANT else tensors[name],
            lambda operator, parts: operator.function(*parts),
        )
        return value if self.factor == 1 else self.factor * value


def leaf(name: str) -> Expression:
    """Return the tree of a single leaf."""
    return Expression((name,))


def build(operator: Operator | str, *children: Expression) -> Expression:
    """Return the tree with `operator`, or the one of that name in Table 1, as root and `children` as its operands.

    Raises:
        ValueError: The number of children is not the operator's arity.
    """
    row = OPERATORS[operator] if isinstance(operator, str) else operator
    if len(children) != row.arity:
        raise ValueError(f"{row.name} takes {row.arity} operands; found {len(children)}.")
    return Expression((row, *(symbol for child in children for symbol in child.symbols)))


@dataclass(frozen=True, slots=True)
class Alphabet:
    """The operators and leaves that random trees are drawn from, all operators equally likely and all leaves as well.

    Args:
        leaves_and_roles: The leaves without the constant 1, which is always drawn too.

    Raises:
        ValueError: There is no operator, or the constant 1 is among the leaves.

    >>> Alphabet({"y": Role.TARGET, "p": Role.PREDICTION}).leaves
    ('y', 'p', '1')
    """

    leaves_and_roles: Mapping[str, Role]
    operators: tuple[Operator, ...] = tuple(OPERATORS.values())

    def __post_init__(self) -> None:
        if not self.operators:
            raise ValueError("An alphabet needs at least one operator.")
        if CONSTANT in self.leaves_and_roles:
            raise ValueError("The constant 1 has no role and is always drawn; leave it out of the leaves.")

    @property
    def leaves(self) -> tuple[str, ...]:
        """All leaves that are drawn, the constant 1 included."""
        return (*self.leaves_and_roles, CONSTANT)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent."""
        roles = {name: role.value for name, role in self.leaves_and_roles.items()}
        return {"roles": roles, "operators": [operator.name for operator in self.operators]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], operators: Mapping[str, Operator]) -> Alphabet:
        """Read what `to_dict` returned.

        Args:
            operators: All that there are, by name.

        Raises:
            RequestError: An operator is not among them.
        """
        for name in values["operators"]:
            if name not in operators:
                raise unknown("operator", name, operators)
        roles = {name: Role(role) for name, role in values["roles"].items()}
        return cls(roles, tuple(operators[name] for name in values["operators"]))


def _check_leaves(expression: Expression, tensors: Mapping[str, Tensor]) -> None:
    missing = sorted(expression.leaves - {CONSTANT} - set(tensors))
    if missing:
        raise ValueError(f"{expression} needs the leaves {', '.join(missing)}; found {', '.join(tensors) or 'none'}.")
    if not tensors:
        raise ValueError(f"{expression} needs at least one tensor, which gives the shape of its constants.")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1 or len(next(iter(shapes.values()))) not in (4, 5):
        raise ValueError(f"All leaves need the same shape (N, C, H, W) or (N, C, D, H, W); found {shapes}.")
