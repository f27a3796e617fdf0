"""A formula as one line for readers, `-y·log(p)`; numbers made of the constant 1 are computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.loss import MAIN, Loss
from autoloss.space.operators import Operator

EXACT = 2**24
"""Natural numbers up to here are exact in float32."""

SUM, PRODUCT, SIGN, POWER, ATOM = range(5)
"""How tightly a text binds."""


def infix(formula: Loss | Expression) -> str:
    """Return a formula as one line for readers, `-y·log(p)`; numbers made of the constant 1 are computed."""
    if isinstance(formula, Loss):
        single = len(formula) == 1 and MAIN in formula
        return infix(formula[MAIN]) if single else "; ".join(f"{name}: {infix(tree)}" for name, tree in formula.items())
    stack: list[Piece] = []
    for symbol in reversed(formula.symbols):
        if isinstance(symbol, str):
            stack.append(Piece(symbol, ATOM, number=Fraction(1) if symbol == CONSTANT else None))
            continue
        parts = tuple(stack.pop() for _ in range(symbol.arity))
        number = constant_value(symbol, parts)
        if number is None:
            text, level = _infix(symbol, parts)
        else:
            text, level = str(number), ATOM if number.denominator == 1 and number >= 0 else PRODUCT
        stack.append(Piece(text, level, number, symbol.name, parts))
    return stack.pop().text


@dataclass(frozen=True, slots=True)
class Piece:
    """A subtree as text.

    Args:
        number: Its value where it is a rational constant.
        operator: Name of its root; empty for a leaf and for what a statement has named.
        builds: To evaluate the text adds to autograd's graph.
    """

    text: str
    level: int
    number: Fraction | None = None
    operator: str = ""
    parts: tuple[Piece, ...] = ()
    builds: bool = False
    name: str = ""

    def within(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


def constant_value(operator: Operator, parts: Sequence[Piece]) -> Fraction | None:
    """Return the value of a constant subtree where it is a rational number that float32 takes well."""
    numbers = [part.number for part in parts if part.number is not None]
    if len(numbers) < len(parts):
        return None
    first, last = numbers[0], numbers[-1]
    match operator.name:
        case "add":
            value = first + last
        case "mul":
            value = first * last
        case "neg":
            value = -first
        case "abs":
            value = abs(first)
        case "square":
            value = first**2
        case "inv" if first:
            value = 1 / first
        case "max_pool" | "min_pool":
            value = first
        # A sum of equal integers is exact, one of other numbers is not.
        case "mean_nhw" | "mean_c" if first.denominator == 1:
            value = first
        case _:
            return None
    return value if max(abs(value.numerator), value.denominator) <= EXACT else None


def summed(left: Piece, right: Piece, negative: str) -> str:
    """Write a sum, or a difference where the right operand is negative; `negative` is its number without the sign."""
    if right.number is not None and right.number < 0:
        return f"{left.text} - {negative}"
    if right.operator == "neg" and right.number is None:
        return f"{left.text} - {right.parts[0].within(PRODUCT)}"
    return f"{left.text} + {right.within(PRODUCT)}"


def _infix(operator: Operator, parts: Sequence[Piece]) -> tuple[str, int]:
    first, last = parts[0], parts[-1]
    match operator.name:
        case "add":
            return summed(first, last, str(-last.number) if last.number is not None else ""), SUM
        case "mul" if last.operator == "inv" and last.number is None:
            return f"{first.within(PRODUCT)} / {last.parts[0].within(POWER)}", PRODUCT
        case "mul":
            return f"{first.within(PRODUCT)}·{last.within(POWER)}", PRODUCT
        case "inv":
            return f"1 / {first.within(POWER)}", PRODUCT
        case "neg":
            return f"-{first.within(PRODUCT)}", SUM
        case "square":
            return f"{first.within(ATOM)}²", POWER
        case "sqrt":
            return f"√{first.text}" if first.text.isalnum() else f"√({first.text})", ATOM
        case _:
            return f"{operator.name}({', '.join(part.text for part in parts)})", ATOM
