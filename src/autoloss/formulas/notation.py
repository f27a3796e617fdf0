"""How a term is written: text that parses back, LaTeX, and one line of Unicode for readers.

One writer and one table of notations: they differ in signs, fractions, powers and the names of operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from autoloss.formulas.terms import MINUS, Term, fold, negated, negative
from autoloss.space.operators import Operator

SUM, PRODUCT, POWER, ATOM = range(4)
"""How tightly a text binds."""


@final
@dataclass(frozen=True, slots=True)
class Written:
    """A part of a formula as text.

    Args:
        below: Of an inverse, what stands below its bar.
    """

    text: str
    level: int
    below: Written | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Notation:
    """One way of writing.

    Args:
        number: A number that is not negative → its text.
        power: A text and an exponent.
        quotient: Numerator and denominator, as written: a fraction's parts need no parentheses where it has a bar.
        bar: Fractions have a bar.
        is_read: The parser reads it.
        called: An operator and the texts of its operands.
    """

    minus: str
    times: str
    number: Callable[[Term], Written]
    power: Callable[[str, int], str]
    quotient: str
    bar: bool
    parentheses: tuple[str, str]
    called: Callable[[Operator, list[Written]], Written]
    is_read: bool = False

    def within(self, written: Written, level: int) -> str:
        return written.text if written.level >= level else written.text.join(self.parentheses)


def text(term: Term) -> str:
    """Return text that `autoloss.parse` reads, `-y * log(p)`."""
    return _written(term, TEXT)


def latex(term: Term) -> str:
    r"""Return LaTeX for a formula's inside, `-y \cdot \log\left(p\right)`; numbers that are not rational as decimals."""
    return _written(term, LATEX)


def unicode(term: Term) -> str:
    """Return one line for readers, `−y·log(p)`; numbers that are not rational as decimals."""
    return _written(term, UNICODE)


def _written(term: Term, notation: Notation) -> str:
    return fold(term, lambda node, parts: _node(node, parts, notation)).text


def _node(term: Term, parts: list[Written], notation: Notation) -> Written:
    match term.head:
        case "number":
            return _number(term, notation)
        case "leaf":
            return Written(term.name, ATOM)
        case "sum":
            return Written(_sum(term, parts, notation), SUM)
        case "product":
            return _product(term, parts, notation)
        case "power":
            return Written(notation.power(notation.within(parts[0], ATOM), term.exponent), POWER)
        # Text must not write 1 / 2: the parser would compute it without ε.
        case _ if term.is_call("inv") and not (notation.is_read and term.parts[0].head == "number"):
            quotient = _quotient(["1"], parts, notation)
            return Written(quotient.text, quotient.level, below=parts[0])
        case _:
            assert term.operator is not None
            return notation.called(term.operator, parts)


def _number(term: Term, notation: Notation) -> Written:
    if term.value < 0:
        return Written(notation.minus + notation.within(notation.number(negated(term)), PRODUCT), SUM)
    return notation.number(term)


def _sum(term: Term, parts: list[Written], notation: Notation) -> str:
    """Join with plus and minus, a part without a minus first."""
    pairs = sorted(zip(term.parts, parts, strict=True), key=lambda pair: negative(pair[0]))
    line = pairs[0][1].text
    for part, found in pairs[1:]:
        if negative(part):
            line += f" {notation.minus} {found.text.removeprefix(notation.minus)}"
        else:
            line += f" + {notation.within(found, PRODUCT)}"
    return line


def _product(term: Term, parts: list[Written], notation: Notation) -> Written:
    sign = notation.minus if negative(term) else ""
    first = negated(term.parts[0]) if sign else term.parts[0]
    found = [notation.number(first), *parts[1:]] if sign else parts
    above = [part for part in found[term.parts[0] == MINUS :] if part.below is None]
    below = [part.below for part in found if part.below is not None]
    lead = ""
    if notation.bar and below and isinstance(first.value, Fraction) and first.value.denominator > 1:
        # Two bars would stand on each other: ½·a/b has its number before the bar, 1/(2a) has it on both sides.
        fraction = above.pop(0).text
        if above:
            lead = fraction
        else:
            numerator, denominator = (Written(str(whole), ATOM) for whole in first.value.as_integer_ratio())
            above, below = [numerator], [denominator, *below]
    alone = SUM if notation.bar and below and len(above) == 1 else PRODUCT
    inner = [notation.within(part, POWER if place else alone) for place, part in enumerate(above)]
    body = _quotient(inner or ["1"], below, notation) if below else Written(notation.times.join(inner), PRODUCT)
    line = f"{lead}{notation.times}{body.text}" if lead else body.text
    return Written(sign + line, SUM if sign else PRODUCT if lead else body.level)


def _quotient(above: list[str], below: list[Written], notation: Notation) -> Written:
    numerator = notation.times.join(above)
    if notation.bar:
        level = SUM if len(below) == 1 else POWER
        denominator = notation.times.join(notation.within(part, level) for part in below)
        return Written(notation.quotient.format(numerator, denominator), POWER)
    for part in below:
        numerator = notation.quotient.format(numerator, notation.within(part, POWER))
    return Written(numerator, PRODUCT)


def _decimal(value: float, times: str, ten: Callable[[int], str]) -> Written:
    """Write four significant digits, with a power of ten where the number is long."""
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    if -4 <= int(exponent) < 6:
        return Written(f"{value:.4g}" if int(exponent) < 4 else f"{value:.0f}", ATOM)
    mantissa = mantissa.rstrip("0").rstrip(".")
    power_of_ten = ten(int(exponent))
    return Written(power_of_ten, POWER) if mantissa == "1" else Written(f"{mantissa}{times}{power_of_ten}", PRODUCT)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_VULGAR: Mapping[Fraction, str] = {
    Fraction(1, 2): "½",
    Fraction(1, 3): "⅓",
    Fraction(2, 3): "⅔",
    Fraction(1, 4): "¼",
    Fraction(3, 4): "¾",
    Fraction(1, 8): "⅛",
}
_SHORT = {"mean_nhw": "mean_NHW", "mean_c": "mean_C", "max_pool": "max₃ₓ₃", "min_pool": "min₃ₓ₃"}


def _text_number(term: Term) -> Written:
    if isinstance(term.value, Fraction):
        return Written(str(term.value), ATOM if term.value.denominator == 1 else PRODUCT)
    return Written(term.name, ATOM)


def _unicode_number(term: Term) -> Written:
    if isinstance(term.value, Fraction):
        short = _VULGAR.get(term.value)
        return Written(short, ATOM) if short else _text_number(term)
    return _decimal(term.value, "·", lambda exponent: "10" + str(exponent).translate(_SUPERSCRIPTS))


def _latex_number(term: Term) -> Written:
    if not isinstance(term.value, Fraction):
        return _decimal(term.value, r" \cdot ", lambda exponent: f"10^{{{exponent}}}")
    above, below = term.value.as_integer_ratio()
    return Written(rf"\frac{{{above}}}{{{below}}}", POWER) if below > 1 else Written(str(above), ATOM)


def _text_call(operator: Operator, operands: list[Written]) -> Written:
    return Written(f"{operator.name}({', '.join(part.text for part in operands)})", ATOM)


def _unicode_call(operator: Operator, operands: list[Written]) -> Written:
    inner = operands[0]
    if operator.name == "abs":
        return Written(f"|{inner.text}|", ATOM)
    if operator.name == "sqrt":
        # A dot between factors passes for a part of an identifier.
        plain = inner.level == ATOM and (inner.text.isidentifier() or inner.text.isdecimal())
        return Written(f"√{inner.text}" if plain else f"√({inner.text})", POWER)
    name = _SHORT.get(operator.name, operator.name)
    return Written(f"{name}({', '.join(part.text for part in operands)})", ATOM)


def _latex_call(operator: Operator, operands: list[Written]) -> Written:
    return Written(operator.latex.format(*(part.text for part in operands)), ATOM)


TEXT = Notation(
    minus="-",
    times=" * ",
    number=_text_number,
    power=lambda base, exponent: f"{base}**{exponent}",
    quotient="{0} / {1}",
    bar=False,
    parentheses=("(", ")"),
    called=_text_call,
    is_read=True,
)
UNICODE = Notation(
    minus="−",
    times="·",
    number=_unicode_number,
    power=lambda base, exponent: base + str(exponent).translate(_SUPERSCRIPTS),
    quotient="{0} / {1}",
    bar=False,
    parentheses=("(", ")"),
    called=_unicode_call,
)
LATEX = Notation(
    minus="-",
    times=r" \cdot ",
    number=_latex_number,
    power=lambda base, exponent: f"{base}^{{{exponent}}}",
    quotient=r"\frac{{{0}}}{{{1}}}",
    bar=True,
    parentheses=(r"\left(", r"\right)"),
    called=_latex_call,
)
