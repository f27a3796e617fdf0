"""Options that are declared once: name, type with range, default and docstring are a field of a frozen dataclass; no torch.

Values are checked by pydantic, and texts are read as the type of their field; a wrong one is a `RequestError` in one form for all.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
import operator
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import Ge, Gt, Le, Lt, MultipleOf
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from autoloss.errors import RequestError, quote, suggest, unknown

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]

CONFIGURATION = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
DESCRIPTIONS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "none",
    Callable: "a class or function",
    Mapping: "a dictionary",
    Path: "a path",
}
NUMBERS: Mapping[Any, Any] = {int: numbers.Integral, float: numbers.Real}
"""What a value has to be an instance of, where NumPy's types are no subclasses."""
BOUNDS = (
    (Ge, "ge", "at least", operator.ge),
    (Gt, "gt", "above", operator.gt),
    (Le, "le", "at most", operator.le),
    (Lt, "lt", "below", operator.lt),
    (MultipleOf, "multiple_of", "a multiple of", lambda value, base: value % base == 0),
)

Declared = TypeVar("Declared")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def declare(prefix: str = "", kind: str = "option") -> Callable[[type[Declared]], type[Declared]]:
    """Return a decorator for a class of options, which becomes a frozen dataclass whose values are read and checked.

    Texts are read as the type of their field: `2e2` is 200 for a whole number, `none` is None, and the parts of a tuple have commas
    between. What concerns several fields at once is checked in the class's `__post_init__`.

    Args:
        prefix: Part of the names that precedes a field's own in messages.
        kind: Noun for one of the options in messages.

    Raises:
        RequestError: When the class is called with an unknown name, or a value of the wrong type or outside its range.

    >>> @declare("evolution.", "setting")
    ... class Evolution:
    ...     lag: Count = 4
    >>> Evolution(lag="2e2")
    Evolution(lag=200)
    >>> Evolution(lag="two")
    Traceback (most recent call last):
    autoloss.errors.RequestError: evolution.lag is 'two'; expected a whole number, at least 1.
    """

    def decorate(cls: type[Declared]) -> type[Declared]:
        made: Any = checked_dataclass(cls, frozen=True, slots=True, kw_only=True, config=CONFIGURATION)
        check = made.__init__

        def construct(self: Any, **values: Any) -> None:
            hints = list_types(made)
            for name in values:
                if name not in hints:
                    raise unknown(kind, f"{prefix}{name}", [f"{prefix}{known}" for known in hints])
            read = {name: _read(value, hints[name]) for name, value in values.items()}
            try:
                check(self, **read)
            except ValidationError as error:
                first = error.errors()[0]
                if not first["loc"]:
                    # Raised by the class's own __post_init__.
                    raise first.get("ctx", {}).get("error", error) from None
                name = str(first["loc"][0])
                if name not in read:
                    raise RequestError(f"{prefix}{name} is missing; expected {describe(hints[name])}.") from None
                raise _refuse(f"{prefix}{name}", read[name], hints[name]) from None

        made.__init__ = construct
        return made

    return decorate


def check(options: Any, claims: Mapping[str, tuple[bool, str]]) -> None:
    """Check what concerns several options of a declared class, in its `__post_init__`.

    Args:
        claims: Name of an option → whether its value fits, and what is expected.

    Raises:
        RequestError: A value does not fit.
    """
    for name, (holds, expected) in claims.items():
        if not holds:
            raise RequestError(f"{name} is {quote(getattr(options, name))}; expected {expected}.")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Check the arguments of each call of a public function; see `check_arguments`.

    >>> @checked
    ... def train(seeds: Count = 1) -> int:
    ...     return seeds
    >>> train(seeds=0)
    Traceback (most recent call last):
    autoloss.errors.RequestError: seeds is 0; expected a whole number, at least 1.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        given = signature.bind(*args, **kwargs)
        given.arguments.update(check_arguments(function, given.arguments))
        return function(*given.args, **given.kwargs)

    return call


def check_arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Check that arguments of a function are of the types, and in the ranges, that it declares.

    Returns:
        The arguments; NumPy's numbers, also in a list or a tuple, are Python's, which JSON and a run's file hold.

    Raises:
        RequestError: A value is not.
    """
    for name, value in values.items():
        annotation = list_types(function).get(name, Any)
        if not _takes(annotation, value):
            raise _refuse(name, value, annotation)
    return {name: _to_python(value) for name, value in values.items()}


def _to_python(value: Any) -> Any:
    """Return a value with Python's numbers in place of NumPy's."""
    if isinstance(value, list | tuple):
        return type(value)(map(_to_python, value)) if type(value) in (list, tuple) else value
    if isinstance(value, numbers.Real) and not isinstance(value, int | float):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return value


def _takes(annotation: Any, value: Any) -> bool:
    """Return True if a value is of one of a type's alternatives and within its limits; nothing is converted."""
    return any(_is_of(kind, value) and _is_within(limits, value) for kind, limits in _list_kinds(annotation))


def _is_of(kind: Any, value: Any) -> bool:
    if choices := _list_choices(kind):
        return value in choices
    origin = get_origin(kind) or kind
    if origin is Any or (isinstance(value, bool) and origin in (int, float)):
        return origin is Any
    if origin is Sequence and isinstance(value, Sequence):
        return not isinstance(value, str) and all(_takes(get_args(kind)[0], one) for one in value)
    return isinstance(value, NUMBERS.get(origin, origin)) and not (
        isinstance(value, float) and not math.isfinite(value)
    )


def _is_within(limits: tuple[Any, ...], value: Any) -> bool:
    tests = [(limit, bound) for limit in limits for bound in BOUNDS if isinstance(limit, bound[0])]
    return all(holds(value, getattr(limit, name)) for limit, (_, name, _, holds) in tests)


@functools.cache
def list_types(owner: Any) -> Mapping[str, Any]:
    """Return the type of each option of a class, or of each argument of a function, with its range."""
    return get_type_hints(owner, include_extras=True)


def describe(annotation: Any) -> str:
    """Return what a type takes, with its range, in words.

    >>> describe(Annotated[int, Field(ge=1, le=6)] | None)
    'a whole number, at least 1 and at most 6, or none'
    """
    kinds = list(_list_kinds(annotation))
    parts = [", ".join(filter(None, (_describe_kind(kind), _describe_range(limits)))) for kind, limits in kinds]
    return (", or " if any(limits for _, limits in kinds[:-1]) else " or ").join(parts)


def _refuse(name: str, value: Any, annotation: Any) -> RequestError:
    choices = [str(choice) for kind, _ in _list_kinds(annotation) for choice in _list_choices(kind)]
    near = suggest(value, choices) if isinstance(value, str) else ""
    expected = describe(annotation)
    called = " Call it: it may return one." * (callable(value) and "autoloss." in expected)
    return RequestError(f"{name} is {quote(value)}; expected {expected}.{near}{called}")


def _list_kinds(annotation: Any) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield each alternative of a type with its limits."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _list_kinds(part)
    elif origin is Annotated:
        kind, *details = get_args(annotation)
        yield kind, tuple(limit for detail in details for limit in getattr(detail, "metadata", ()))
    else:
        yield annotation, ()


def _list_choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _describe_kind(kind: Any) -> str:
    if choices := _list_choices(kind):
        return " or ".join(map(repr, choices))
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Mapping and parts[1] is not Any:
        return f"a dictionary, each value {describe(parts[1])}"
    if origin is Sequence:
        return f"a list, each {describe(parts[0])}"
    if origin is tuple:
        count = "" if parts[-1] is ... else f"{len(parts)} "
        return f"{count}values with commas between, each {describe(parts[0])}"
    return DESCRIPTIONS.get(origin or kind) or (f"an autoloss.{kind.__name__}" if isinstance(kind, type) else str(kind))


def _describe_range(limits: tuple[Any, ...]) -> str:
    kept = [(limit, name, words) for limit in limits for kind, name, words, _ in BOUNDS if isinstance(limit, kind)]
    return " and ".join(f"{words} {getattr(limit, name)}" for limit, name, words in kept)


def _read(value: Any, annotation: Any) -> Any:
    """Return what pydantic is to check: a text as the value that it stands for where pydantic would not read it so."""
    kinds = [kind for kind, _ in _list_kinds(annotation)]
    if isinstance(value, bool) and bool not in kinds:
        # Pydantic takes True for 1; here that is a mistake.
        return str(value)
    if not isinstance(value, str):
        return value
    if type(None) in kinds and value in ("", "none"):
        return None
    if any(get_origin(kind) is tuple for kind in kinds):
        return tuple(part for part in map(str.strip, value.strip("()").split(",")) if part)
    number = _read_number(value) if int in kinds or float in kinds else None
    if number is None or (float not in kinds and number != number.to_integral_value()):
        return value
    return float(number) if float in kinds else int(number)


def _read_number(text: str) -> Decimal | None:
    """Return the finite number that a text such as 2e2 stands for, or None."""
    # A float rounds, so that only a Decimal tells; but a float has no exponents that would fill the memory.
    with suppress(ValueError, InvalidOperation):
        return Decimal(text) if math.isfinite(float(text)) else None
    return None
