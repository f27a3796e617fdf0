"""Mistakes in a task of a person's own: what was found, in which field, split, row or line, and the way out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, quote
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.data import Split
from autoloss.tasks.task import Task
from autoloss.training.batches import describe_inputs, list_tensors
from autoloss.training.execution import Execution

LARGE_INPUT = 50.0
"""Absolute value from which on inputs are called large."""


def check_kinds(values: Mapping[str, tuple[object, Any, str]]) -> None:
    """Check the types of fields.

    Args:
        values: Name of the field → its value, the type or union of types that it may have, and these in words.

    Raises:
        RequestError: A value has another type.

    >>> check_kinds({"rows_per_sample": ("64", int, "a whole number")})
    Traceback (most recent call last):
    autoloss.errors.RequestError: rows_per_sample is '64', a str; expected a whole number.
    """
    for name, (value, kinds, expected) in values.items():
        if not isinstance(value, kinds) or isinstance(value, bool):
            kind = type(value).__name__
            named = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}, {quote(value)}"
            found = f"{quote(value)}, a {kind}" if isinstance(value, str | int | float) else named
            raise RequestError(f"{name} is {found}; expected {expected}.")


def make_execution(device: str) -> Execution:
    """Return how a task trains by default; its error names the field of the task, which is no option of a command."""
    try:
        return Execution(device=device)
    except RequestError as error:
        raise RequestError(f"{error} It is the argument device of the task.") from None


def check_network(network: nn.Module) -> None:
    """Check that there is something to train.

    Raises:
        RequestError: No parameter requires a gradient.
    """
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise RequestError(
            f"The network has no weights that can be trained: of its {len(parameters)} parameters none requires a gradient. "
            "Leave requires_grad at True for those that are to be trained."
        )


def check_prediction(prediction: Tensor, inputs: Any, name: str) -> None:
    """Check the prediction of an untrained network.

    Raises:
        RequestError: It is not finite.
    """
    if not bool(prediction.isfinite().all()):
        raise RequestError(
            f"The network gives a prediction that is not finite for the {name} inputs, {describe_inputs(inputs)}. Check its "
            "weights and the scale of the inputs."
        )


def check_finite(split: Split) -> None:
    """Check the inputs and the targets of a split, as far as they are tensors.

    Raises:
        RequestError: A value is not finite; the first row that holds one is named.
    """
    whole = split.whole()
    if whole is None:
        return
    for what, part in zip(("inputs", "targets"), whole, strict=True):
        for column in list_tensors(part):
            _check_column(column, f"{split.name} {what}")


def _check_column(column: Tensor, what: str) -> None:
    if column.is_floating_point() and column.numel() and not all(map(math.isfinite, _find_extremes(column))):
        rows = (~column.isfinite()).flatten(1).any(dim=1) if column.ndim > 1 else ~column.isfinite()
        count, first = int(rows.sum()), int(rows.nonzero()[0])
        raise RequestError(
            f"The {what} are not finite in {count} row{'s' * (count != 1)}, first in row {first} (counted from 0). "
            "Fill the missing values, or drop these rows."
        )


def _find_extremes(column: Tensor) -> tuple[float, float]:
    """Return the least and the largest value; NaN where one is NaN. One pass, and no memory."""
    least, most = torch.aminmax(column)
    return float(least), float(most)


def check_target_form(target: Tensor, prediction: Tensor, activation: str, name: str) -> None:
    """Recognise class indices that do not look like ones.

    Args:
        target: Of the first examples, in the type of the data.

    Raises:
        RequestError: They are in floating point, or have a dimension for channels.
    """
    if activation == "none" or prediction.ndim < 2 or prediction.shape[1] < 2:
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


def explain_class_range(least: int, most: int, classes: int) -> str:
    """Say what to do where class indices are out of range."""
    if least == 1 and most == classes:
        return "Subtract 1 from the targets: classes are counted from 0."
    return "Give the network one channel per class, or set ignore_index=… to the index that is to be ignored."


def describe_unusable_samples(
    drawn: Sequence[tuple[float, float]], count: int, rows_per_sample: int | None
) -> RequestError:
    """Return the error of a task whose samples do not serve.

    Args:
        drawn: Metric of the untrained network and of the target used as prediction, of each sample that was drawn.
        count: Samples that are needed.
        rows_per_sample: Rows of each; None where a sample is an image.
    """
    known = [(initial, best) for initial, best in drawn if not math.isnan(initial) and not math.isnan(best)]
    usable, worse = sum(initial < best for initial, best in known), [pair for pair in known if pair[0] > pair[1]]
    found = f"Only {usable} of {count} samples can be used: of {len(drawn)} that were drawn, the metric is"
    advice = (
        "Check that higher is better and that the metric is defined on a single image."
        if rows_per_sample is None
        else f"Raise rows_per_sample, now {rows_per_sample}, so that each sample has enough rows of every class."
    )
    if len(worse) > len(known) / 2:
        initial, best = worse[0]
        return RequestError(
            f"{found} lower for the target itself than for an untrained network on {len(worse)} ({best:.4g} and {initial:.4g}). "
            "If lower is better, return its negative. If not, check that it understands the target as a prediction."
        )
    reason, values = "", {round(value, 9) for pair in known for value in pair}
    if not known:
        reason = " It is NaN or infinite for each of them."
    elif len(values) == 1:
        same = f" It has the same value, {values.pop():.4g}, for the network's prediction and for the target itself"
        reason, advice = f"{same}: it needs to depend on the prediction, and the targets need to differ.", ""
    return RequestError(
        f"{found} undefined on {len(drawn) - len(known)} and already at its best on {len(known) - usable}.{reason} The metric of "
        f"an untrained network needs to be defined, and lower than that of the target used as prediction. {advice}".rstrip()
    )


def find_doubts(splits: Mapping[str, Split], branch: ActivatedBranch) -> list[str]:
    """Say what looks wrong with data that are tensors, and need not be."""
    activation, ignore_index = branch.activation, branch.ignore_index
    doubts: list[str] = []
    classes: dict[str, set[int]] = {}
    for name, split in splits.items():
        whole = split.whole()
        if whole is None:
            continue
        inputs, target = whole
        sizes = [max(map(abs, _find_extremes(column))) for column in list_tensors(inputs) if column.is_floating_point()]
        least, most = _find_extremes(target)
        if name == "train" and least == most:
            doubts.append(f"All train targets are {least:g}: nothing can be learned from them.")
        if name == "train" and max(sizes, default=0) >= LARGE_INPUT:
            doubts.append(
                f"The train inputs reach {max(sizes):.4g}; networks learn best from inputs of about 1. Scale them, for example by "
                "mean and standard deviation."
            )
        if not target.is_floating_point() and target.dtype != torch.bool and activation != "sigmoid":
            classes[name] = set(target.unique().tolist()) - {ignore_index}
    if activation == "none" and "train" in classes and (branch.channels or 1) > 1:
        doubts.append(
            "The train targets are class indices, and the activation is none: p is then no probability. For classes, use softmax."
        )
    return [*doubts, *_compare_classes(classes)]


def _compare_classes(classes: Mapping[str, set[int]]) -> list[str]:
    train = classes.get("train")
    if train is None:
        return []
    doubts = []
    for name, found in classes.items():
        for one, other, mine, theirs in ((found, train, name, "train"), (train, found, "train", name)):
            if missing := sorted(one - other):
                listed = f"class{'es' * (len(missing) > 1)} {', '.join(map(str, missing[:5]))}" + ", …" * (
                    len(missing) > 5
                )
                verb = "are" if len(missing) > 1 else "is"
                doubts.append(
                    f"{listed} {verb} in the {mine} data and not in the {theirs} data. Split the data so that each part has all "
                    "classes."
                )
    return doubts


def find_doubtful_predictions(task: Task, samples: Mapping[str, Sequence[Any]]) -> list[str]:
    """Say which branches of a task get predictions that look activated already: `prediction` is raw everywhere."""
    doubts = []
    for name, branch in task.branches.items():
        if branch.activation in ("softmax", "sigmoid") and samples.get(name):
            raw = [sample.prediction.detach() for sample in samples[name]]
            if ending := _find_ending(raw):
                doubts.append(
                    f"The network's predictions on the branch {name} {ending} autoloss applies {branch.activation}."
                )
    return doubts


def _find_ending(raw: Sequence[Tensor]) -> str | None:
    """Return how raw predictions look where they are none."""
    least, most = min(float(one.min()) for one in raw), max(float(one.max()) for one in raw)
    several = all(one.shape[1] > 1 for one in raw)
    if least >= 0 and several and all(bool((one.sum(dim=1) - 1).abs().max() < 1e-4) for one in raw):
        return "are never negative and add up to 1: it ends in a softmax. Return what the last layer gives before its softmax;"
    if least > 0 and most < 1:
        return "are all between 0 and 1. If it ends in a sigmoid, return what the last layer gives before that:"
    if least == 0 and sum(int((one == 0).sum()) for one in raw) > sum(one.numel() for one in raw) / 20:
        return "are never negative, and many are 0: it seems to end in a ReLU. Return its last layer without an activation;"
    return None
