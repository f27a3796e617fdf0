"""Text → tree, in prefix or in infix form; text is read by this grammar and never evaluated.

    sum     = product (("+" | "-") product)*
    product = unary (("*" | "/") unary)*
    unary   = "-" product | power
    power   = atom ("**" ["-"] number)?
    atom    = number | leaf | operator "(" sum ("," sum)* ")" | "(" sum ")"

Numbers stand for trees over the only constant, 1: `2` is `add(1, 1)`, `0.5` is `inv(add(1, 1))`, `2 * y` is `add(y, y)`.
A leading minus takes in the whole product, so `-y * log(p)` is `neg(mul(y, log(p)))`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import chain
from math import isqrt

from autoloss.errors import RequestError, nearest, shown, visible
from autoloss.space.expression import CONSTANT, Expression, Symbol, build, leaf
from autoloss.space.operators import OPERATORS, Operator

LEAVES = ("y", "p", "i", "u", "e")
"""All leaves that the built-in tasks know."""

MAXIMUM_CHARACTERS = 10_000
MAXIMUM_DEPTH = 80
MAXIMUM_NODES = 1_000
MAXIMUM_NUMBER = 1_000_000
MAXIMUM_DIGITS = 100
MAXIMUM_EXPONENT = 64

_SPACE = re.compile(r"\s*", re.ASCII)
_TOKEN = re.compile(r"(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|[-+*/(),]))", re.ASCII)


class FormulaError(RequestError):
    """A formula that cannot be read; the message shows it with a caret under the fault."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text = text
        self.position = position
        self.problem = problem
        # A long formula is shown around its fault only.
        start = max(0, position - 60)
        excerpt = visible(re.sub(r"\s", " ", text[start : position + 40]))
        super().__init__(f"{problem}\n  {excerpt}\n  {' ' * (position - start)}^")

    def __reduce__(self) -> tuple[type[FormulaError], tuple[str, int, str]]:
        return FormulaError, (self.text, self.position, self.problem)


def parse(
    text: str,
    leaves: Iterable[str] | None = None,
    operators: Mapping[str, Operator] = OPERATORS,
) -> Expression:
    """Read a formula.

    Args:
        text: Prefix, `neg(mul(y, log(p)))`, infix, `-y * log(p)`, or a mixture.
        leaves: The leaves that may occur; any of the known ones by default. The constant 1 always may.
        operators: The operators that may occur, by name.

    Raises:
        FormulaError: The text is no formula, too long, too deep, or names something unknown.
    """
    if len(text) > MAXIMUM_CHARACTERS:
        raise FormulaError(text, MAXIMUM_CHARACTERS, f"a formula has at most {MAXIMUM_CHARACTERS} characters")
    return _Parser(text, tuple(LEAVES if leaves is None else leaves), operators).formula()


class _Parser:
    """Reads one text from left to right, one method per rule of the grammar."""

    def __init__(self, text: str, leaves: tuple[str, ...], operators: Mapping[str, Operator]) -> None:
        self.text = text
        self.leaves = leaves
        self.operators = operators
        self.depth = 0
        self.end = 0
        self.advance()

    def formula(self) -> Expression:
        if self.start == len(self.text):
            raise self.error("expected a formula, found nothing")
        found = self.sum()
        if self.kind is not None:
            raise self.error(f"expected an operator or the end, found {shown(self.token)}")
        return Expression(_tree(found))

    def advance(self) -> str:
        """Return the current token and move to the next."""
        token = getattr(self, "token", "")
        space = _SPACE.match(self.text, self.end)
        self.start = space.end() if space else self.end
        match = _TOKEN.match(self.text, self.start)
        if match:
            self.kind, self.token, self.end = match.lastgroup, match[match.lastgroup or 0], match.end()
        elif self.start == len(self.text):
            self.kind, self.token = None, "the end"
        else:
            raise self.error(f"unexpected character {_named(self.text[self.start])}")
        return token

    def error(self, problem: str, position: int | None = None) -> FormulaError:
        return FormulaError(self.text, self.start if position is None else position, problem)

    def take(self, sign: str) -> bool:
        if self.kind == "sign" and self.token == sign:
            self.advance()
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise self.error(f"expected {sign!r}, found {shown(self.token)}")

    def combined(self, operator: str, *parts: _Value) -> _Tree:
        trees = [_tree(part) for part in parts]
        if sum(map(len, trees)) >= MAXIMUM_NODES:
            raise self.error(f"the formula grows beyond {MAXIMUM_NODES} nodes")
        if operator not in self.operators:
            raise self.error(f"this needs the operator {operator!r}, which is switched off here")
        return (self.operators[operator], *chain.from_iterable(trees))

    def sum(self) -> _Value:
        self.depth += 1
        if self.depth > MAXIMUM_DEPTH:
            raise self.error(f"the formula is nested deeper than {MAXIMUM_DEPTH}")
        value = self.product()
        while self.kind == "sign" and self.token in "+-":
            position, sign = self.start, self.advance()
            other = self.product()
            if isinstance(value, Fraction) and isinstance(other, Fraction):
                value = self.limited(value + other if sign == "+" else value - other, position)
            else:
                value = self.combined("add", value, other if sign == "+" else self.negative(other))
        self.depth -= 1
        return value

    def product(self) -> _Value:
        if self.kind == "sign" and self.token == "-":
            self.depth += 1
            if self.depth > MAXIMUM_DEPTH:
                raise self.error(f"the formula is nested deeper than {MAXIMUM_DEPTH}")
            self.advance()
            value = self.negative(self.product())
            self.depth -= 1
            return value
        value = self.power()
        while self.kind == "sign" and self.token in ("*", "/"):
            position, sign = self.start, self.advance()
            if sign == "/":
                value = self.quotient(value, self.factor(), position)
            else:
                value = self.multiple(value, self.factor(), position)
        return value

    def factor(self) -> _Value:
        """Read what follows a `*` or a `/`: its minus takes in itself alone."""
        return self.negative(self.power()) if self.take("-") else self.power()

    def negative(self, value: _Value) -> _Value:
        return -value if isinstance(value, Fraction) else self.combined("neg", value)

    def multiple(self, left: _Value, right: _Value, position: int) -> _Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return self.limited(left * right, position)
        if left == 2 and isinstance(right, tuple) and len(right) == 1:
            return self.combined("add", right, right)
        if left == 1 or right == 1:
            return right if left == 1 else left
        return self.combined("mul", left, right)

    def quotient(self, left: _Value, right: _Value, position: int) -> _Value:
        if isinstance(right, Fraction):
            if right == 0:
                raise self.error("division by zero", position)
            first, second = (left, 1 / right) if isinstance(left, Fraction) else (1 / right, left)
            return self.multiple(first, second, position)
        return self.combined("inv", right) if left == 1 else self.combined("mul", left, self.combined("inv", right))

    def power(self) -> _Value:
        base = self.atom()
        if not self.take("**"):
            return base
        position = self.start
        negative = self.take("-")
        exponent = self.number() if self.kind == "number" else None
        if exponent == Fraction(1, 2):
            raised = self.combined("sqrt", base)
        elif exponent is None or exponent.denominator > 1 or not 1 <= exponent <= MAXIMUM_EXPONENT:
            raise self.error(f"expected an exponent from 1 to {MAXIMUM_EXPONENT}, or 0.5", position)
        elif isinstance(base, Fraction):
            if negative and base == 0:
                raise self.error("division by zero", position)
            return self.limited(base ** int(exponent) if not negative else 1 / base ** int(exponent), position)
        else:
            raised = self.natural_power(base, int(exponent))
        return self.combined("inv", raised) if negative else raised

    def natural_power(self, base: _Tree, exponent: int) -> _Tree:
        if exponent == 1:
            return base
        half = self.combined("square", self.natural_power(base, exponent // 2))
        return half if exponent % 2 == 0 else self.combined("mul", half, base)

    def atom(self) -> _Value:
        position = self.start
        if self.kind == "number":
            return self.number()
        if self.kind == "name":
            name = self.advance()
            if self.take("("):
                return self.call(name, position)
            if name in self.leaves:
                return (name,)
            known = (*self.leaves, CONSTANT)
            if name in self.operators:
                raise self.error(f"the operator {name!r} needs its operands in parentheses", position)
            raise self.error(
                f"there is no leaf named {shown(name)}.{nearest(name, known)} Known: {', '.join(known)}", position
            )
        if self.take("("):
            value = self.sum()
            self.expect(")")
            return value
        raise self.error(f"expected a number, a leaf, an operator or '(', found {shown(self.token)}")

    def number(self) -> Fraction:
        position = self.start
        if len(self.token) > MAXIMUM_DIGITS:
            raise self.error(f"a number has at most {MAXIMUM_DIGITS} digits")
        return self.limited(Fraction(self.advance()), position)

    def limited(self, value: Fraction, position: int) -> Fraction:
        if abs(value.numerator) > MAXIMUM_NUMBER or value.denominator > MAXIMUM_NUMBER:
            raise self.error(f"numbers reach from 1/{MAXIMUM_NUMBER} to {MAXIMUM_NUMBER}", position)
        return value

    def call(self, name: str, position: int) -> _Tree:
        if name not in self.operators:
            raise self.error(
                f"there is no operator named {shown(name)}.{nearest(name, self.operators)} "
                f"Known: {', '.join(self.operators)}",
                position,
            )
        operands = [self.sum()]
        while self.take(","):
            operands.append(self.sum())
        self.expect(")")
        expected = self.operators[name].arity
        if len(operands) != expected:
            raise self.error(f"{name} takes {expected} operand{'s' * (expected > 1)}; found {len(operands)}", position)
        return self.combined(name, *operands)


_Tree = tuple[Symbol, ...]
"""A tree's symbols in prefix order; only the finished one is checked, as an `Expression`."""
_Value = _Tree | Fraction


def _tree(value: _Value) -> _Tree:
    """Return a number as a tree over the constant 1; trees stay as they are."""
    return value if isinstance(value, tuple) else _of_number(value).symbols


def _of_number(value: Fraction) -> Expression:
    if value < 0:
        return build("neg", _of_number(-value))
    if value == 0:
        return build("add", leaf(CONSTANT), build("neg", leaf(CONSTANT)))
    if value.numerator == 1 and value.denominator > 1:
        return build("inv", _whole(value.denominator))
    if value.denominator > 1:
        return build("mul", _whole(value.numerator), build("inv", _whole(value.denominator)))
    return _whole(value.numerator)


def _whole(number: int) -> Expression:
    """Return a small tree for a natural number: squares and doubles where they fit, else one more than the one before."""
    if number == 1:
        return leaf(CONSTANT)
    root = isqrt(number)
    if root * root == number:
        return build("square", _whole(root))
    if number % 2 == 0 and number > 2:
        return build("mul", _whole(2), _whole(number // 2))
    return build("add", _whole(number - 1), leaf(CONSTANT))


def _named(character: str) -> str:
    """Show a character; one that looks like another gets its name as well."""
    if character.isascii():
        return repr(character)
    return (
        f"{character!r} (U+{ord(character):04X}, {unicodedata.name(character, 'no letter')}); formulas are plain ASCII"
    )
