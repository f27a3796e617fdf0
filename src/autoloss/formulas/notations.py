"""The notations in which formulas are written: text that is read back, two kinds of line for readers, LaTeX and MathML."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from autoloss.formulas.writing import NAME, POWER, Call, Notation, call_by_name
from autoloss.space.operators import Operator

_ROOT = Call("√{0}", POWER, NAME)
_VULGAR: Mapping[Fraction, str] = {
    Fraction(1, 2): "½",
    Fraction(1, 3): "⅓",
    Fraction(2, 3): "⅔",
    Fraction(1, 4): "¼",
    Fraction(3, 4): "¾",
    Fraction(1, 8): "⅛",
}
_UNICODE_CALLS: Mapping[str, Call] = {
    "abs": Call("|{0}|"),
    "sqrt": _ROOT,
    "mean_nhw": Call("mean_NHW({0})"),
    "mean_c": Call("mean_C({0})"),
    "max_pool": Call("max₃ₓ₃({0})"),
    "min_pool": Call("min₃ₓ₃({0})"),
}


def _raise_in_unicode(base: str, exponent: int) -> str:
    return base + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


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
