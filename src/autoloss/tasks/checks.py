"""Checks of a user's task before any training: output and targets fit, and what is wrong or doubtful about data and samples."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import FAILURES, RequestError, describe_user_error, name_kind
from autoloss.space.activated import SURE, ActivatedBranch, activate_for_metric, fitting, spatial
from autoloss.space.branch import Branch, Sample
from autoloss.tasks.metric import to_float
from autoloss.tasks.splits import Split, holds_classes
from autoloss.tasks.task import Task
from autoloss.training.loop import seed_generators
from autoloss.training.recipe import Recipe, require
from autoloss.training.structures import describe_inputs, list_tensors


def convert_target(target: Tensor, prediction: Tensor, branch: Branch) -> Tensor:
    """Return the target in the type that an `ActivatedBranch` expects: class indices of 64 bits, or values; else unchanged.

    Integers are values if the prediction has one channel and no activation.
    """
    if not isinstance(branch, ActivatedBranch):
        return target
    single = prediction.ndim > 1 and prediction.shape[1] == 1
    if single and branch.activation == "none" and not target.is_floating_point():
        return target.to(torch.float32)
    return fitting(target, prediction)


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


def probe_splits(
    network: Callable[[], nn.Module] | nn.Module, splits: Mapping[str, Split], branch: Branch, recipe: Recipe
) -> torch.Size:
    """Check the network on a few examples of each split, and return the shape of its prediction."""
    sizes = {label: split.evaluation_batch(recipe) for label, split in splits.items()}
    sizes["train"] = require(recipe.batch_size)
    with seed_generators(0):
        built = build_network(network)
        shapes = [_probe(built, split, branch, sizes[label]) for label, split in splits.items()]
        for split in splits.values():
            split.check_repeats()
    return shapes[0]


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


LARGE_INPUT = 50.0
"""Absolute value from which inputs count as large."""
LARGEST_TARGET = 10.0
"""Root mean square up to which numbers count as about 1."""
SHARED = 0.5
"""Share of a split that may be in another one as well: tables have equal rows."""
LOOKED_AT = 64
"""Values of a row that are compared, evenly spaced."""
LEAST_GAIN = 1e-6
"""Difference of a metric that is more than rounding."""
COMPARED = 4
"""Examples of two splits of one length that are compared where they are not tensors."""


def check_finite(split: Split) -> None:
    """Check that the inputs and targets of a split are finite, as far as they are tensors."""
    for what, part in zip(("inputs", "targets"), split.whole() or (), strict=False):
        for column in list_tensors(part):
            if column.is_floating_point() and column.numel() and not all(map(math.isfinite, _find_extremes(column))):
                rows = (~column.isfinite()).reshape(len(column), -1).any(dim=1)
                count, first = int(rows.sum()), int(rows.nonzero()[0])
                raise RequestError(
                    f"The {split.name} {what} are not finite in {count} row{'s' * (count != 1)}, first in row {first} (counted "
                    "from 0). Fill the missing values, or drop these rows"
                    + ("; missing labels may be a value that Data(ignore_index=…) names." if what == "targets" else ".")
                )


def _find_extremes(column: Tensor) -> tuple[float, float]:
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
            "If lower is better, return its negative. Otherwise check that it accepts the target as a prediction."
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
    reason = ""
    if not known:
        reason = " It is NaN or infinite for each of them."
    elif all(math.isclose(initial, best, abs_tol=1e-9) for initial, best in known):
        reason = (
            f" It has the same value, {known[0][0]:.4g} for the first, for the network's prediction and for the target itself: it "
            "needs to depend on the prediction, and the targets need to differ."
        )
        advice = f"{advice} {GETS_PROBABILITIES}"
    return RequestError(
        f"{found} undefined on {len(drawn) - len(known)} and already at its best on {len(known) - usable}.{reason} The metric of "
        f"an untrained network needs to be defined, and lower than that of the target used as prediction. {advice}".rstrip()
    )


def find_doubts(splits: Mapping[str, Split], branch: ActivatedBranch) -> list[str]:
    """Return one sentence for each suspicious property of data that are tensors: the task runs, but probably not as intended."""
    doubts: list[str] = []
    classes: dict[str, set[int]] = {}
    for name, (inputs, target) in {
        name: whole for name, split in splits.items() if (whole := split.whole()) is not None
    }.items():
        sizes = [max(map(abs, _find_extremes(column))) for column in list_tensors(inputs) if column.is_floating_point()]
        if name == "train" and max(sizes, default=0) >= LARGE_INPUT:
            doubts.append(
                f"The train inputs reach {max(sizes):.4g}; networks learn best from inputs of about 1. Scale them, for example by "
                "mean and standard deviation."
            )
        if holds_classes(target, branch) and branch.activation != "sigmoid":
            classes[name] = set(target.unique().tolist()) - {branch.ignore_index}
    doubts += [*_find_doubtful_scale(splits["train"], branch), *find_shared_examples(splits)]
    train = classes.pop("train", None)
    if train is None:
        return doubts
    if branch.activation == "none" and (branch.channels or 1) > 1:
        doubts.append(
            "The train targets are class indices, and the activation is none: p is then no probability. For classes, use softmax."
        )
    for name, found in classes.items():
        for missing, mine, theirs in ((found - train, name, "train"), (train - found, "train", name)):
            if missing:
                several = len(missing) > 1
                listed = ", ".join(map(str, sorted(missing)[:5])) + ", …" * (len(missing) > 5)
                doubts.append(
                    f"class{'es' * several} {listed} {'are' if several else 'is'} in the {mine} data and not in the {theirs} "
                    "data. Split the data so that each part has all classes."
                )
    return doubts


def _find_doubtful_scale(train: Split, branch: ActivatedBranch) -> Iterator[str]:
    """Yield a sentence if targets are numbers far above 1, to which the steps of the rejection protocol do not lead."""
    whole = train.whole() if branch.activation == "none" else None
    if whole is not None and (whole[1].is_floating_point() or branch.channels == 1):
        target = whole[1].float()
        if branch.ignore_index is not None:
            target = target.masked_fill(target == branch.ignore_index, 0)
        outputs = target.reshape(len(train), branch.channels or 1, -1)
        # As a norm, since a square would be a copy of all targets.
        sizes = torch.linalg.vector_norm(outputs, dim=(0, 2)) / math.sqrt(outputs[:, 0].numel())
        if sizes.max() > LARGEST_TARGET:
            size = " to ".join(dict.fromkeys(f"{value:.3g}" for value in (sizes.min(), sizes.max())))
            yield (
                f"The train targets are of size {size} (root mean square); losses and the rejection protocol expect numbers of "
                "about 1. Divide the targets by their size, and in the metric multiply predictions and targets again."
            )


def find_obstacle(train: Split) -> str:
    """Return why nothing can be learned from training data that are tensors; an empty text where it can."""
    whole = train.whole()
    if whole is None:
        return ""
    least, most = _find_extremes(whole[1])
    return f"All train targets are {least:g}: nothing can be learned from them." if least == most else ""


def find_shared_examples(splits: Mapping[str, Split]) -> list[str]:
    """Return one sentence for each two splits that have most of their examples in common."""
    found = []
    for one, other in itertools.combinations(splits, 2):
        count = _count_shared(splits[one], splits[other])
        if count > SHARED * len(splits[other]):
            found.append(
                f"{count} of {len(splits[other])} {other} examples are in the {one} data as well, so scores say little of new "
                "examples. Split the data."
            )
    return found


def _count_shared(one: Split, other: Split) -> int:
    """Return how many examples of the second split are in the first as well."""
    if one.dataset is other.dataset:
        return len(set(one.indices.tolist()) & set(other.indices.tolist()))
    wholes = one.whole(), other.whole()
    if wholes[0] is None or wholes[1] is None:
        few = min(len(one), len(other), COMPARED)
        same = len(one) == len(other) and all(
            map(torch.equal, list_tensors(one.first(few)), list_tensors(other.first(few)))
        )
        return len(other) if same else 0
    known, others = (_fingerprint_rows(whole) for whole in wholes)
    return int(np.isin(others, known).sum())


def _fingerprint_rows(whole: Any) -> np.ndarray:
    """Return one number for each row, of at most `LOOKED_AT` values of each column."""
    columns = [column.detach().reshape(len(column), -1) for column in list_tensors(whole)]
    rng, found = np.random.default_rng(0), np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        values = column[:, :: max(1, column.shape[1] // LOOKED_AT)].contiguous().numpy()
        parts = values.view(np.uint8).reshape(len(values), -1)
        for place in range(parts.shape[1]):
            found += parts[:, place].astype(np.uint64) * rng.integers(1, 1 << 63, dtype=np.uint64)
    return found


def find_doubtful_predictions(task: Task, samples: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return sentences about branches whose predictions seem to be activated already, or whose metric seems to want logits."""
    doubts = []
    for name, branch in task.branches.items():
        if branch.predicts_probabilities and samples.get(name):
            where = f" of the branch {name}" if len(task.branches) > 1 else ""
            raw = [sample.prediction.detach() for sample in samples[name]]
            if ending := _find_ending(raw):
                doubts.append(
                    f"The network's predictions{where} {ending} autoloss applies "
                    f"{'softmax' if branch.has_classes else 'sigmoid'}."
                )
            if isinstance(branch, ActivatedBranch) and _prefers_logits(branch, samples[name][0]):
                doubts.append(
                    f"The metric{where} is higher for the targets as logits than for the targets as probabilities. "
                    f"{GETS_PROBABILITIES}"
                )
    return doubts


def _prefers_logits(branch: ActivatedBranch, sample: Sample) -> bool:
    """Return whether a metric is higher for the target as logits of any size than as probabilities."""
    if branch.measure is None:
        return False
    target = sample.context["target"]
    ideal = activate_for_metric(branch.ideal(sample.context), target, branch.activation)
    try:
        of_probabilities, of_logits, of_larger = (
            to_float(branch.measure(values, target))
            for values in (ideal, SURE * (2 * ideal - 1), 2 * SURE * (2 * ideal - 1))
        )
    except FAILURES:
        # It refuses what is no probability.
        return False
    # A metric that grows with the size of its input, such as a Dice of sums, takes probabilities.
    return of_logits > of_probabilities + LEAST_GAIN and math.isclose(of_logits, of_larger, abs_tol=LEAST_GAIN)


def _find_ending(raw: Sequence[Tensor]) -> str | None:
    """Describe predictions that do not look raw; None if they do."""
    least, most = min(float(one.min()) for one in raw), max(float(one.max()) for one in raw)
    several = all(one.shape[1] > 1 for one in raw)
    if least >= 0 and several and all(bool((one.sum(dim=1) - 1).abs().max() < 1e-4) for one in raw):
        return "are never negative and add up to 1: it ends in a softmax. Return the outputs of the last layer before its softmax;"
    if least > 0 and most < 1:
        return "are all between 0 and 1. If it ends in a sigmoid, return the outputs of the layer before it:"
    if least == 0 and sum(int((one == 0).sum()) for one in raw) > sum(one.numel() for one in raw) / 20:
        return "are never negative, and many are 0: it seems to end in a ReLU. Return its last layer without an activation;"
    return None
