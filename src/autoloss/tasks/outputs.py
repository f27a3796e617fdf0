"""Checks, before any training, that the output of a network fits the targets of the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, describe_user_error
from autoloss.space.activated import ActivatedBranch, fitting, spatial
from autoloss.space.branch import Sample
from autoloss.tasks.data import Split
from autoloss.tasks.diagnosis import check_prediction, check_target_form, explain_class_range
from autoloss.training.batches import Inputs, describe_inputs, list_tensors


class Output(NamedTuple):
    """The form of a network's prediction (N, C, H, W).

    Args:
        channels: C.
        has_space: Whether H·W is more than 1.
    """

    channels: int
    has_space: bool


def convert_target(target: Tensor, prediction: Tensor, activation: str) -> Tensor:
    """Return the target in the type that branches expect: class indices as 64-bit integers, values in floating point.

    Integers are values where the prediction has one channel and no activation.
    """
    if activation == "none" and prediction.ndim > 1 and prediction.shape[1] == 1 and not target.is_floating_point():
        return target.to(torch.float32)
    return fitting(target, prediction)


def build_network(network: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Build a network: call a function, or copy a module.

    Raises:
        RequestError: The result is not a `torch.nn.Module`.
    """
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    built = network() if callable(network) else network
    if not isinstance(built, nn.Module):
        raise RequestError(
            f"The network is a {type(built).__name__}; expected a torch.nn.Module, or a function without arguments that "
            "returns one."
        )
    return built


def try_building(network: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Build a network for the first time, as `build_network` does.

    Raises:
        RequestError: It cannot be built; the user's own line is named.
    """
    try:
        return build_network(network)
    except RequestError:
        raise
    except Exception as error:
        raise RequestError(
            f"The network cannot be built: {describe_user_error(error)}. Give a function without "
            "arguments that returns a torch.nn.Module, such as lambda: Net(channels=3)."
        ) from error


def probe(network: nn.Module, split: Split, branch: ActivatedBranch, batch_size: int) -> Output:
    """Run a network on two examples, or on one at batch size 1, and check the prediction against their targets.

    Raises:
        RequestError: The network cannot process the inputs, or its prediction does not fit the targets.
    """
    inputs, target = split.first(min(2, batch_size))
    prediction = _predict(network.eval(), inputs, target, split)
    if len(prediction) != len(target):
        raise RequestError(
            f"The network gives a prediction of shape {tuple(prediction.shape)} for {len(target)} examples of the "
            f"{split.name} data; the first dimension of its output needs to be the example."
        )
    check_prediction(prediction, inputs, split.name)
    check_target_form(target, prediction, branch.activation, split.name)
    shape = spatial(prediction).shape
    context = {"target": convert_target(target, prediction, branch.activation)}
    if not context["target"].is_floating_point():
        everything = split.whole()
        _check_classes(target if everything is None else everything[1], shape[1], branch, split.name)
    _check_target(branch, prediction, context["target"], split.name)
    return Output(shape[1], shape[2:].numel() > 1)


def crop_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples of one size: the middle of each, as large as the smallest of them; targets are cropped alike."""
    sizes = [sample.prediction.shape[2:] for sample in samples]
    least = [min(size[axis] for size in sizes) for axis in range(len(sizes[0]))]
    return [
        sample if list(size) == least else _crop(sample, size, least)
        for sample, size in zip(samples, sizes, strict=True)
    ]


def _crop(sample: Sample, size: Sequence[int], least: Sequence[int]) -> Sample:
    middle = tuple(slice((have - want) // 2, (have - want) // 2 + want) for have, want in zip(size, least, strict=True))

    def crop(tensor: Tensor) -> Tensor:
        # A target may lack the channels, but has the prediction's space.
        return tensor[(..., *middle)] if tuple(tensor.shape[-len(middle) :]) == tuple(size) else tensor

    return Sample(crop(sample.prediction), {name: crop(tensor) for name, tensor in sample.context.items()})


def _predict(network: nn.Module, inputs: Inputs, target: Tensor, split: Split) -> Tensor:
    try:
        with torch.no_grad():
            return split.reading.predict(network, inputs)
    except RequestError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        whole = any(not tensor.is_floating_point() for tensor in list_tensors(inputs))
        advice = "Inputs that are whole numbers and no indices need .float(). " if whole else ""
        raise RequestError(
            f"The network cannot process the {split.name} inputs, {describe_inputs(inputs)} for {len(target)} examples: {error}. "
            f"{advice}Change the network or the data so that they fit; the first dimension is the example. inputs=… names the "
            "parts of an item that the network gets; collate_fn=… brings the examples of a batch to one size."
        ) from error


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
            f"for the classes 0 to {classes - 1}. {explain_class_range(least, most, classes)}"
        )
