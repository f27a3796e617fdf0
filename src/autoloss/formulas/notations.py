"""The writer of formulas, which decides on signs, fractions, powers and parentheses, and the notations that it writes.

A formula is written from its leaves up: each method of `Notation` takes written parts and returns the written whole. Terms,
trees and the statements of an exported file are all written this way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import final

from autoloss.space.operators import OPERATORS, Operator, is_own
from autoloss.space.unicode_text import CALLS, FRACTIONS, RAISED

LONG = 100
"""Denominator from which a number with few decimals is written with them, as any with a factor of five below the bar is."""
SUM, PRODUCT, SIGN, POWER, ATOM, NAME = range(6)
"""Precedence, from loose to tight. A minus is as loose as a sum; in Python it has a level of its own, SIGN."""


@final
@dataclass(frozen=True, slots=True)
class Written:
    """A written part of a formula.

    Args:
        level: The precedence of its outermost operation.
        number: Its value, of a number.
        unsigned: The same part without its leading minus; None where it has none.
        denominator: Of a reciprocal, what is below the bar.
    """

    text: str
    level: int
    number: Fraction | float | None = None
    unsigned: Written | None = None
    denominator: Written | None = None


@final
@dataclass(frozen=True, slots=True)
class Call:
    """The notation of an operator.

    Args:
        template: A format string with the operands as {0} and {1}.
        operand: The precedence that an operand needs to stand without parentheses.
    """

    template: str
    level: int = ATOM
    operand: int = SUM


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """One way to write formulas; text fields are format strings.

    Args:
        sign: The precedence of a minus in front.
        rational: A positive fraction → its text, where fractions have no bar.
        is_exact: Floating-point numbers are written as the formula that they are the value of, not as decimals.
        fraction: Numerator and denominator; with a bar these need no parentheses.
        divides_by: The operand of `inv` is written as a denominator rather than as a call.
        power: Base and exponent → their text.
        base: The precedence that a base needs.
        group: What holds an operation's operands together.
    """

    plus: str = " + "
    minus: str = " - "
    negative: str = "-"
    sign: int = SUM
    times: str
    leaf: str = "{0}"
    digits: str = "{0}"
    rational: Callable[[Fraction], str] = str
    is_exact: bool = False
    fraction: str = "{0} / {1}"
    has_bar: bool = False
    divides_by: Callable[[Written], bool] = lambda operand: True
    power: Callable[[str, int], str]
    base: int = ATOM
    parentheses: str = "({0})"
    group: str = "{0}"
    call: Callable[[Operator], Call]

    def write_leaf(self, name: str) -> Written:
        return Written(self.leaf.format(name), NAME)

    def write_number(self, value: Fraction | float, name: str = "") -> Written:
        """Write a number; `name` is the formula that a floating-point one is the value of."""
        if value < 0:
            return self.write_negative(self.write_number(-value, opposite(name)))
        if isinstance(value, float):
            return Written(name, ATOM, value) if self.is_exact else self._write_decimal(value)
        if value.denominator == 1:
            return Written(self.digits.format(value), NAME, value)
        if decimal := _write_few_decimals(value):
            return Written(self.digits.format(decimal), ATOM, value)
        if self.has_bar:
            return Written(self.fraction.format(*map(self.digits.format, value.as_integer_ratio())), POWER, value)
        text = self.rational(value)
        return Written(text, PRODUCT if "/" in text else ATOM, value)

    def _write_decimal(self, value: float) -> Written:
        """Write four significant digits, with a power of ten where the number is long."""
        mantissa, exponent = f"{value:.3e}".split("e")
        if -4 <= int(exponent) < 6:
            text = f"{value:.4g}" if int(exponent) < 4 else f"{value:.0f}"
            return Written(self.digits.format(text), ATOM, value)
        power_of_ten = self.power(self.digits.format(10), int(exponent))
        mantissa = mantissa.rstrip("0").rstrip(".")
        if mantissa == "1":
            return Written(power_of_ten, POWER, value)
        text = f"{self.digits.format(mantissa)}{self.times}{power_of_ten}"
        return Written(self.group.format(text), PRODUCT, value)

    def write_negative(self, part: Written) -> Written:
        text = self.group.format(self.negative + self._enclose(part, self.sign + 1))
        return Written(text, self.sign, None if part.number is None else -part.number, unsigned=part)

    def write_sum(self, parts: Sequence[Written]) -> Written:
        line = parts[0].text
        for part in parts[1:]:
            sign, rest = (self.plus, part) if part.unsigned is None else (self.minus, part.unsigned)
            line += sign + self._enclose(rest, PRODUCT)
        return Written(self.group.format(line), SUM)

    def write_product(self, parts: Sequence[Written]) -> Written:
        first = parts[0].unsigned
        if self.sign == SUM and first is not None and first.number is not None:
            return self.write_negative(self.write_product([first, *parts[1:]] if first.number != 1 else parts[1:]))
        above = [part for part in parts if part.denominator is None]
        below = [part.denominator for part in parts if part.denominator is not None]
        if not below:
            return Written(self.group.format(self._join(above)), PRODUCT)
        value = above[0].number if above else None
        if not self.has_bar or not isinstance(value, Fraction) or value.denominator == 1 or _write_few_decimals(value):
            return self._write_fraction(above, below)
        # A bar above another one is hard to read: a/(2b) has the number on both sides, ½·a/b has it in front.
        if len(above) > 1:
            line = above[0].text + self.times + self._write_fraction(above[1:], below).text
            return Written(self.group.format(line), PRODUCT)
        numerator, denominator = (self.write_number(Fraction(each)) for each in value.as_integer_ratio())
        return self._write_fraction([numerator], [denominator, *below])

    def _write_fraction(self, above: Sequence[Written], below: Sequence[Written]) -> Written:
        alone = self.has_bar and len(above) == 1
        numerator = above[0].text if alone else self._join(above) if above else self.digits.format(1)
        if self.has_bar:
            denominator = below[0].text if len(below) == 1 else self._join(below)
            return Written(self.fraction.format(numerator, denominator), POWER)
        for part in below:
            numerator = self.fraction.format(numerator, self._enclose(part, POWER))
        return Written(numerator, PRODUCT)

    def _join(self, factors: Sequence[Written]) -> str:
        # Only a bar tells where a factor that is a quotient ends.
        later = PRODUCT if self.has_bar else SIGN
        return self.times.join(self._enclose(part, later if place else PRODUCT) for place, part in enumerate(factors))

    def write_power(self, base: Written, exponent: int) -> Written:
        return Written(self.power(self._enclose(base, self.base), exponent), POWER)

    def write_call(self, operator: Operator, operands: Sequence[Written]) -> Written:
        if operator is OPERATORS["inv"] and self.divides_by(operands[0]):
            return replace(self._write_fraction([], operands), denominator=operands[0])
        found = self.call(operator)
        return Written(found.template.format(*(self._enclose(part, found.operand) for part in operands)), found.level)

    def write_operation(self, operator: Operator, operands: Sequence[Written]) -> Written:
        """Write a node of a tree, its operands in their order."""
        match "" if is_own(operator) else operator.name:
            case "add":
                return self.write_sum(operands)
            case "mul":
                return self.write_product(operands)
            case "neg":
                return self.write_negative(operands[0])
            case "square":
                return self.write_power(operands[0], 2)
            case _:
                return self.write_call(operator, operands)

    def _enclose(self, part: Written, level: int) -> str:
        return part.text if part.level >= level else self.parentheses.format(part.text)


def _write_few_decimals(value: Fraction) -> str:
    """Write a factor with decimals: 0.371 is read more easily than 371/1000, and 9.66 than 483/50; nothing for other numbers."""
    decimal = Decimal(f"{float(value):g}")
    few = (value.denominator >= LONG or value.denominator % 5 == 0) and Fraction(decimal) == value
    return f"{decimal:f}" * few


def opposite(formula: str) -> str:
    """Return the formula of a constant with the other sign: `neg(exp(1))` for `exp(1)`, and back."""
    inner = formula.removeprefix("neg(")
    return f"neg({formula})" if inner == formula else inner.removesuffix(")")


def call_by_name(name: str, operands: int) -> Call:
    """Return the notation of a call with its operands in parentheses."""
    return Call(f"{name}({', '.join(f'{{{place}}}' for place in range(operands))})")


_ROOT = Call("√{0}", POWER, NAME)
_VULGAR = {value: printed for printed, value in FRACTIONS.items()}
_UNICODE_CALLS: Mapping[str, Call] = {
    "abs": Call("|{0}|"),
    "sqrt": _ROOT,
    **{name: Call(f"{printed}({{0}})") for name, printed in CALLS.items()},
}


def _raise_in_unicode(base: str, exponent: int) -> str:
    return base + str(exponent).translate(str.maketrans("-0123456789", RAISED))


TEXT = Notation(
    times=" * ",
    is_exact=True,
    # The parser computes 1 / 2, without the ε of inv(2).
    divides_by=lambda operand: operand.number is None,
    power=lambda base, exponent: f"{base}**{exponent}",
    call=lambda operator: call_by_name(operator.name, operator.arity),
)
"""The text that `autoloss.parse` reads: `-y * log(p)`."""

UNICODE = Notation(
    minus=" − ",
    negative="−",
    times="·",
    rational=lambda value: _VULGAR.get(value, str(value)),
    power=_raise_in_unicode,
    call=lambda operator: _UNICODE_CALLS.get(operator.name, call_by_name(operator.name, operator.arity)),
)
"""One line for readers: `−y·log(p)`."""

LINE = Notation(
    times="·",
    is_exact=True,
    divides_by=TEXT.divides_by,
    power=_raise_in_unicode,
    call=lambda operator: _ROOT if operator.name == "sqrt" else call_by_name(operator.name, operator.arity),
)
"""One line among code, with the operators by their names: `-y·log(p)`."""

LATEX = Notation(
    times=r" \cdot ",
    fraction=r"\frac{{{0}}}{{{1}}}",
    has_bar=True,
    power=lambda base, exponent: f"{base}^{{{exponent}}}",
    parentheses=r"\left({0}\right)",
    call=lambda operator: Call(operator.latex),
)


def _mathml_call(operator: Operator) -> Call:
    match operator.name:
        case "abs":
            return Call("<mrow><mo>|</mo>{0}<mo>|</mo></mrow>")
        case "sqrt":
            return Call("<msqrt>{0}</msqrt>", POWER)
        case "exp":
            return Call("<msup><mi>e</mi><mrow>{0}</mrow></msup>", POWER)
        case "mean_nhw" | "mean_c":
            base, index = operator.name.split("_")
            name = f"<msub><mi>{base}</mi><mi>{index.upper()}</mi></msub>"
        case "max_pool" | "min_pool":
            name = f"<msub><mi>{operator.name[:3]}</mi><mn>3×3</mn></msub>"
        case _:
            name = f"<mi>{operator.name}</mi>"
    operands = "<mo>,</mo>".join(f"{{{place}}}" for place in range(operator.arity))
    return Call(f"<mrow>{name}<mrow><mo>(</mo>{operands}<mo>)</mo></mrow></mrow>")


MATHML = Notation(
    plus="<mo>+</mo>",
    minus="<mo>−</mo>",
    negative="<mo>−</mo>",
    times="<mo>·</mo>",
    leaf="<mi>{0}</mi>",
    digits="<mn>{0}</mn>",
    fraction="<mfrac><mrow>{0}</mrow><mrow>{1}</mrow></mfrac>",
    has_bar=True,
    power=lambda base, exponent: f"<msup>{base}<mn>{exponent}</mn></msup>",
    # log(p)² would leave open what is squared.
    base=NAME,
    parentheses="<mrow><mo>(</mo>{0}<mo>)</mo></mrow>",
    group="<mrow>{0}</mrow>",
    call=_mathml_call,
)
"""Markup that a browser displays by itself. Names of leaves and operators are identifiers, so nothing needs to be escaped."""
