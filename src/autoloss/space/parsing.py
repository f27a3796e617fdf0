"""Parse formulas in prefix or infix form; the text is read by this grammar and never evaluated as code.

    sum     = product (("+" | "-") product)*
    product = unary (("*" | "/") unary)*
    unary   = "-" product | power
    power   = atom ("**" ["-"] number)?
    atom    = number | leaf | operator "(" sum ("," sum)* ")" | "(" sum ")"

A number stands for a tree over the only constant, 1: `2` is `add(1, 1)`, `0.5` is `inv(add(1, 1))`, `2 * y` is `add(y, y)`.
A leading minus applies to the whole product: `-y * log(p)` is `neg(mul(y, log(p)))`.

A tree as a search writes it, a factor of three digits before prefix text, `0.250 * log(p)`, keeps that factor beside the tree.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import chain

from autoloss.errors import RequestError, mask_unprintable, quote, suggest
from autoloss.space.expression import CONSTANT, Expression, Symbol
from autoloss.space.loss_text import split_factor
from autoloss.space.numerals import build_number
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.unicode_text import read_printed

LEAVES = ("y", "p", "w", "i", "u", "e")
"""The leaves of the built-in tasks."""

MAXIMUM_CHARACTERS = 10_000
MAXIMUM_DEPTH = 80
MAXIMUM_NODES = 1_000
MAXIMUM_NUMBER = 1_000_000
MAXIMUM_DIGITS = 100
MAXIMUM_EXPONENT = 64

_SPACE = re.compile(r"\s*", re.ASCII)
_TOKEN = re.compile(r"(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_]\w*)|(?P<sign>\*\*|[-+*/(),]))", re.ASCII)


class FormulaError(RequestError):
    """A formula that cannot be parsed; the message shows it with a caret below the error."""

    def __init__(self, text: str, position: int, problem: str) -> None:
        self.text = text
        self.position = position
        self.problem = problem
        # Of a long formula only the part around the error is shown.
        start = max(0, position - 60)
        excerpt = mask_unprintable(re.sub(r"\s", " ", text[start : position + 40]))
        super().__init__(f"{problem}\n  {excerpt}\n  {' ' * (position - start)}^")

    def __reduce__(self) -> tuple[type[FormulaError], tuple[str, int, str]]:
        return FormulaError, (self.text, self.position, self.problem)


def parse(
    text: str,
    leaves: Iterable[str] | None = None,
    operators: Mapping[str, Operator] = OPERATORS,
) -> Expression:
    """Parse a formula.

    Args:
        text: Prefix, `neg(mul(y, log(p)))`, infix, `-y * log(p)`, as tables print it, `−y·log(p)`, or a mixture.
        leaves: The allowed leaves besides the constant 1; `LEAVES` by default.
        operators: The allowed operators, by name.

    Raises:
        FormulaError: The text is not a formula, is too long or too deep, or has an unknown name.

    >>> str(parse("-y * log(p)"))
    'neg(mul(y, log(p)))'
    >>> parse("neg(mul(y, log(p)))") == parse("-y * log(p)")
    True
    """
    if len(text) > MAXIMUM_CHARACTERS:
        raise FormulaError(text, MAXIMUM_CHARACTERS, f"a formula has at most {MAXIMUM_CHARACTERS} characters")
    known = tuple(LEAVES if leaves is None else leaves)
    text = read_printed(text)
    factor, rest = split_factor(text.strip())
    if factor != 1:
        tree = _Parser(rest, known, operators).formula()
        # Anything else than the text of a tree, such as a sum, is a formula in which the number is one of the operands.
        if str(tree) == rest:
            return tree.scaled(factor)
    return _Parser(text, known, operators).formula()


class _Parser:
    """A recursive-descent parser of one text, with one method per rule of the grammar."""

    def __init__(self, text: str, leaves: tuple[str, ...], operators: Mapping[str, Operator]) -> None:
        self.text = text
        self.leaves = leaves
        self.operators = operators
        self.depth = 0
        self.token, self.end = "", 0
        self.advance()

    def formula(self) -> Expression:
        if self.start == len(self.text):
            raise self.error("expected a formula, found nothing")
        found = self.sum()
        if self.kind is not None:
            raise self.error(f"expected an operator or the end, found {quote(self.token)}")
        return Expression(_to_tree(found))

    def advance(self) -> str:
        """Return the current token and move to the next."""
        token = self.token
        space = _SPACE.match(self.text, self.end)
        self.start = space.end() if space else self.end
        match = _TOKEN.match(self.text, self.start)
        if match:
            self.kind, self.token, self.end = match.lastgroup, match[match.lastgroup or 0], match.end()
        elif self.start == len(self.text):
            self.kind, self.token = None, "the end"
        else:
            raise self.error(f"unexpected character {_describe_character(self.text[self.start])}")
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
            raise self.error(f"expected {sign!r}, found {quote(self.token)}")

    def combine(self, operator: str, *parts: _Value) -> _Tree:
        trees = [_to_tree(part) for part in parts]
        if sum(map(len, trees)) >= MAXIMUM_NODES:
            raise self.error(f"the formula has more than {MAXIMUM_NODES} nodes")
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
                value = self.check_number(value + other if sign == "+" else value - other, position)
            else:
                value = self.combine("add", value, other if sign == "+" else self.negate(other))
        self.depth -= 1
        return value

    def product(self) -> _Value:
        if self.kind == "sign" and self.token == "-":
            self.depth += 1
            if self.depth > MAXIMUM_DEPTH:
                raise self.error(f"the formula is nested deeper than {MAXIMUM_DEPTH}")
            self.advance()
            value = self.negate(self.product())
            self.depth -= 1
            return value
        value = self.power()
        while self.kind == "sign" and self.token in ("*", "/"):
            position, sign = self.start, self.advance()
            combine = self.divide if sign == "/" else self.multiply
            value = combine(value, self.factor(), position)
        return value

    def factor(self) -> _Value:
        """Parse what follows a `*` or a `/`: a minus there applies to this factor only."""
        return self.negate(self.power()) if self.take("-") else self.power()

    def negate(self, value: _Value) -> _Value:
        return -value if isinstance(value, Fraction) else self.combine("neg", value)

    def multiply(self, left: _Value, right: _Value, position: int) -> _Value:
        if isinstance(left, Fraction) and isinstance(right, Fraction):
            return self.check_number(left * right, position)
        if left == 2 and isinstance(right, tuple) and len(right) == 1:
            return self.combine("add", right, right)
        if left == 1 or right == 1:
            return right if left == 1 else left
        return self.combine("mul", left, right)

    def divide(self, left: _Value, right: _Value, position: int) -> _Value:
        if isinstance(right, Fraction):
            if right == 0:
                raise self.error("division by zero", position)
            first, second = (left, 1 / right) if isinstance(left, Fraction) else (1 / right, left)
            return self.multiply(first, second, position)
        return self.combine("inv", right) if left == 1 else self.combine("mul", left, self.combine("inv", right))

    def power(self) -> _Value:
        base = self.atom()
        if not self.take("**"):
            return base
        position = self.start
        negative = self.take("-")
        exponent = self.number() if self.kind == "number" else None
        if exponent == Fraction(1, 2):
            result = self.combine("sqrt", base)
        elif exponent is None or exponent.denominator > 1 or not 1 <= exponent <= MAXIMUM_EXPONENT:
            raise self.error(f"expected an exponent from 1 to {MAXIMUM_EXPONENT}, or 0.5", position)
        elif isinstance(base, Fraction):
            if negative and base == 0:
                raise self.error("division by zero", position)
            return self.check_number(base ** int(exponent) if not negative else 1 / base ** int(exponent), position)
        else:
            result = self.raise_to_integer(base, int(exponent))
        return self.combine("inv", result) if negative else result

    def raise_to_integer(self, base: _Tree, exponent: int) -> _Tree:
        if exponent == 1:
            return base
        half = self.combine("square", self.raise_to_integer(base, exponent // 2))
        return half if exponent % 2 == 0 else self.combine("mul", half, base)

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
            found = f"there is no leaf named {quote(name)}.{suggest(name, known)}"
            raise self.error(f"{found} Known: {', '.join(known)}", position)
        if self.take("("):
            value = self.sum()
            self.expect(")")
            return value
        raise self.error(f"expected a number, a leaf, an operator or '(', found {quote(self.token)}")

    def number(self) -> Fraction:
        position = self.start
        if len(self.token) > MAXIMUM_DIGITS:
            raise self.error(f"a number has at most {MAXIMUM_DIGITS} digits")
        return self.check_number(Fraction(self.advance()), position)

    def check_number(self, value: Fraction, position: int) -> Fraction:
        if abs(value.numerator) > MAXIMUM_NUMBER or value.denominator > MAXIMUM_NUMBER:
            raise self.error(f"numbers range from 1/{MAXIMUM_NUMBER} to {MAXIMUM_NUMBER}", position)
        return value

    def call(self, name: str, position: int) -> _Tree:
        if name not in self.operators:
            found = f"there is no operator named {quote(name)}.{suggest(name, self.operators)}"
            raise self.error(f"{found} Known: {', '.join(self.operators)}", position)
        operands = [self.sum()]
        while self.take(","):
            operands.append(self.sum())
        self.expect(")")
        expected = self.operators[name].arity
        if len(operands) != expected:
            raise self.error(f"{name} takes {expected} operand{'s' * (expected > 1)}; found {len(operands)}", position)
        return self.combine(name, *operands)


_Tree = tuple[Symbol, ...]
"""The symbols of a tree in prefix order; only the final tree is checked, as an `Expression`."""
_Value = _Tree | Fraction


def _to_tree(value: _Value) -> _Tree:
    """Return a number as a tree over the constant 1, and a tree as it is."""
    return value if isinstance(value, tuple) else build_number(value).symbols


def _describe_character(character: str) -> str:
    """Return a character in quotes; one outside ASCII with its code point and name, since it may look like another."""
    name = unicodedata.name(character, "no letter")
    other = "" if character.isascii() else f" (U+{ord(character):04X}, {name}); formulas are plain ASCII"
    return f"{character!r}{other}"
