"""A loss as text: `branch: formula; branch: formula`, or the formula alone for the only branch, `main`.

A formula may begin with the factor that a search gave the tree: `0.250 * neg(mul(y, log(p)))`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

MAIN = "main"
"""The name of the branch of a network that has only one."""


def join_branches(parts: Mapping[str, object]) -> str:
    """Return the text of a loss.

    Args:
        parts: Branch → its formula, or any other text for it.

    >>> join_branches({"cls": "y * p", "reg": "p"})
    'cls: y * p; reg: p'
    >>> join_branches({"main": "y * p"})
    'y * p'
    """
    if set(parts) == {MAIN}:
        return str(parts[MAIN])
    return "; ".join(f"{name}: {part}" for name, part in parts.items())


def join_losses(losses: Mapping[str, str]) -> str:
    """Return the text of a loss of any branches; that of a single one needs no name.

    >>> join_losses({"cls": "baseline/ce"})
    'baseline/ce'
    """
    return next(iter(losses.values())) if len(losses) == 1 else join_branches(losses)


def split_branches(text: str) -> dict[str, str]:
    """Split the text of a loss into branch → part, the inverse of `join_branches`; parts without a name are left out.

    >>> split_branches("cls: y * p; reg: p")
    {'cls': 'y * p', 'reg': 'p'}
    """
    if ":" not in text:
        return {MAIN: text}
    named = (part.partition(":") for part in text.split(";"))
    return {name.strip(): part.strip() for name, colon, part in named if colon}


LEAST_FACTOR, LARGEST_FACTOR = 1e-6, 1e6
FACTOR_DIGITS, FACTOR_DECIMALS = 3, 6
"""Significant digits of a factor, and the most decimals."""
_FACTOR = re.compile(r"([0-9]+\.[0-9]+) \* (?=[A-Za-z_]\w*\()", re.ASCII)


def round_factor(factor: float) -> float:
    """Round a factor to the value that its text has: three significant digits, at most six decimals, from 1e-6 to 1e6.

    >>> round_factor(0.123456), round_factor(1e9)
    (0.123, 1000000.0)
    """
    return float(_write_factor(factor))


def add_factor(formula: str, factor: float) -> str:
    """Write a factor before the prefix text of a tree, rounded by `round_factor`; 1 is left out.

    >>> add_factor("log(p)", 0.25)
    '0.250 * log(p)'
    """
    # Rounded before it is written: 9.996 has the text of 10.
    rounded = factor if factor == 1 else round_factor(factor)
    return formula if rounded == 1 else f"{_write_factor(rounded)} * {formula}"


def split_factor(formula: str) -> tuple[float, str]:
    """Split what `add_factor` wrote; the factor is 1 where the text does not begin with one in exactly that form.

    >>> split_factor("0.250 * log(p)"), split_factor("0.25 * log(p)")
    ((0.25, 'log(p)'), (1.0, '0.25 * log(p)'))
    """
    found = _FACTOR.match(formula)
    if found is None or _write_factor(float(found[1])) != found[1]:
        return 1.0, formula
    return float(found[1]), formula[found.end() :]


def _write_factor(factor: float) -> str:
    kept = min(max(factor, LEAST_FACTOR), LARGEST_FACTOR)
    decimals = FACTOR_DIGITS - 1 - math.floor(math.log10(kept))
    return f"{round(kept, decimals):.{min(max(decimals, 1), FACTOR_DECIMALS)}f}"
