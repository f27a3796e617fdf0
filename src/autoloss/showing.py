"""The forms of a value for a notebook, as methods: `_repr_html_` and `plot`.

They are written in `report/`, above all rooms that use them, and are loaded when somebody looks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WRITERS = "autoloss.report.notebook"


def to_html(value: Any) -> str:
    """Return the HTML that a notebook shows for the value."""
    return import_module(_WRITERS).to_html(value)


def plot(value: Any, axes: Any = None) -> Any:
    """Draw the value with matplotlib.

    Args:
        axes: Where it is drawn; new axes if None.

    Returns:
        The axes.

    Raises:
        RequestError: matplotlib is not installed (`pip install autoloss[plot]`).
    """
    return import_module(_WRITERS).plot(value, axes)
