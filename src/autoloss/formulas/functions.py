"""The functions of an exported file: the package's own source, so that there is one definition of each, and a person's own.

A person's own operator is a function of torch, called by its name, or a plain function, which the file takes along.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.activated import (
    activate,
    check_range,
    encode,
    erode,
    fitting,
    index_classes,
    inner_band,
    mark_counted,
    spatial,
    to_logits,
)
from autoloss.space.loss import Loss
from autoloss.space.one_hot import SeparateSoftmax, separate_channels
from autoloss.space.operators import OPERATORS, Operator, is_own, upcast
from autoloss.space.pair_lists import find_pairs, list_pairs, number_groups, rank_items, weigh_by_ndcg

LOCAL = (
    "prediction target output positions valid shapes logits classes picked others usual is_softmax is_short "
    "scores events groups weights first second difference"
)
"""Variables of the methods that are written."""

OF_TORCH: dict[str, Any] = {"torch": torch, "F": F, "torch.special": torch.special}
AT_HAND: dict[str, Any] = {"torch": torch, "F": F, "Tensor": Tensor, "nn": nn, "math": math}
"""The names that a function may use besides its arguments and Python itself: an exported file imports it."""

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        upcast,
        spatial,
        to_logits,
        activate,
        fitting,
        mark_counted,
        encode,
        check_range,
        erode,
        inner_band,
        index_classes,
        SeparateSoftmax,
        separate_channels,
        number_groups,
        list_pairs,
        find_pairs,
        rank_items,
        weigh_by_ndcg,
        *(row.function for row in OPERATORS.values() if inspect.isfunction(row.function)),
    )
}
"""The package's functions that a file may need, in the order in which it defines them."""
RESERVED = frozenset({"self", "EPSILON", *AT_HAND, *FUNCTIONS})
"""Names that mean something else in an exported file."""


def get_call_name(operator: Operator) -> str:
    """Return what a file calls for an operator: `torch.sin`, or the function's own name."""
    for module, holder in OF_TORCH.items():
        # A function of torch may have another name of its own: F.logsigmoid has log_sigmoid.
        names = (name for name in dir(holder) if getattr(holder, name) is operator.function)
        for name in names:
            return f"{module}.{name}"
    return getattr(operator.function, "__name__", "")


def read_own_functions(loss: Loss) -> dict[str, str]:
    """Return the sources of a person's own operators, by the name of the function.

    Raises:
        RequestError: A file cannot hold one, or its name means something else there.
    """
    found: dict[str, str] = {}
    leaves = frozenset[str]().union(*(tree.leaves for tree in loss.values()))
    for operator in (operator for tree in loss.values() for operator in tree.operators if is_own(operator)):
        text, name = _read_source(operator), get_call_name(operator)
        if text and (name in {*RESERVED, *LOCAL.split(), *leaves} or found.get(name, text) != text):
            raise RequestError(
                f"Rename the function {name!r} of your operator {operator.name!r}: the exported file uses that name already."
            )
        if text:
            found[name] = text
    return found


def select_functions(code: str, own: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return the functions that the code needs, directly or not, and all names that occur."""
    known = {**_read_functions(), **own}
    used: set[str] = set()
    found = _find_names(code)
    while found - used:
        used |= found
        found = frozenset[str]().union(*(_find_names(known[name]) for name in used & known.keys()))
    return [text.rstrip() for name, text in known.items() if name in used], used


@lru_cache(maxsize=64)
def _find_names(code: str) -> frozenset[str]:
    return frozenset(node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name))


@cache
def _read_functions() -> dict[str, str]:
    sources = {name: inspect.getsource(function) for name, function in FUNCTIONS.items()}
    return {name: text.replace("RequestError", "ValueError") for name, text in sources.items()}


def _read_source(operator: Operator) -> str:
    """Return the source of an own operator's function; empty for one of torch.

    Raises:
        RequestError: A file cannot hold it: it is no plain function, or needs something that the file does not have.
    """
    if "." in get_call_name(operator):
        return ""
    function = operator.function
    if not isinstance(function, FunctionType) or not function.__name__.isidentifier():
        raise _refuse(operator, "it is not a function defined by def")
    if function.__closure__:
        raise _refuse(operator, "it keeps variables of another function")
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise _refuse(operator, f"its source cannot be read ({error})") from error
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        raise _refuse(operator, "it is not a function defined by def, without decorators")
    if strange := _find_foreign_names(node, function):
        raise _refuse(operator, f"it uses {', '.join(strange)}; an exported file has only {', '.join(AT_HAND)}")
    return text


def _find_foreign_names(node: ast.FunctionDef, function: FunctionType) -> list[str]:
    """Return the names that a function takes from its module and that a file does not have."""
    names = [found for found in ast.walk(node) if isinstance(found, ast.Name)]
    own = {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)} | {node.name}
    own |= {found.id for found in names if isinstance(found.ctx, ast.Store)}
    own |= {found.name for found in ast.walk(node) if isinstance(found, ast.FunctionDef)}
    # Modules that it imports itself are not known to the file's reader.
    imported = [alias.name for found in ast.walk(node) if isinstance(found, ast.Import) for alias in found.names]
    imported += [found.module or "." for found in ast.walk(node) if isinstance(found, ast.ImportFrom)]
    used = dict.fromkeys(found.id for found in names if found.id not in own and not hasattr(builtins, found.id))
    known = {name for name in AT_HAND if function.__globals__.get(name) is AT_HAND[name]}
    return imported + [name for name in used if name not in known]


def _refuse(operator: Operator, why: str) -> RequestError:
    return RequestError(
        f"Your operator {operator.name!r} cannot be exported to a file that imports only torch: {why}. Write it as a function that "
        "uses only torch, or use autoloss.Loss instead."
    )
