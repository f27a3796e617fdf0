"""First and second derivative of an element-wise tree by its prediction, in closed form, as NumPy instructions.

The instructions are a plain list: the package runs it, and an exported file has it as Python statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from autoloss.errors import RequestError
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.operators import EPSILON, OPERATORS
from autoloss.space.ranges import REAL, UNIT, Range, bound_operation

Array = NDArray[np.float64]


class Instruction(NamedTuple):
    """A NumPy function, or `leaf` or `number`, applied to the results of earlier instructions."""

    function: str
    operands: tuple[int, ...] = ()
    name: str = ""
    number: float = 0.0


FUNCTIONS: Mapping[str, tuple[Callable[..., Any], str, int]] = {
    "add": (np.add, "{0} + {1}", 1),
    "subtract": (np.subtract, "{0} - {1}", 1),
    "multiply": (np.multiply, "{0} * {1}", 2),
    "divide": (np.divide, "{0} / {1}", 2),
    "negative": (np.negative, "-{0}", 2),
    **{
        name: (getattr(np, name), f"np.{name}({{0}})", 4)
        for name in ("abs", "sign", "log", "exp", "tanh", "sqrt", "square")
    },
}
"""Name → function, how it is written, and how tightly the written form binds."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A tree as a function of the arrays y and p, with its first two derivatives by p.

    Args:
        instructions: In the order in which they run.
        results: Positions of value, first and second derivative.

    >>> from autoloss import parse
    >>> formula = differentiate(parse("-y * log(p)"))
    >>> [array.round(3).tolist() for array in formula.slopes(np.array([1.0, 0.0]), np.array([0.25, 0.25]))]
    [[-4.0, -0.0], [16.0, 0.0]]
    """

    instructions: tuple[Instruction, ...]
    results: tuple[int, int, int]

    def value(self, y: Array, p: Array) -> Array:
        """Return the formula at each element, in the shape of `p`."""
        return self._run(self.results[:1], y, p)[0]

    def slopes(self, y: Array, p: Array) -> tuple[Array, Array]:
        """Return first and second derivative by `p` at each element."""
        first, second = self._run(self.results[1:], y, p)
        return first, second

    def _run(self, wanted: Sequence[int], y: Array, p: Array) -> list[Array]:
        found: dict[int, Any] = {}
        with np.errstate(all="ignore"):
            for position in list_needed(self.instructions, wanted):
                one = self.instructions[position]
                match one.function:
                    case "leaf":
                        found[position] = p if one.name == "p" else y
                    case "number":
                        found[position] = one.number
                    case _:
                        found[position] = FUNCTIONS[one.function][0](*(found[each] for each in one.operands))
        return [np.broadcast_to(np.asarray(found[each], dtype=float), p.shape) for each in wanted]


def list_needed(instructions: Sequence[Instruction], wanted: Sequence[int]) -> list[int]:
    """Return the positions of the instructions that the wanted ones need, in order."""
    needed = set(wanted)
    for position in range(len(instructions) - 1, -1, -1):
        if position in needed:
            needed.update(instructions[position].operands)
    return sorted(needed)


def differentiate(tree: Expression, leaves: Mapping[str, Range] | None = None) -> Formula:
    """Differentiate an element-wise tree over y and p twice by p.

    The derivative of a sign is 0, as in autograd; where the tree's value jumps, that is all there is to follow.

    Args:
        leaves: Range of the values of each leaf; probabilities by default.

    Raises:
        RequestError: The tree holds an operator that is not element-wise or not of Table 1, or another leaf than y and p.
    """
    _check(tree)
    writer = Writer()
    ranges = {"y": UNIT, "p": UNIT} if leaves is None else leaves
    stack: list[_Jet] = []
    for symbol in reversed(tree.symbols):
        if isinstance(symbol, str):
            known = Range(1, 1) if symbol == CONSTANT else ranges.get(symbol, REAL)
            value = writer.number(1.0) if symbol == CONSTANT else writer.leaf(symbol)
            stack.append(_Jet(value, writer.number(float(symbol == "p")), writer.number(0.0), known))
        else:
            parts = [stack.pop() for _ in range(symbol.arity)]
            value, first, second = _RULES[symbol.name](writer, *parts)
            stack.append(_Jet(value, first, second, bound_operation(symbol.name, [part.range for part in parts])))
    jet = stack.pop()
    factor = writer.number(tree.factor)
    results = (
        writer.multiply(factor, jet.value),
        writer.multiply(factor, jet.first),
        writer.multiply(factor, jet.second),
    )
    return Formula(tuple(writer.instructions), results)


def _check(tree: Expression) -> None:
    for operator in tree.operators:
        if operator != OPERATORS.get(operator.name) or operator.function is not OPERATORS[operator.name].function:
            raise RequestError(
                f"The operator {operator.name!r} is your own, and its second derivative is not known; an objective for boosting "
                "needs operators of Table 1."
            )
        if operator.name not in _RULES:
            raise RequestError(
                f"{str(tree)!r} holds {operator.name}, which mixes rows, classes or positions: the gradient of one row would "
                f"depend on others. An objective for boosting needs the element-wise operators {', '.join(_RULES)}."
            )
    if strange := sorted(tree.leaves - {CONSTANT, "y", "p"}):
        raise RequestError(
            f"{str(tree)!r} has the leaves {', '.join(strange)}; an objective for boosting knows y and p."
        )


class _Jet(NamedTuple):
    """The positions of a subtree's value and derivatives, and the range of its value."""

    value: int
    first: int
    second: int
    range: Range


@dataclass(slots=True)
class Writer:
    """Collects instructions, each once; sums with 0, products with 0 and 1, and operations on numbers need none."""

    instructions: list[Instruction] = field(default_factory=list[Instruction])
    _known: dict[Instruction, int] = field(default_factory=dict[Instruction, int])

    def emit(self, one: Instruction) -> int:
        if one not in self._known:
            self._known[one] = len(self.instructions)
            self.instructions.append(one)
        return self._known[one]

    def leaf(self, name: str) -> int:
        return self.emit(Instruction("leaf", name=name))

    def number(self, value: float) -> int:
        return self.emit(Instruction("number", number=float(value)))

    def get_number(self, position: int) -> float | None:
        one = self.instructions[position]
        return one.number if one.function == "number" else None

    def apply(self, function: str, *operands: int) -> int:
        numbers = [self.get_number(each) for each in operands]
        values = [each for each in numbers if each is not None]
        if len(values) == len(operands):
            with np.errstate(all="ignore"):
                return self.number(float(FUNCTIONS[function][0](*values)))
        return self.emit(Instruction(function, operands))

    def add(self, *parts: int) -> int:
        kept = [part for part in parts if self.get_number(part) != 0]
        if not kept:
            return self.number(0.0)
        total = kept[0]
        for part in kept[1:]:
            one = self.instructions[part]
            if one.function == "negative":
                total = self.apply("subtract", total, one.operands[0])
            else:
                total = self.apply("add", total, part)
        return total

    def negate(self, part: int) -> int:
        one = self.instructions[part]
        return one.operands[0] if one.function == "negative" else self.apply("negative", part)

    def multiply(self, *parts: int) -> int:
        numbers = [self.get_number(part) for part in parts]
        if 0.0 in numbers:
            return self.number(0.0)
        product, sign = self.number(1.0), False
        for part in parts:
            if self.instructions[part].function == "negative":
                part, sign = self.instructions[part].operands[0], not sign
            if self.get_number(part) == -1:
                sign = not sign
            elif self.get_number(product) == 1:
                product = part
            elif self.get_number(part) != 1:
                product = self.apply("multiply", product, part)
        return self.negate(product) if sign else product

    def shift(self, part: int) -> int:
        """Add ε."""
        return self.apply("add", part, self.number(EPSILON))

    def invert(self, part: int) -> int:
        return self.apply("divide", self.number(1.0), part)


def _chain(writer: Writer, x: _Jet, value: int, first: int, second: int) -> tuple[int, int, int]:
    """Return the derivatives of a function of x from those by x."""
    slope = writer.multiply(first, x.first)
    curvature = writer.multiply(second, writer.multiply(x.first, x.first))
    return value, slope, writer.add(curvature, writer.multiply(first, x.second))


def _add(writer: Writer, x: _Jet, y: _Jet) -> tuple[int, int, int]:
    return writer.add(x.value, y.value), writer.add(x.first, y.first), writer.add(x.second, y.second)


def _multiply(writer: Writer, x: _Jet, y: _Jet) -> tuple[int, int, int]:
    cross = writer.multiply(writer.number(2.0), x.first, y.first)
    return (
        writer.multiply(x.value, y.value),
        writer.add(writer.multiply(x.first, y.value), writer.multiply(x.value, y.first)),
        writer.add(writer.multiply(x.second, y.value), cross, writer.multiply(x.value, y.second)),
    )


def _negate(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    return writer.negate(x.value), writer.negate(x.first), writer.negate(x.second)


def _absolute(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    if x.range.low >= 0:
        return x.value, x.first, x.second
    return _chain(writer, x, writer.apply("abs", x.value), writer.apply("sign", x.value), writer.number(0.0))


def _invert(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    value = writer.invert(writer.shift(x.value))
    square = writer.multiply(value, value)
    return _chain(writer, x, value, writer.negate(square), writer.multiply(writer.number(2.0), square, value))


def _split_sign(writer: Writer, x: _Jet) -> tuple[int, int, int, int]:
    """Return the sign of x, of its value and of its slope, its square, and |x| + ε.

    Where x is never negative, its slope is 0 wherever it is 0, so its sign matters to the value alone.
    """
    one = writer.number(1.0)
    if x.range.low > 0:
        return one, one, one, writer.shift(x.value)
    sign = writer.apply("sign", x.value)
    if x.range.low >= 0:
        return sign, one, one, writer.shift(x.value)
    return sign, sign, writer.apply("abs", sign), writer.shift(writer.apply("abs", x.value))


def _logarithm(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    sign, curve_sign, slope_sign, size = _split_sign(writer, x)
    inverse = writer.invert(size)
    second = writer.negate(writer.multiply(curve_sign, inverse, inverse))
    value = writer.multiply(sign, writer.apply("log", size))
    return _chain(writer, x, value, writer.multiply(slope_sign, inverse), second)


def _root(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    sign, curve_sign, slope_sign, size = _split_sign(writer, x)
    root = writer.apply("sqrt", size)
    half = writer.apply("divide", writer.number(0.5), root)
    second = writer.negate(
        writer.multiply(curve_sign, writer.apply("divide", half, writer.multiply(writer.number(2.0), size)))
    )
    return _chain(writer, x, writer.multiply(sign, root), writer.multiply(slope_sign, half), second)


def _exponential(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    value = writer.apply("exp", x.value)
    return _chain(writer, x, value, value, value)


def _tangent(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    value = writer.apply("tanh", x.value)
    slope = writer.apply("subtract", writer.number(1.0), writer.multiply(value, value))
    return _chain(writer, x, value, slope, writer.multiply(writer.number(-2.0), value, slope))


def _square(writer: Writer, x: _Jet) -> tuple[int, int, int]:
    two = writer.number(2.0)
    return _chain(writer, x, writer.apply("square", x.value), writer.multiply(two, x.value), two)


_RULES: Mapping[str, Callable[..., tuple[int, int, int]]] = {
    "add": _add,
    "mul": _multiply,
    "neg": _negate,
    "abs": _absolute,
    "inv": _invert,
    "log": _logarithm,
    "exp": _exponential,
    "tanh": _tangent,
    "square": _square,
    "sqrt": _root,
}
"""Operators of Table 1 that work on each element by itself."""


def write_statements(formula: Formula, wanted: Sequence[int], width: int = 70) -> tuple[list[str], list[str]]:
    """Write instructions as Python statements, what is used once within the statement that uses it.

    Returns:
        The assignments, and the expressions of the wanted results.
    """
    needed = list_needed(formula.instructions, wanted)
    times = Counter(each for position in needed for each in formula.instructions[position].operands)
    lines: list[str] = []
    written: dict[int, tuple[str, int]] = {}
    for position in needed:
        one = formula.instructions[position]
        match one.function:
            case "leaf":
                written[position] = (one.name, 4)
                continue
            case "number":
                whole = one.number.is_integer() and abs(one.number) < 1e6
                written[position] = (repr(int(one.number) if whole else one.number), 1 if one.number < 0 else 4)
                continue
            case _:
                _, template, binding = FUNCTIONS[one.function]
        parts = [written[each] for each in one.operands]
        # The right operand of a difference or a quotient needs brackets where the left one does not.
        texts = [
            f"({text})" if binding < 4 and (tight < binding or (tight == binding and place)) else text
            for place, (text, tight) in enumerate(parts)
        ]
        text = template.format(*texts)
        if times[position] > 1 or len(text) > width:
            name = f"t{len(lines) + 1}"
            lines.append(f"{name} = {text}")
            text, binding = name, 4
        written[position] = (text, binding)
    return lines, [written[each][0] for each in wanted]
