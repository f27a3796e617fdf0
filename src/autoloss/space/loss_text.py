"""A loss as text: `branch: formula; branch: formula`, or the formula alone for the only branch, `main`."""

from __future__ import annotations

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


def split_branches(text: str) -> dict[str, str]:
    """Split the text of a loss into branch → part, the inverse of `join_branches`; parts without a name are left out.

    >>> split_branches("cls: y * p; reg: p")
    {'cls': 'y * p', 'reg': 'p'}
    """
    if ":" not in text:
        return {MAIN: text}
    named = (part.partition(":") for part in text.split(";"))
    return {name.strip(): part.strip() for name, colon, part in named if colon}
