"""One converter from text to the type of a setting or of a task's option; no torch."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any, Literal

from autoloss.errors import RequestError, quote

NAMED_TYPES: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "bool": bool,
    "str": str,
    "None": type(None),
    "tuple[str, ...]": tuple[str, ...],
    "tuple[float, ...]": tuple[float, ...],
}
"""Types by the text of their annotation."""
DESCRIPTIONS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
    tuple[str, ...]: "texts with commas between",
    tuple[float, ...]: "numbers with commas between",
}


def parse_json(text: str | bytes) -> Any:
    """Read a JSON text that may come from anybody.

    Raises:
        ValueError: It is none, or is nested deeper than any text that is written here.

    >>> parse_json("[1, 2]")
    [1, 2]
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None


def convert(name: str, value: Any, annotation: Any) -> Any:
    """Convert a value, or the text of one, to the type of a setting or of a task's option.

    Args:
        name: Of the setting or option, for the message.
        annotation: A type, or the text of one as `inspect.signature` gives it. Alternatives are tried in order; where one is not
            among `NAMED_TYPES`, the value stays as it is.

    Raises:
        RequestError: The value is not of that type.

    >>> convert("steps", "20", "int | None"), convert("steps", "none", "int | None")
    (20, None)
    >>> convert("evaluations", "2e2", int)
    200
    >>> convert("evolution.lag", "two", int)
    Traceback (most recent call last):
    autoloss.errors.RequestError: evolution.lag takes a whole number; found 'two'.
    """
    if isinstance(annotation, str):
        kinds = tuple(NAMED_TYPES.get(text) for text in annotation.split(" | "))
        if None in kinds:
            return value
    else:
        is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
        kinds = typing.get_args(annotation) if is_union else (annotation,)
    for kind in kinds:
        with suppress(ValueError, TypeError, OverflowError):
            return _as_type(value, kind)
    expected = " or ".join(
        DESCRIPTIONS.get(kind) or " or ".join(repr(choice) for choice in typing.get_args(kind)) for kind in kinds
    )
    raise RequestError(f"{name} takes {expected}; found {quote(value)}.")


def _as_type(value: Any, kind: Any) -> Any:
    """Return a value as a type, or raise a ValueError, TypeError or OverflowError."""
    if typing.get_origin(kind) is tuple:
        parts = (
            [part for part in map(str.strip, value.strip("()").split(",")) if part] if isinstance(value, str) else value
        )
        if not isinstance(parts, list | tuple):
            raise TypeError
        return tuple(_as_type(part, typing.get_args(kind)[0]) for part in parts)
    if kind is type(None) and value in (None, "none", ""):
        return None
    if typing.get_origin(kind) is Literal and value in typing.get_args(kind):
        return value
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind not in (int, float, str) or isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if kind is int and isinstance(value, str):
        return _as_whole_number(value)
    if kind is not float and not isinstance(value, float):
        return kind(value)
    number = float(value)
    if not math.isfinite(number) or (kind is int and not number.is_integer()):
        raise ValueError
    return kind(value)


def _as_whole_number(text: str) -> int:
    """Return the whole number that a text such as 200, 2e2 or 200.0 stands for, or raise a ValueError."""
    with suppress(ValueError):
        return int(text)
    # A float rounds, so that only a Decimal tells; but a float has no exponents that would fill the memory.
    if math.isfinite(float(text)) and (number := Decimal(text)) == number.to_integral_value():
        return int(number)
    raise ValueError
