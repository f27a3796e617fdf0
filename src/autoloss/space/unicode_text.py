"""Formulas as they are printed for readers, `−½·log(√p)²`, as text that the parser knows."""

from __future__ import annotations

import re
from fractions import Fraction

RAISED = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
"""The minus and the digits as exponents."""
FRACTIONS = dict(zip("½⅓⅔¼¾⅛", map(Fraction, ("1/2", "1/3", "2/3", "1/4", "3/4", "1/8")), strict=True))
CALLS = {"mean_nhw": "mean_NHW", "mean_c": "mean_C", "max_pool": "max₃ₓ₃", "min_pool": "min₃ₓ₃"}
"""Operator → its name for readers."""
_FRACTIONS = {printed: f"({value})" for printed, value in FRACTIONS.items()}
_CHARACTERS = str.maketrans({"−": "-", "·": "*", "×": "*", **_FRACTIONS})
_PRINTED = frozenset("−·×√₃ₓ|").union(FRACTIONS, RAISED)
_POWER = re.compile(f"[{RAISED}]+")
_ROOT_OF_NAME = re.compile(r"√([A-Za-z_]\w*(?!\w|\()|\d+(?:\.\d+)?)", re.ASCII)


def read_printed(text: str) -> str:
    """Return a formula as the parser knows it; any text that is not printed that way stays as it is.

    One formula has one kind of minus: where both occur, somebody typed one of them by mistake.

    >>> read_printed("−½·|log(p)|·√(y + 1)²")
    '-(1/2)*abs(log(p))*sqrt(y + 1)**2'
    >>> read_printed("-y * log(p)"), read_printed("p - −y")
    ('-y * log(p)', 'p - −y')
    """
    if ("−" in text and "-" in text) or not (_PRINTED & set(text) or "mean_NHW(" in text or "mean_C(" in text):
        return text
    for known, printed in CALLS.items():
        text = text.replace(f"{printed}(", f"{known}(")
    text = _POWER.sub(lambda found: f"**{found[0].translate(str.maketrans(RAISED, '-0123456789'))}", text)
    text = _ROOT_OF_NAME.sub(r"sqrt(\1)", text).replace("√(", "sqrt(")
    return _read_bars(text.translate(_CHARACTERS))


def _read_bars(text: str) -> str:
    """Write |a| as abs(a), and √|a| as sqrt(abs(a)): a bar after an operand closes."""
    parts: list[str] = []
    closing: list[str] = []
    last = ""
    for character in text:
        if character != "|":
            parts.append(character)
        elif closing and (last.isalnum() or last in (")", "_")):
            character = closing.pop()
            parts.append(character)
        else:
            rooted = parts[-1:] == ["√"]
            parts[-1:] = ["sqrt(abs("] if rooted else [*parts[-1:], "abs("]
            closing.append("))" if rooted else ")")
        if not character.isspace():
            last = character[-1]
    return "".join(parts)
