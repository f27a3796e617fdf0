"""A tree as Python statements, in the order in which the tree is evaluated.

Autograd adds up gradients in the order in which operations ran, and a tree evaluates its right operands first. Statements
keep that order, and equal subtrees are not merged, so value and gradient agree to the last bit. Constants are plain numbers
for the reader's sake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from keyword import iskeyword

import torch

from autoloss.formulas.constants import evaluate_exactly
from autoloss.formulas.functions import RESERVED, get_call_name
from autoloss.formulas.notations import LINE, SIGN, Notation, Written, call_by_name
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import Operator, is_own

INLINE = 52
"""Characters of a formula that still stands in one statement, so that no statement needs a second line."""
EXACT = 2**24
"""Natural numbers up to here are exact in float32."""


def _write_rational(value: Fraction) -> str:
    decimal = repr(float(value))
    is_short = len(decimal) <= 8 and Fraction(decimal) == value
    return decimal if is_short else f"{value.numerator} / {value.denominator}"


PYTHON = Notation(
    sign=SIGN,
    times=" * ",
    rational=_write_rational,
    divides_by=lambda operand: False,
    power=lambda base, exponent: f"{base}**{exponent}" if base.isidentifier() else f"{base} ** {exponent}",
    call=lambda operator: call_by_name(get_call_name(operator), operator.arity),
)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A subtree as code.

    Args:
        name: What a variable that holds it is called.
        is_inline: It is an operation, which can get a statement of its own.
        builds: To evaluate the code adds to autograd's graph.
    """

    code: Written
    name: str = ""
    is_inline: bool = False
    builds: bool = False


def compute_number(operator: Operator, operands: Sequence[Written]) -> Fraction | None:
    """Return the rational number that an operator makes of numbers; None if there is none, or float32 may lack it."""
    values = [operand.number for operand in operands if isinstance(operand.number, Fraction)]
    if len(values) < len(operands) or is_own(operator):
        return None
    value = evaluate_exactly(operator.name, values)
    return None if value is None or max(abs(value.numerator), value.denominator) > EXACT else value


def write_line(tree: Expression, notation: Notation = LINE) -> str:
    """Write a tree as it is on one line, `-y·log(p)`; only numbers made of the constant 1 are computed."""

    def write_leaf(name: str) -> Written:
        return notation.write_number(Fraction(1)) if name == CONSTANT else notation.write_leaf(name)

    def write_node(operator: Operator, operands: list[Written]) -> Written:
        number = compute_number(operator, operands)
        return notation.write_operation(operator, operands) if number is None else notation.write_number(number)

    line = tree.fold(write_leaf, write_node)
    if tree.factor != 1:
        line = notation.write_product([notation.write_number(Fraction(str(tree.factor))), line])
    return line.text


class Statements:
    """Writes a tree as assignments, `lines`, and one last expression, `result`.

    Args:
        fixed: Leaves that carry no gradient.
        like: The leaf whose shape constants take.
    """

    def __init__(self, tree: Expression, fixed: Iterable[str], like: str) -> None:
        self.lines: list[str] = []
        self._tree, self._fixed, self._like = tree, {*fixed, CONSTANT}, like
        self._used = Counter([*map(get_variable, tree.leaves), *map(get_call_name, filter(is_own, tree.operators))])
        self._stack: list[_Piece] = []
        for node in reversed(range(len(tree.symbols))):
            self._stack.append(self._write(node))
        result = self._as_tensor(self._stack.pop())
        if tree.factor != 1:
            # The floating-point number itself, as the tree is multiplied by it.
            result = _Piece(PYTHON.write_product([PYTHON.write_leaf(repr(tree.factor)), result.code]))
        self.result = result.code.text

    def _write(self, node: int) -> _Piece:
        symbol = self._tree.symbols[node]
        if symbol == CONSTANT:
            return _Piece(PYTHON.write_number(Fraction(1)))
        if isinstance(symbol, str):
            name = get_variable(symbol)
            return _Piece(PYTHON.write_leaf(name), name)
        operands = [self._stack.pop() for _ in range(symbol.arity)]
        number = self._compute(node, symbol, operands)
        if number is not None:
            return _Piece(PYTHON.write_number(number))
        return self._combine(symbol, operands, builds=not self._tree.subtree(node).leaves <= self._fixed)

    def _compute(self, node: int, operator: Operator, operands: list[_Piece]) -> Fraction | None:
        """Return the number that a constant subtree is, if the tree too arrives at it in float32, step by step."""
        value = compute_number(operator, [piece.code for piece in operands])
        if value is None:
            return None
        reached = self._tree.subtree(node).evaluate({self._like: torch.ones(1, 1, 1, 1)})
        return value if bool(reached == torch.tensor(float(value))) else None

    def _combine(self, operator: Operator, operands: list[_Piece], *, builds: bool) -> _Piece:
        if is_own(operator):
            operands = [self._as_tensor(piece) for piece in operands]
        elif all(piece.code.number is not None for piece in operands):
            operands[0] = self._as_tensor(operands[0])
        if all(piece.builds for piece in operands[-2:]) and len(operands) == 2:
            operands[1] = self._store(operands[1])
        for place in reversed(range(len(operands))):
            if len(_write_code(operator, operands).text) > INLINE and operands[place].is_inline:
                operands[place] = self._store(operands[place])
        name = f"{operator.name}_{operands[0].name}"
        if len(operands) > 1 or not operands[0].name or len(name) > 16:
            name = {"add": "total", "mul": "product"}.get(operator.name, f"{operator.name}_value")
        return _Piece(_write_code(operator, operands), name, is_inline=True, builds=builds)

    def _as_tensor(self, piece: _Piece) -> _Piece:
        if piece.code.number is None:
            return piece
        text = f"torch.full_like({get_variable(self._like)}, {piece.code.text})"
        return _Piece(PYTHON.write_leaf(text), "constant", is_inline=True)

    def _store(self, piece: _Piece) -> _Piece:
        """Give a piece a statement of its own, after all that the tree evaluates before it."""
        if piece.builds:
            self._stack[:] = [self._assign(earlier) if earlier.builds else earlier for earlier in self._stack]
        return self._assign(piece)

    def _assign(self, piece: _Piece) -> _Piece:
        self._used[piece.name] += 1
        times = self._used[piece.name]
        name = piece.name if times == 1 else f"{piece.name}_{times}"
        self.lines.append(f"{name} = {piece.code.text}")
        return _Piece(PYTHON.write_leaf(name), name)


def _write_code(operator: Operator, operands: list[_Piece]) -> Written:
    return PYTHON.write_operation(operator, [piece.code for piece in operands])


def get_variable(leaf: str) -> str:
    """Return the variable of a leaf."""
    return f"{leaf}_" if iskeyword(leaf) or leaf in RESERVED else leaf
