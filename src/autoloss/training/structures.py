"""Nested inputs of a network: map, list and describe their tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoloss.errors import name_kind

Inputs = Any
"""Inputs of a network: a tensor or a list of tensors; a tuple of arguments; a dictionary of named arguments."""


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to every tensor or array of a structure; other values are unchanged."""
    if isinstance(inputs, Tensor | np.ndarray):
        return function(torch.as_tensor(inputs))
    if isinstance(inputs, Mapping):
        return {key: map_tensors(function, part) for key, part in inputs.items()}
    if isinstance(inputs, tuple | list):
        parts = [map_tensors(function, part) for part in inputs]
        return parts if isinstance(inputs, list) else tuple(parts)
    return inputs


def list_tensors(inputs: Inputs) -> list[Tensor]:
    """Return every tensor of a structure."""
    found: list[Tensor] = []
    map_tensors(lambda tensor: found.append(tensor) or tensor, inputs)
    return found


def describe(found: Any) -> str:
    """Describe the type of a value, for messages."""
    length = f" of {len(found)}" if isinstance(found, tuple | list) else ""
    kind = f" of {found.dtype}" if isinstance(found, np.ndarray) else ""
    return f"{name_kind(found)}{length}{kind}"


def describe_inputs(inputs: Inputs) -> str:
    """Describe the types and shapes in a structure of tensors, for messages."""
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key}: {describe_inputs(part)}" for key, part in inputs.items())
    if isinstance(inputs, tuple | list):
        return f"a {type(inputs).__name__} of " + ", ".join(map(describe_inputs, inputs))
    return f"{inputs.dtype} of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else describe(inputs)
