"""Checks before any training that the output of a network fits the targets of the data."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from autoloss.errors import FAILURES, RequestError, describe_user_error
from autoloss.space.activated import ActivatedBranch, fitting, spatial
from autoloss.space.branch import Branch, Sample
from autoloss.tasks.splits import Split
from autoloss.training.structures import describe_inputs, list_tensors


def convert_target(target: Tensor, prediction: Tensor, branch: Branch) -> Tensor:
    """Return the target in the type that an `ActivatedBranch` expects, or unchanged for a branch of another kind.

    Class indices become 64-bit integers, values floating point. Integers are values if the prediction has one channel and no
    activation.
    """
    if not isinstance(branch, ActivatedBranch):
        return target
    if (
        branch.activation == "none"
        and prediction.ndim > 1
        and prediction.shape[1] == 1
        and not target.is_floating_point()
    ):
        return target.to(torch.float32)
    return fitting(target, prediction)


def build_network(network: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Build a network: call a function, or copy a module.

    Raises:
        RequestError: Building fails (the message names the line of the user's code), or the result is not a `torch.nn.Module`.
    """
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    try:
        built = network() if callable(network) else network
    except (RequestError, MemoryError, torch.OutOfMemoryError):
        raise
    except FAILURES as error:
        raise RequestError(
            f"The network cannot be built: {describe_user_error(error)}. Give a function without "
            "arguments that returns a torch.nn.Module, such as lambda: Net(channels=3)."
        ) from error
    if not isinstance(built, nn.Module):
        raise RequestError(
            f"The network is a {type(built).__name__}; expected a torch.nn.Module, or a function without arguments that "
            "returns one."
        )
    return built


def probe(network: nn.Module, split: Split, branch: Branch, batch_size: int) -> torch.Size:
    """Run a network on two examples, or on one at batch size 1, and check the prediction against their targets.

    Returns:
        The shape of the prediction, (N, C, H, W).

    Raises:
        RequestError: The network has nothing to train or cannot process the inputs, or its prediction is not finite or does not
            fit the targets.
    """
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise RequestError(
            f"The network has no weights that can be trained: of its {len(parameters)} parameters none requires a gradient. "
            "Leave requires_grad at True for those that are to be trained."
        )
    target, prediction = _predict(network.eval(), split, batch_size)
    context = branch.make_context(prediction, convert_target(target, prediction, branch))
    if isinstance(branch, ActivatedBranch):
        _check_form(target, prediction, branch, split.name)
        if not context["target"].is_floating_point():
            everything = split.whole()
            _check_classes(
                target if everything is None else everything[1], spatial(prediction).shape[1], branch, split.name
            )
    try:
        branch.leaves(prediction, context)
    except RequestError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise RequestError(
            f"The {split.name} targets, {target.dtype} of shape {tuple(target.shape)}, do not fit the network's prediction of "
            f"shape {tuple(prediction.shape)}: {error}. Expected class indices without the channel dimension, or the "
            "same shape."
        ) from error
    return spatial(prediction).shape


def _predict(network: nn.Module, split: Split, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return the targets of the first examples, and the network's predictions."""
    inputs, target = split.first(min(2, batch_size))
    seen = f"the {split.name} inputs, {describe_inputs(inputs)}"
    try:
        with torch.no_grad():
            prediction = split.reading.predict(network, inputs)
    except RequestError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        whole = any(not tensor.is_floating_point() for tensor in list_tensors(inputs))
        advice = "Inputs that are whole numbers but not indices need .float(). " if whole else ""
        raise RequestError(
            f"The network cannot process {seen} for {len(target)} examples: {error}. {advice}Change the network or the data so "
            "that they fit; the first dimension is the example. Data(inputs=…) names the parts of an item that the network gets; "
            "Data(collate_fn=…) brings the examples of a batch to one size."
        ) from error
    if len(prediction) != len(target):
        raise RequestError(
            f"The network gives a prediction of shape {tuple(prediction.shape)} for {len(target)} examples of the "
            f"{split.name} data; the first dimension of its output needs to be the example."
        )
    if not bool(prediction.isfinite().all()):
        raise RequestError(
            f"The network gives a prediction that is not finite for {seen}. Check its weights and the scale of the inputs."
        )
    return target, prediction


def _check_form(target: Tensor, prediction: Tensor, branch: ActivatedBranch, name: str) -> None:
    """Refuse class indices in an unusual form: in floating point, or with a channel dimension."""
    if branch.activation == "none" or prediction.ndim < 2 or prediction.shape[1] < 2:
        return
    shape, channels = f"shape {tuple(target.shape)}", prediction.shape[1]
    if target.is_floating_point() and target.ndim == prediction.ndim - 1 and bool((target == target.floor()).all()):
        raise RequestError(
            f"The {name} targets are class indices in floating point ({target.dtype}, {shape}), and the network has {channels} "
            "channels. Convert them with .long()."
        )
    if not target.is_floating_point() and target.ndim == prediction.ndim and target.shape[1] == 1:
        raise RequestError(
            f"The {name} targets are integers of {shape}, and the network has {channels} channels. Class indices come without "
            "the dimension of the channels: use targets.squeeze(1)."
        )


def _check_classes(target: Tensor, channels: int, branch: ActivatedBranch, name: str) -> None:
    classes = max(channels, 2) if branch.activation != "none" else channels
    counted = target if branch.ignore_index is None else target[target != branch.ignore_index]
    if not counted.numel():
        return
    least, most = int(counted.min()), int(counted.max())
    if least >= 0 and most < classes:
        return
    advice = "Give the network one channel per class, or set ignore_index=… to the index that is to be ignored."
    if least == 1 and most == classes:
        advice = "Subtract 1 from the targets: classes are counted from 0."
    raise RequestError(
        f"The {name} targets hold class indices from {least} to {most}, but the network's prediction has channels "
        f"for the classes 0 to {classes - 1}. {advice}"
    )


def crop_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return centre crops of samples and their targets, all of the size of the smallest sample."""
    sizes = [sample.prediction.shape[2:] for sample in samples]
    least = [min(size[axis] for size in sizes) for axis in range(len(sizes[0]))]
    return [sample.crop(least) for sample in samples]
