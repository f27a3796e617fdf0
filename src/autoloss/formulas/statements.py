"""A tree as Python: statements in the order in which the tree is evaluated, and one last expression."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from keyword import iskeyword

import torch

from autoloss.formulas.infix import ATOM, POWER, PRODUCT, SIGN, SUM, Piece, constant_value, summed
from autoloss.formulas.own_source import call, is_own
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import OPERATORS, Operator

INLINE = 52
"""Characters of a formula that still stands in one statement, so that no statement needs a second line."""

_NOUNS = {
    "add": "total",
    "mul": "product",
    "neg": "negated",
    "abs": "magnitude",
    "inv": "reciprocal",
    "log": "logarithm",
    "exp": "exponential",
    "tanh": "squashed",
    "square": "squared",
    "sqrt": "root",
    "mean_nhw": "mean",
    "mean_c": "channel_mean",
    "max_pool": "maximum",
    "min_pool": "minimum",
}
"""What a statement calls the result of an operator."""


class Statements:
    """Writes a tree as Python: statements in the order in which the tree is evaluated, and one last expression.

    Args:
        constant: Leaves that carry no gradient.
        like: The leaf whose shape constants take.
    """

    def __init__(self, tree: Expression, constant: Iterable[str], like: str) -> None:
        self.tree = tree
        constant = {*constant, CONSTANT}
        self.carries = [
            any(isinstance(symbol, str) and symbol not in constant for symbol in tree.symbols[node : tree.end(node)])
            for node in range(len(tree.symbols))
        ]
        self.like = like
        self.statements: list[str] = []
        self.taken = Counter([*tree.leaves, *(call(operator) for operator in tree.operators if is_own(operator))])
        self.stack: list[Piece] = []

    def expression(self) -> str:
        """Write all statements; return the expression that is left."""
        repeated = self.repeated()
        ends = {self.tree.end(node) - 1: node for node in repeated}
        known: dict[str, Piece] = {}
        node = len(self.tree.symbols) - 1
        while node >= 0:
            start = ends.get(node)
            if start is not None and repeated[start] in known:
                self.stack.append(known[repeated[start]])
                node = start
            else:
                piece = self.piece(node)
                if node in repeated and piece.number is None:
                    piece = known[repeated[node]] = self.stored(piece)
                self.stack.append(piece)
            node -= 1
        return self.tensor(self.stack.pop()).text

    def repeated(self) -> dict[int, str]:
        """Return the largest subtrees without gradient that come more than once: position → text."""
        texts: dict[int, str] = {}
        parents: dict[int, int] = {}
        for node, symbol in enumerate(self.tree.symbols):
            if isinstance(symbol, Operator):
                position = node + 1
                for _ in range(symbol.arity):
                    parents[position] = node
                    position = self.tree.end(position)
                if not self.carries[node]:
                    texts[node] = str(self.tree.subtree(node))
        times = Counter(texts.values())
        above = {node: texts.get(parents.get(node, -1), "") for node in texts}
        return {node: text for node, text in texts.items() if times[text] > max(1, times[above[node]])}

    def piece(self, node: int) -> Piece:
        symbol = self.tree.symbols[node]
        if isinstance(symbol, str):
            return _literal(Fraction(1)) if symbol == CONSTANT else Piece(variable(symbol), ATOM, name=symbol)
        parts = [self.stack.pop() for _ in range(symbol.arity)]
        number = constant_value(symbol, parts)
        if number is not None and self.is_exact(node, number):
            return _literal(number)
        if is_own(symbol):
            parts = [self.tensor(part) for part in parts]
        elif all(part.number is not None for part in parts):
            parts[0] = self.tensor(parts[0])
        if len(parts) == 2 and parts[0].builds and parts[1].builds:
            parts[1] = self.stored(parts[1])
        for position in reversed(range(len(parts))):
            if len(_code(symbol, parts)[0]) > INLINE and parts[position].operator:
                parts[position] = self.stored(parts[position])
        text, level = _code(symbol, parts)
        short = f"{symbol.name}_{parts[0].name}" if len(parts) == 1 and parts[0].name else ""
        name = short if 0 < len(short) <= 16 else _NOUNS.get(symbol.name, f"{symbol.name}_value")
        return Piece(text, level, None, symbol.name, tuple(parts), self.carries[node], name)

    def is_exact(self, node: int, number: Fraction) -> bool:
        """Say whether the tree too arrives at this number in float32, step by step."""
        reached = self.tree.subtree(node).evaluate({self.like: torch.ones(1, 1, 1, 1)})
        return bool(reached == torch.tensor(float(number)))

    def tensor(self, piece: Piece) -> Piece:
        if piece.number is None:
            return piece
        return Piece(
            f"torch.full_like({variable(self.like)}, {piece.text})", ATOM, operator="constant", name="constant"
        )

    def stored(self, piece: Piece) -> Piece:
        """Give the piece a statement of its own, after all that the tree evaluates before it."""
        if piece.builds:
            self.stack[:] = [self.assigned(earlier) if earlier.builds else earlier for earlier in self.stack]
        return self.assigned(piece)

    def assigned(self, piece: Piece) -> Piece:
        self.taken[piece.name] += 1
        times = self.taken[piece.name]
        name = piece.name if times == 1 else f"{piece.name}_{times}"
        self.statements.append(f"{name} = {piece.text}")
        return Piece(name, ATOM, name=name)


RESERVED = frozenset(
    {"self", "torch", "nn", "F", "math", "Tensor", "EPSILON", "raised", "spatial", "fitting", "inner_band"}
    | {row.function.__name__ for row in OPERATORS.values()}
)
"""Names that mean something else in an exported file."""


def variable(leaf: str) -> str:
    """Return the variable of a leaf."""
    return f"{leaf}_" if iskeyword(leaf) or leaf in RESERVED else leaf


def _literal(number: Fraction) -> Piece:
    decimal = str(number) if number.denominator == 1 else repr(float(number))
    if len(decimal) <= 8 and Fraction(decimal) == number:
        return Piece(decimal, ATOM if number >= 0 else SIGN, number)
    return Piece(f"{number.numerator} / {number.denominator}", PRODUCT, number)


def _code(operator: Operator, parts: Sequence[Piece]) -> tuple[str, int]:
    first, last = parts[0], parts[-1]
    match operator.name:
        case "add":
            return summed(first, last, _literal(-last.number).text if last.number is not None else ""), SUM
        case "mul":
            return f"{first.within(PRODUCT)} * {last.within(SIGN)}", PRODUCT
        case "neg":
            return f"-{first.within(POWER)}", SIGN
        case "square":
            return f"{first.text}**2" if first.text.isidentifier() else f"{first.within(ATOM)} ** 2", POWER
        case "abs" | "exp" | "tanh":
            return f"torch.{operator.name}({first.text})", ATOM
        case _:
            return f"{call(operator)}({', '.join(part.text for part in parts)})", ATOM
