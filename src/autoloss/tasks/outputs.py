"""How what a network gives and what the data set holds fit together, found out before any training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch, fitting, spatial
from autoloss.tasks.data import Split


class Output(NamedTuple):
    """What a network gives.

    Args:
        channels: C of its prediction (N, C, H, W).
        has_space: H·W is more than one position.
    """

    channels: int
    has_space: bool


def convert_target(target: Tensor, prediction: Tensor, activation: str) -> Tensor:
    """Return the target in the form that branches know: class indices as 64-bit integers, values as floating point.

    Whole numbers that a single output without activation is to reach are values.
    """
    if activation == "none" and prediction.ndim > 1 and prediction.shape[1] == 1 and not target.is_floating_point():
        return target.to(torch.float32)
    return fitting(target, prediction)


def build_network(network: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Make a network: a copy of the one given, or what the function given returns.

    Raises:
        RequestError: What was given makes none.
    """
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    made = network() if callable(network) else network
    if not isinstance(made, nn.Module):
        raise RequestError(
            f"The network is a {type(made).__name__}; expected a torch.nn.Module, or a function without arguments that "
            "returns one."
        )
    return made


def split_output(output: Any) -> Sequence[Tensor]:
    """Return what a network gives in training as its prediction and the auxiliary ones, if there are any."""
    return output if isinstance(output, tuple | list) else (output,)


def probe(network: nn.Module, split: Split, branch: ActivatedBranch) -> Output:
    """Run the network on two examples and hold the result against their targets.

    Raises:
        RequestError: The network cannot take the inputs, or its prediction does not fit the targets.
    """
    inputs, target = split.first(2)
    prediction = _predict(network.eval(), inputs, split.name)
    if len(prediction) != len(inputs):
        raise RequestError(
            f"The network gives a prediction of shape {tuple(prediction.shape)} for {len(inputs)} examples of the "
            f"{split.name} data; the first dimension of its output needs to be the example."
        )
    shape = spatial(prediction).shape
    context = {"target": convert_target(target, prediction, branch.activation)}
    if not context["target"].is_floating_point():
        _check_classes(split.targets(), shape[1], branch, split.name)
    _check_target(branch, prediction, context["target"], split.name)
    return Output(shape[1], shape[2:].numel() > 1)


def _predict(network: nn.Module, inputs: Tensor, name: str) -> Tensor:
    try:
        with torch.no_grad():
            prediction = network(inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise RequestError(
            f"The network cannot take the {name} inputs, {inputs.dtype} of shape {tuple(inputs.shape)} for "
            f"{len(inputs)} examples: {error}. Bring the two into line, the first dimension being the example."
        ) from error
    if not isinstance(prediction, Tensor):
        raise RequestError(
            f"The network returns a {type(prediction).__name__}; expected one tensor of raw predictions. Wrap it in a "
            "module that returns that one; a network with several outputs is a Task of its own."
        )
    return prediction


def _check_target(branch: ActivatedBranch, prediction: Tensor, target: Tensor, name: str) -> None:
    try:
        branch.leaves(prediction, {"target": target})
    except RequestError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise RequestError(
            f"The {name} targets, {target.dtype} of shape {tuple(target.shape)}, do not fit the network's prediction of "
            f"shape {tuple(prediction.shape)}: {error}. Expected class indices without the channel dimension, or the "
            "same shape."
        ) from error


def _check_classes(target: Tensor, channels: int, branch: ActivatedBranch, name: str) -> None:
    classes = max(channels, 2) if branch.activation != "none" else channels
    counted = target if branch.ignore_index is None else target[target != branch.ignore_index]
    if not counted.numel():
        return
    least, most = int(counted.min()), int(counted.max())
    if least < 0 or most >= classes:
        raise RequestError(
            f"The {name} targets hold class indices from {least} to {most}, but the network's prediction has channels "
            f"for the classes 0 to {classes - 1}. Give the network one channel per class, or name what counts nowhere "
            "with ignore_index=…"
        )
