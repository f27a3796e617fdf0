"""Reading of examples in any structure: inputs, target and prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, join_names
from autoloss.options import Count, Natural, declare
from autoloss.tasks.loading import Collate, Reseed
from autoloss.training.structures import Inputs, describe, map_tensors

Key = str | int

TARGETS = ("labels", "label", "label_ids", "target", "targets", "masks", "mask", "y")
"""Keys of the target in a dictionary, if no other is named."""
PREDICTIONS = ("logits", "out")
"""Keys of the prediction in an output, as in Hugging Face and torchvision."""
AUXILIARY = "aux"
"""Key of an auxiliary prediction in an output of torchvision."""


@declare(kind="argument of Data")
class Data:
    """Options for reading the data of a `SupervisedTask`, and the part of the network's output that is the prediction.

    Args:
        inputs: Key or position of the network's inputs in an item, or several of them. By default the first part of a tuple;
            of a dictionary, all parts that hold tensors, except the target.
        target: Key or position of the target. By default the second part of a tuple, or the one of `TARGETS` in a dictionary.
        output: Output of the network → its prediction, or in training a tuple of it and auxiliary ones.
        collate_fn: List of items → batch, as for a `DataLoader`; by default the parts of the items are stacked.
        loaders: Worker processes that load examples of a `Dataset` ahead; 0 loads each batch when it is needed.
        reseed: Called with (data set, seed) before each batch, for a data set with its own random generators. The global
            generators of torch, NumPy and Python are always seeded for each batch.
        ignore_index: Class index, or value of a missing label among several of a row, that the loss ignores; metrics are given it.
        rows_per_sample: Rows of one sample of the protocol if the prediction has no spatial dimensions; otherwise a sample is
            one image.
        folds: Parts into which the training data are split if there are no validation data: a training at fold f is evaluated
            on part f and trained on all others. Folds are stratified if each example has one class. If None 5, or 10 of fewer
            than 200 examples.

    Raises:
        RequestError: A value has the wrong type, or is outside its range.

    >>> Data(inputs=("image", "age"), target="species").loaders
    0
    """

    # Any: a text that looks like a number stays text.
    inputs: Any = None
    target: Any = None
    output: Callable[[Any], Any] | None = None
    collate_fn: Collate | None = None
    loaders: Natural = 0
    reseed: Reseed | None = None
    ignore_index: int | None = None
    rows_per_sample: Count = 64
    folds: Count | None = None

    def split_batch(self, batch: Any, name: str) -> tuple[Inputs, Tensor]:
        """Return inputs and target of a batch; inputs of 64 bits are converted to 32 bits.

        Args:
            name: Name of the data in messages.

        Raises:
            RequestError: The batch has another form, or its target cannot become a tensor.
        """
        if isinstance(batch, Mapping):
            named = [key for key in TARGETS if key in batch]
            if self.target is None and len(named) != 1:
                raise RequestError(f"An item of the {name} data has {_list_parts(batch)}; name the target as target=….")
            key = named[0] if self.target is None else self.target
            chosen = [other for other in batch if other != key and _holds_tensors(batch[other])]
            if not chosen:
                raise RequestError(
                    f"An item of the {name} data has {_list_parts(batch)}, and no tensor besides the target {key!r}; encode text "
                    "and images as tensors."
                )
        elif isinstance(batch, tuple | list) and len(batch) >= 2:
            key, chosen = 1 if self.target is None else self.target, 0
        else:
            raise RequestError(
                f"An item of the {name} data is {describe(batch)}; expected a pair (input, target), or a dictionary of both."
            )
        try:
            inputs, target = _pick(batch, chosen if self.inputs is None else self.inputs), _pick(batch, key)
        except (KeyError, IndexError, TypeError):
            raise RequestError(
                f"An item of the {name} data has {_list_parts(batch)}; there is no inputs={self.inputs!r}, target={key!r} in it."
            ) from None
        inputs = map_tensors(lambda part: part.float() if part.dtype == torch.float64 else part, inputs)
        return inputs, _to_target(target, name)

    def call(self, network: nn.Module, inputs: Inputs) -> Sequence[Tensor]:
        """Return the prediction of a network in training, followed by auxiliary ones if there are any."""
        output = self._run(network, inputs)
        if isinstance(output, Mapping):
            return [_find_prediction(output), *([output[AUXILIARY]] if output.get(AUXILIARY) is not None else [])]
        # Networks such as torchvision's have None for an auxiliary prediction that they were built without.
        return [one for one in output if one is not None] if isinstance(output, tuple | list) else (output,)

    def predict(self, network: nn.Module, inputs: Inputs) -> Tensor:
        """Return the prediction of a network in evaluation mode.

        Raises:
            RequestError: It returns something other than one prediction.
        """
        output = self._run(network, inputs)
        prediction = _find_prediction(output) if isinstance(output, Mapping) else output
        if not isinstance(prediction, Tensor):
            raise RequestError(
                f"The network returns {describe(prediction)}; expected one tensor of raw predictions, or a dictionary that "
                f"holds them as {' or '.join(map(repr, PREDICTIONS))}. Give Data(output=…), a function from what it returns to "
                "the prediction; a network with a loss for each of several outputs needs its own Task."
            )
        return prediction

    def _run(self, network: nn.Module, inputs: Inputs) -> Any:
        if isinstance(inputs, Mapping):
            output = network(**inputs)
        else:
            output = network(*inputs) if isinstance(inputs, tuple) else network(inputs)
        return output if self.output is None else self.output(output)


def _pick(batch: Any, keys: Key | Sequence[Key]) -> Inputs:
    """Return the part under a key, or several as named or positional arguments; a single part is passed without a name."""
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
            "Give Data(output=…), a function from what it returns to the prediction."
        )
    return found[0]


def _holds_tensors(part: Any) -> bool:
    if isinstance(part, Mapping):
        return all(map(_holds_tensors, part.values()))
    if isinstance(part, tuple | list):
        return len(part) > 0 and all(map(_holds_tensors, part))
    return isinstance(part, Tensor | np.ndarray)


def _to_target(target: Any, name: str) -> Tensor:
    sizes = {tuple(part.shape) for part in target if isinstance(part, Tensor)} if isinstance(target, list) else set()
    try:
        if len(sizes) > 1:
            raise ValueError(f"a list of tensors of the shapes {sorted(sizes)[:3]}")
        stacked = torch.stack(target) if sizes else torch.as_tensor(target)
        # Torch computes nearly nothing with unsigned integers of more than 8 bits.
        return stacked.long() if stacked.dtype in (torch.uint16, torch.uint32, torch.uint64) else stacked
    except (TypeError, ValueError, RuntimeError) as error:
        raise RequestError(
            f"The targets of a batch of the {name} data are {describe(target)} that is no tensor: {error}. Give "
            "Data(collate_fn=…), which brings the examples of a batch to one size, or batch_size=1 and evaluation_batch=1 in the "
            "recipe; encode text."
        ) from error


def _list_parts(batch: Any) -> str:
    return f"the keys {join_names(list(map(str, batch)))}" if isinstance(batch, Mapping) else f"{len(batch)} parts"
