"""A formula as MathML: set by the browser itself, in the page's own colours, with nothing to load."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from markupsafe import Markup, escape

from autoloss.formulas.notation import ATOM, POWER, PRODUCT, SUM, unicode
from autoloss.formulas.terms import MINUS, Term, fold, negated, negative
from autoloss.space.operators import Operator

_NAMES = {
    "mean_nhw": Markup("<msub><mi>mean</mi><mi>NHW</mi></msub>"),
    "mean_c": Markup("<msub><mi>mean</mi><mi>C</mi></msub>"),
    "max_pool": Markup("<msub><mi>max</mi><mn>3×3</mn></msub>"),
    "min_pool": Markup("<msub><mi>min</mi><mn>3×3</mn></msub>"),
}
_TIMES, _PLUS, _MINUS = (Markup(f"<mo>{sign}</mo>") for sign in "·+−")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a formula.

    Args:
        level: How tightly it binds.
        unsigned: The same without its leading minus; None where it has none.
        below: Of an inverse, what stands below its bar.
    """

    html: Markup
    level: int
    unsigned: Markup | None = None
    below: Markup | None = None


def mathml(term: Term) -> Markup:
    """Return a formula as a `math` element; readers of screens get its line of text."""
    inner = fold(term, _part).html
    return Markup('<math displaystyle="true" alttext="{}">{}</math>').format(unicode(term), inner)


def _part(term: Term, parts: list[_Part]) -> _Part:
    match term.head:
        case "number":
            return _number(term)
        case "leaf":
            return _Part(Markup("<mi>{}</mi>").format(term.name), ATOM)
        case "sum":
            return _sum(term, parts)
        case "product":
            return _product(term, parts)
        case "power":
            # log(p)² would leave open what is squared.
            base = _within(parts[0], ATOM) if term.parts[0].head == "leaf" else _parenthesised(parts[0].html)
            return _Part(Markup("<msup>{}<mn>{}</mn></msup>").format(base, term.exponent), POWER)
        case _ if term.is_call("inv"):
            return _Part(_fraction(Markup("<mn>1</mn>"), parts[0].html), POWER, below=parts[0].html)
        case _:
            assert term.operator is not None
            return _call(term.operator, parts)


def _number(term: Term) -> _Part:
    if term.value < 0:
        unsigned = _number(negated(term)).html
        return _Part(_row(_MINUS, unsigned), SUM, unsigned=unsigned)
    if isinstance(term.value, Fraction) and term.value.denominator > 1:
        above, below = (Markup("<mn>{}</mn>").format(whole) for whole in term.value.as_integer_ratio())
        return _Part(_fraction(above, below), POWER)
    return _Part(Markup("<mn>{}</mn>").format(unicode(term)), ATOM)


def _sum(term: Term, parts: list[_Part]) -> _Part:
    # A part without a minus comes first, as in the one line of text.
    pairs = sorted(zip(term.parts, parts, strict=True), key=lambda pair: negative(pair[0]))
    line = [pairs[0][1].html]
    for _, part in pairs[1:]:
        line += [_PLUS, _within(part, PRODUCT)] if part.unsigned is None else [_MINUS, part.unsigned]
    return _Part(_row(*line), SUM)


def _product(term: Term, parts: list[_Part]) -> _Part:
    factors = [
        _number(negated(node)) if negative(node) and node.head == "number" else part
        for node, part in zip(term.parts, parts, strict=True)
        if node != MINUS
    ]
    above = [part for part in factors if part.below is None]
    below = [part.below for part in factors if part.below is not None]
    # A part alone above a bar needs no parentheses.
    inner = [_within(part, SUM if below and len(above) == 1 else PRODUCT) for part in above]
    numerator = _joined(inner) if inner else Markup("<mn>1</mn>")
    body = _fraction(numerator, _joined(below)) if below else numerator
    if not negative(term):
        return _Part(body, POWER if below else PRODUCT)
    return _Part(_row(_MINUS, body), SUM, unsigned=body)


def _call(operator: Operator, parts: list[_Part]) -> _Part:
    operands = Markup("<mo>,</mo>").join(part.html for part in parts)
    match operator.name:
        case "abs":
            return _Part(_row(Markup("<mo>|</mo>"), operands, Markup("<mo>|</mo>")), ATOM)
        case "sqrt":
            return _Part(Markup("<msqrt>{}</msqrt>").format(operands), POWER)
        case "exp":
            return _Part(Markup("<msup><mi>e</mi><mrow>{}</mrow></msup>").format(operands), POWER)
        case name:
            called = _NAMES.get(name, Markup("<mi>{}</mi>").format(escape(name)))
            return _Part(_row(called, _parenthesised(operands)), ATOM)


def _within(part: _Part, level: int) -> Markup:
    return part.html if part.level >= level else _parenthesised(part.html)


def _parenthesised(html: Markup) -> Markup:
    return _row(Markup("<mo>(</mo>"), html, Markup("<mo>)</mo>"))


def _fraction(above: Markup, below: Markup) -> Markup:
    return Markup("<mfrac>{}{}</mfrac>").format(_row(above), _row(below))


def _joined(parts: list[Markup]) -> Markup:
    return _row(_TIMES.join(parts))


def _row(*parts: Markup) -> Markup:
    return Markup("<mrow>{}</mrow>").format(Markup("").join(parts))
