"""What a batch holds and what a network makes of it: inputs, target and prediction, whatever structure they come in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, join_names

Inputs = Any
"""What a network is called with: a tensor or a list of tensors; a tuple of arguments; a dictionary of named arguments."""
Key = str | int

TARGETS = ("labels", "label", "label_ids", "target", "targets", "masks", "mask", "y")
"""Keys under which a dictionary holds its target, where none is named."""
PREDICTIONS = ("logits", "out")
"""Keys under which an output holds its prediction: those of Hugging Face and of torchvision."""
AUXILIARY = "aux"
"""Key of an auxiliary prediction in an output of torchvision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which parts of a batch are inputs and target, and which part of an output is the prediction.

    Args:
        inputs: Key or position of what the network is called with, or several. In a pair it is the first part; in a dictionary
            all that holds tensors, beside the target.
        target: Key or position of the target. In a pair it is the second part; in a dictionary the one of `TARGETS` that occurs.
        output: Output of the network → its prediction, or a tuple of it and auxiliary ones.
    """

    inputs: Key | Sequence[Key] | None = None
    target: Key | None = None
    output: Callable[[Any], Any] | None = None

    def split(self, batch: Any, name: str) -> tuple[Inputs, Tensor]:
        """Return inputs and target of a batch; inputs of 64 bits are converted to 32 bits.

        Args:
            name: Name of the data in messages.

        Raises:
            RequestError: The batch has another form, or its target is no tensor.
        """
        if isinstance(batch, Mapping):
            key = self._find_target(batch, name)
            chosen = [other for other in batch if other != key and _holds_tensors(batch[other])]
            if not chosen:
                raise RequestError(
                    f"An item of the {name} data has {_list_parts(batch)}, and no tensor beside the target {key!r}; encode text "
                    "and images as tensors."
                )
        elif isinstance(batch, tuple | list) and len(batch) >= 2:
            key, chosen = 1 if self.target is None else self.target, 0
        else:
            raise RequestError(
                f"An item of the {name} data is {describe(batch)}; expected a pair (input, target), or a "
                "dictionary that holds both."
            )
        try:
            inputs, target = _pick(batch, chosen if self.inputs is None else self.inputs), _pick(batch, key)
        except (KeyError, IndexError, TypeError):
            raise RequestError(
                f"An item of the {name} data has {_list_parts(batch)}; there is no inputs={self.inputs!r}, target={key!r} in it."
            ) from None
        return map_tensors(_to_single, inputs), _to_target(target, name)

    def _find_target(self, batch: Mapping[Any, Any], name: str) -> Key:
        if self.target is not None:
            return self.target
        found = [key for key in TARGETS if key in batch]
        if len(found) != 1:
            raise RequestError(
                f"An item of the {name} data has {_list_parts(batch)}; which of them is the target? Name it as target=…."
            )
        return found[0]

    def call(self, network: nn.Module, inputs: Inputs) -> Sequence[Tensor]:
        """Return the prediction of a network in training, followed by auxiliary ones if there are any."""
        output = self._run(network, inputs)
        if isinstance(output, Mapping):
            return [_find_prediction(output), *([output[AUXILIARY]] if AUXILIARY in output else [])]
        return output if isinstance(output, tuple | list) else (output,)

    def predict(self, network: nn.Module, inputs: Inputs) -> Tensor:
        """Return the prediction of a network in evaluation mode.

        Raises:
            RequestError: It returns anything else than one prediction.
        """
        output = self._run(network, inputs)
        prediction = _find_prediction(output) if isinstance(output, Mapping) else output
        if not isinstance(prediction, Tensor):
            raise RequestError(
                f"The network returns {describe(prediction)}; expected one tensor of raw predictions, or a dictionary that "
                f"holds them as {' or '.join(map(repr, PREDICTIONS))}. Give output=…, a function from what it returns to the "
                "prediction; a network whose outputs have losses of their own needs a Task of its own."
            )
        return prediction

    def _run(self, network: nn.Module, inputs: Inputs) -> Any:
        if isinstance(inputs, Mapping):
            output = network(**inputs)
        else:
            output = network(*inputs) if isinstance(inputs, tuple) else network(inputs)
        return output if self.output is None else self.output(output)


def map_tensors(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """Apply a function to every tensor or array of a structure; anything else stays as it is."""
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
    """Say what something is, for messages."""
    length = f" of {len(found)}" if isinstance(found, tuple | list) else ""
    kind = f" of {found.dtype}" if isinstance(found, np.ndarray) else ""
    return f"a {type(found).__name__}{length}{kind}"


def describe_inputs(inputs: Inputs) -> str:
    """Say types and shapes of the tensors of a structure, for messages."""
    if isinstance(inputs, Mapping):
        return ", ".join(f"{key}: {describe_inputs(part)}" for key, part in inputs.items())
    if isinstance(inputs, tuple | list):
        return f"a {type(inputs).__name__} of " + ", ".join(map(describe_inputs, inputs))
    return f"{inputs.dtype} of shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else describe(inputs)


def _pick(batch: Any, keys: Key | Sequence[Key]) -> Inputs:
    """Return the part under a key, or several as named or positional arguments; of one there is no name."""
    if isinstance(keys, str | int):
        return batch[keys]
    if len(keys) == 1:
        return batch[keys[0]]
    return {key: batch[key] for key in keys} if isinstance(batch, Mapping) else tuple(batch[key] for key in keys)


def _find_prediction(output: Mapping[Any, Any]) -> Any:
    found = [output[key] for key in PREDICTIONS if key in output] or list(output.values())
    if len(found) != 1:
        raise RequestError(
            f"The network returns {_list_parts(output)}; expected its raw predictions as {' or '.join(map(repr, PREDICTIONS))}. "
            "Give output=…, a function from what it returns to the prediction."
        )
    return found[0]


def _holds_tensors(part: Any) -> bool:
    if isinstance(part, Mapping):
        return all(map(_holds_tensors, part.values()))
    if isinstance(part, tuple | list):
        return len(part) > 0 and all(map(_holds_tensors, part))
    return isinstance(part, Tensor | np.ndarray)


def _to_single(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _to_target(target: Any, name: str) -> Tensor:
    sizes = {tuple(part.shape) for part in target if isinstance(part, Tensor)} if isinstance(target, list) else set()
    try:
        if len(sizes) > 1:
            raise ValueError(f"a list of tensors of the shapes {sorted(sizes)[:3]}")
        return torch.stack(target) if sizes else torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(
            f"The targets of a batch of the {name} data are {describe(target)} that is no tensor: {error}. Give collate_fn=…, "
            "which brings the examples of a batch to one size, or batch_size=1 and evaluation_batch=1 in the recipe; encode text."
        ) from error


def _list_parts(batch: Any) -> str:
    return (
        f"the keys {join_names([str(key) for key in batch])}" if isinstance(batch, Mapping) else f"{len(batch)} parts"
    )
