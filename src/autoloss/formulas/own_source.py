"""A person's own operator in an exported file: a function of torch by its name, or a plain function with its source."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.space.operators import OPERATORS, Operator

OF_TORCH: dict[str, Any] = {"torch": torch, "F": F}
AT_HAND: dict[str, Any] = {**OF_TORCH, "Tensor": Tensor, "nn": nn, "math": math}
"""What a function may use besides its arguments and Python itself: an exported file imports it."""


def is_own(operator: Operator) -> bool:
    return operator.name not in OPERATORS or operator.function is not OPERATORS[operator.name].function


def call(operator: Operator) -> str:
    """Return what a file calls for an operator: `torch.sin`, or the function's own name."""
    name = getattr(operator.function, "__name__", "")
    if is_own(operator):
        for module, holder in OF_TORCH.items():
            if getattr(holder, name, None) is operator.function:
                return f"{module}.{name}"
    return name


def source(operator: Operator) -> str:
    """Return the source of an own operator's function; empty for one of torch.

    Raises:
        RequestError: A file cannot hold it: it is no plain function, or needs something that the file does not have.
    """
    if "." in call(operator):
        return ""
    function = operator.function
    if not isinstance(function, FunctionType) or not function.__name__.isidentifier():
        raise _refusal(operator, "it is no function written with def")
    if function.__closure__:
        raise _refusal(operator, "it keeps variables of another function")
    try:
        text = textwrap.dedent(inspect.getsource(function))
        (node,) = ast.parse(text).body
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise _refusal(operator, f"its source cannot be read ({error})") from error
    if not isinstance(node, ast.FunctionDef) or node.decorator_list:
        raise _refusal(operator, "it is no function written with def and without decorators")
    if strange := _foreign(node, function):
        raise _refusal(operator, f"it uses {', '.join(strange)}, and a file has {', '.join(AT_HAND)} only")
    return text


def _foreign(node: ast.FunctionDef, function: FunctionType) -> list[str]:
    """Return the names that a function takes from its module and that a file does not have."""
    names = [found for found in ast.walk(node) if isinstance(found, ast.Name)]
    own = {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)} | {node.name}
    own |= {found.id for found in names if isinstance(found.ctx, ast.Store)}
    # Modules that it imports itself are not known to the file's reader.
    imported = [alias.name for found in ast.walk(node) if isinstance(found, ast.Import) for alias in found.names]
    imported += [found.module or "." for found in ast.walk(node) if isinstance(found, ast.ImportFrom)]
    used = dict.fromkeys(found.id for found in names if found.id not in own and not hasattr(builtins, found.id))
    return imported + [
        name for name in used if name not in AT_HAND or function.__globals__.get(name) is not AT_HAND[name]
    ]


def _refusal(operator: Operator, why: str) -> RequestError:
    return RequestError(
        f"The operator {operator.name!r} is your own, and a file that imports torch alone cannot hold it: {why}. Write it as a "
        "function of torch alone, or use the loss with autoloss.Loss instead."
    )
