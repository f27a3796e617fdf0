"""Checks of a user's task before any training: output and targets fit, and what is wrong or doubtful about data and samples."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from autoloss.errors import FAILURES, RequestError, describe_user_error, name_kind
from autoloss.space.activated import ActivatedBranch, fitting, spatial
from autoloss.space.branch import Branch
from autoloss.tasks.splits import Split
from autoloss.tasks.task import NETWORK
from autoloss.training.loop import seed_generators
from autoloss.training.recipe import NOT_COMPARED, Recipe, require
from autoloss.training.structures import describe_inputs, list_tensors


def convert_target(target: Tensor, prediction: Tensor, branch: Branch) -> Tensor:
    """Return the target in the type that an `ActivatedBranch` expects: class indices of 64 bits, or values; else unchanged."""
    return fitting(target, prediction, branch.activation) if isinstance(branch, ActivatedBranch) else target


def build_network(network: Callable[[], nn.Module] | nn.Module) -> nn.Module:
    """Build a network: call a function, or copy a module."""
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
        raise RequestError(f"The network is {name_kind(built)}; expected an nn.Module, or a function returning one.")
    return built


def fingerprint(
    splits: Mapping[str, Split], network: Callable[[], nn.Module] | nn.Module
) -> dict[str, Sequence[float]]:
    """Return numbers by which a change of the data or of the network is noticed, as `Task.fingerprints` does."""
    # What it prints has the settings of layers that act in training only, such as dropout.
    with seed_generators(0):
        printed = NOT_COMPARED.sub("", repr(build_network(network)))
    prints = {label: split.fingerprint() for label, split in splits.items()}
    return {**prints, NETWORK: [zlib.crc32(printed.encode("utf-8", "replace"))]}


def probe_splits(
    network: Callable[[], nn.Module] | nn.Module, splits: Mapping[str, Split], branch: Branch, recipe: Recipe
) -> torch.Size:
    """Check the data of each split, and the network on a few examples; return the shape of its prediction."""
    sizes = {label: split.evaluation_batch(recipe) for label, split in splits.items()}
    sizes["train"] = require(recipe.batch_size)
    for split in splits.values():
        check_finite(split)
    with seed_generators(0):
        built = build_network(network)
        if built is not network and build_network(network) is built:
            raise RequestError(
                "The function of the network returns the same module each time, so that a training would go on from the weights "
                "of the one before. Build the module inside the function, or give the module itself: it is copied."
            )
        shapes = [_probe(built, split, branch, sizes[label]) for label, split in splits.items()]
        for split in splits.values():
            split.check_repeats()
    return shapes[0]


def find_misfits(
    network: Callable[[], nn.Module], splits: Mapping[str, Split], branch: Branch, recipe: Recipe
) -> list[str]:
    """Return what would end the training of the full schedule, in a sentence: it comes last, so that a search would not show it."""
    try:
        probe_splits(network, splits, branch, recipe)
    except RequestError as error:
        return [f"In the full schedule: {error}"]
    return []


def _probe(network: nn.Module, split: Split, branch: Branch, batch_size: int) -> torch.Size:
    """Run a network on two examples, or one at batch size 1, check its prediction against the targets, and return its shape."""
    parameters = list(network.parameters())
    if not any(parameter.requires_grad for parameter in parameters):
        raise RequestError(
            f"The network has no weights that can be trained: of its {len(parameters)} parameters none requires a gradient. "
            "Leave requires_grad at True for those that are to be trained."
        )
    if any(parameter.dtype == torch.float64 for parameter in parameters):
        raise RequestError(
            "The network has weights in float64, and gets its inputs in float32. Convert it with .float()."
        )
    target, prediction = _predict(network.eval(), split, batch_size)
    try:
        context = branch.make_context(prediction, convert_target(target, prediction, branch))
        context.items()
    except RequestError:
        raise
    except FAILURES as error:
        raise RequestError(
            f"make_context of the branch {type(branch).__name__} fails: {describe_user_error(error)}. Expected a dictionary of "
            "tensors with the target."
        ) from error
    if isinstance(branch, ActivatedBranch):
        _check_form(target, prediction, branch, split.name)
        everything = split.whole()
        known = target if everything is None else everything[1]
        counted = known if branch.ignore_index is None else known[known != branch.ignore_index]
        if counted.numel() and not context["target"].is_floating_point():
            _check_classes(counted, prediction, branch, split.name)
        elif counted.numel() and branch.activation != "none":
            _check_probabilities(counted, branch, split.name)
    try:
        branch.leaves(prediction, context)
    except RequestError:
        raise
    except (TypeError, KeyError, AttributeError) as error:
        raise RequestError(
            f"The leaves of the branch {type(branch).__name__} cannot be read: {describe_user_error(error)}. What does its context "
            "lack?"
        ) from error
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
        raise RequestError(f"The network's prediction is not finite for {seen}. Check its weights; scale the inputs.")
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


def _check_classes(target: Tensor, prediction: Tensor, branch: ActivatedBranch, name: str) -> None:
    channels = spatial(prediction).shape[1]
    classes = max(channels, 2) if branch.activation != "none" else channels
    least, most = int(target.min()), int(target.max())
    if least >= 0 and most < classes:
        return
    advice = "Give the network one channel per class, or set ignore_index=… to the index that is to be ignored."
    if least == 1 and most == classes:
        advice = "Subtract 1 from the targets: classes are counted from 0."
    elif least >= 0 and prediction.ndim == 3 and most < prediction.shape[-1]:
        advice = (
            "If its last dimension is that of the classes, (N, L, C): Data(output=lambda found: found.movedim(-1, 1))."
        )
    elif classes == 2 and target.unique().tolist() == [-1, 1]:
        advice = "Give 0 for -1: (targets + 1) // 2."
    elif classes == 2 and target.unique().tolist() == [0, most]:
        advice = f"Give 1 for {most}: targets // {most}."
    raise RequestError(
        f"The {name} targets hold class indices from {least} to {most}, but the network's prediction has channels "
        f"for the classes 0 to {classes - 1}. {advice}"
    )


def _check_probabilities(target: Tensor, branch: ActivatedBranch, name: str) -> None:
    """Refuse values that no probability can come to, such as the labels -1 and 1, or masks of 0 and 255."""
    least, most = find_extremes(target)
    if least < 0 or most > 1:
        values = target.unique()
        found = f"are {values[0]:g} and {values[1]:g}" if len(values) == 2 else f"lie between {least:g} and {most:g}"
        missing = " A value that marks missing labels is named by Data(ignore_index=…)."
        raise RequestError(
            f"The {name} targets {found}, and the activation is {branch.activation}, whose predictions are probabilities. "
            f"Expected values from 0 to 1, such as 0 for no and 1 for yes.{missing if len(values) > 2 else ''}"
        )


def check_finite(split: Split) -> None:
    """Check that the inputs and targets of a split are finite, as far as they are tensors."""
    for what, part in zip(("inputs", "targets"), split.whole() or (), strict=False):
        for column in list_tensors(part):
            if column.is_floating_point() and column.numel() and not all(map(math.isfinite, find_extremes(column))):
                rows = (~column.isfinite()).reshape(len(column), -1).any(dim=1)
                count, first = int(rows.sum()), int(rows.nonzero()[0])
                raise RequestError(
                    f"The {split.name} {what} are not finite in {count} row{'s' * (count != 1)}, first in row {first} (counted "
                    "from 0). Fill the missing values, or drop these rows"
                    + ("; missing labels may be a value that Data(ignore_index=…) names." if what == "targets" else ".")
                )


def check_repeats(once: float, again: float) -> None:
    """Refuse a metric that has two values for the same predictions and targets."""
    if not math.isclose(once, again):
        raise RequestError(
            f"The metric returned {once:.4g}, then {again:.4g} for the same predictions and targets. Leave chance out of it."
        )


def find_extremes(column: Tensor) -> tuple[float, float]:
    """Return the least and the largest value in one pass, without a copy; NaN if a value is NaN."""
    least, most = torch.aminmax(column)
    return float(least), float(most)


GETS_PROBABILITIES = (
    "After an activation of softmax or sigmoid, the metric gets probabilities, not logits: compare them with 0.5, not with 0, and "
    "apply no softmax or sigmoid."
)


def describe_unusable_samples(
    drawn: Sequence[tuple[float, float]], count: int, rows_per_sample: int | None
) -> RequestError:
    """Return the error of a task whose samples cannot be used.

    `drawn` holds the metric of the untrained network and of the target used as prediction, for each sample drawn; of them
    `count` are needed. `rows_per_sample` is None if a sample is an image.
    """
    known = [(initial, best) for initial, best in drawn if not math.isnan(initial) and not math.isnan(best)]
    usable, worse = sum(initial < best for initial, best in known), [pair for pair in known if pair[0] > pair[1]]
    found = f"Only {usable} of {count} samples can be used: of {len(drawn)} that were drawn, the metric is"
    if len(worse) > len(known) / 2:
        initial, best = worse[0]
        return RequestError(
            f"{found} lower for the target itself than for an untrained network on {len(worse)} ({best:.4g} and {initial:.4g}). "
            "If lower is better, return its negative; of an object of torchmetrics, give -metric. Otherwise check that it accepts "
            "the target as a prediction: a network that predicts a logarithm, say, has to end in exp, and the metric to take that."
        )
    if usable >= count:
        cropped = ", cropped to one size," if rows_per_sample is None else ""
        return RequestError(
            f"Of {count} usable samples some are not when they are measured again{cropped}: the metric is undefined or at its best "
            "on them. Give it the same value for the same prediction and target, without chance."
        )
    advice = (
        "Check that higher is better and that the metric is defined on a single image."
        if rows_per_sample is None
        else f"Raise rows_per_sample, now {rows_per_sample}, so that each sample has enough rows of every class."
    )
    reason, equal = "", [pair for pair in known if math.isclose(*pair, abs_tol=1e-9)]
    if not known:
        reason = (
            " It is NaN or infinite for each of them: if it takes a logarithm or a root of the prediction, end the network in "
            "torch.nn.Softplus()."
        )
    elif len(equal) > len(known) / 2:
        reason = (
            f" It has the same value, {equal[0][0]:.4g} for the first, for the network's prediction and for the target itself: it "
            "needs to depend on the prediction, the targets need to differ, and the target needs to serve as a prediction: one "
            "column for each channel of the network and no others, such as numbers of groups."
        )
        advice = f"{advice} {GETS_PROBABILITIES}"
    return RequestError(
        f"{found} undefined on {len(drawn) - len(known)} and already at its best on {len(known) - usable}.{reason} The metric of "
        f"an untrained network needs to be defined, and lower than that of the target used as prediction. {advice}".rstrip()
    )


MEANS: Mapping[str, str] = {"baseline/bce": "BCEWithLogitsLoss", "baseline/mse": "MSELoss"}
"""Standard loss → its form in `torch.nn`, which is the mean over the channels that are summed here (Section 3.1)."""


def describe_sum(standard: str | None, channels: int) -> Iterator[str]:
    """Yield a sentence where torch's form of the standard loss is smaller than the one here."""
    # A single logit is that of the second of two channels.
    is_single = standard == "baseline/bce" and channels == 1
    factor, outputs = (2, "no and yes") if is_single else (channels, f"{channels} outputs")
    if standard is not None and standard in MEANS and factor > 1:
        yield (
            f"The standard loss is summed over {outputs}: it is {factor} times nn.{MEANS[standard]}, and so are SGD's steps at one "
            "learning rate."
        )
