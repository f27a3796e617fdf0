"""Properties of a user's task that look like mistakes: the task runs, but probably not as intended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoloss.errors import FAILURES
from autoloss.space.activated import SURE, ActivatedBranch, activate_for_metric
from autoloss.space.branch import Branch, Sample
from autoloss.tasks.checks import GETS_PROBABILITIES, find_extremes
from autoloss.tasks.metric import to_float
from autoloss.tasks.splits import Split, holds_classes
from autoloss.tasks.task import Task
from autoloss.training.structures import list_tensors

LARGE_INPUT = 50.0
"""Absolute value from which inputs count as large."""
LARGEST_TARGET = 10.0
"""Root mean square up to which numbers count as about 1."""
UNEVEN = 0.01
"""Difference of a row's sum from 1 that is more than rounding."""
SHARED = 0.5
"""Share of a split that may be in another one as well: tables have equal rows."""
LOOKED_AT = 64
"""Values of a row that are compared, evenly spaced."""
LEAST_GAIN = 1e-6
"""Difference of a metric that is more than rounding."""
COMPARED = 4
"""Examples of two splits of one length that are compared where they are not tensors."""


def find_doubts(splits: Mapping[str, Split], branch: Branch, shape: Sequence[int]) -> list[str]:
    """Return one sentence for each suspicious property of data that are tensors: the task runs, but probably not as intended.

    The shape is that of a prediction, (N, C, H, W).
    """
    if not isinstance(branch, ActivatedBranch):
        return []
    doubts: list[str] = []
    classes: dict[str, set[int]] = {}
    wholes = {name: whole for name, split in splits.items() if (whole := split.whole()) is not None}
    for name, (inputs, target) in wholes.items():
        sizes = [max(map(abs, find_extremes(column))) for column in list_tensors(inputs) if column.is_floating_point()]
        if name == "train" and max(sizes, default=0) >= LARGE_INPUT:
            doubts.append(
                f"The train inputs reach {max(sizes):.4g}; networks learn best from inputs of about 1, and log(p) has no gradient "
                "where a network is so sure of a wrong class that p is 0. Scale them, for example by mean and standard deviation."
            )
        ends = find_extremes(target)
        if name != "train" and target.is_floating_point() and ends[0] == ends[1]:
            doubts.append(
                f"All {name} targets are {ends[0]:g}: no metric can tell losses apart there. Split the data so that each part has "
                "all kinds of targets."
            )
        # Of whole numbers, labels in the shape of the prediction are values, too.
        are_values = target.is_floating_point() or (target.shape[1:] == (branch.channels,) and ends[1] <= 1)
        if are_values and branch.activation == "softmax" and target.ndim > 1 and target.shape[1] > 2:
            sums = target.sum(dim=1)
            if branch.ignore_index is None and bool(((sums - 1).abs() > UNEVEN).any()):
                doubts.append(
                    f"The {name} targets do not add up to 1 over the channels in every row, as probabilities of classes do. Where "
                    "several labels hold at once, use the activation sigmoid."
                )
        if holds_classes(target, branch, shape) and branch.activation != "sigmoid":
            classes[name] = set(target.unique().tolist()) - {branch.ignore_index}
    doubts += [*_find_doubtful_scale(splits["train"], branch, shape), *find_shared_examples(splits)]
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


def _find_doubtful_scale(train: Split, branch: ActivatedBranch, shape: Sequence[int]) -> Iterator[str]:
    """Yield a sentence if targets are numbers far above 1, to which the steps of the rejection protocol do not lead."""
    whole = train.whole() if branch.activation == "none" else None
    if whole is not None and not holds_classes(whole[1], branch, shape):
        target = whole[1].float()
        if branch.ignore_index is not None:
            target = target.masked_fill(target == branch.ignore_index, 0)
        outputs = target.reshape(len(target), branch.channels or 1, -1)
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
    least, most = find_extremes(whole[1])
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
    """Return how many examples of the second split are in the first as well; samplers may divide one data set."""
    if one.dataset is other.dataset:
        return len(set(one.indices.tolist()) & set(other.indices.tolist()))
    wholes = one.whole(), other.whole()
    if wholes[0] is None or wholes[1] is None:
        few = min(len(one), len(other), COMPARED)
        first = list_tensors(one.first(few)), list_tensors(other.first(few))
        return len(other) if len(one) == len(other) and all(map(torch.equal, *first)) else 0
    known, others = (_fingerprint_rows(wholes[at])[split.indices.unique()] for at, split in enumerate((one, other)))
    return int(np.isin(others, known).sum())


def _fingerprint_rows(whole: Any) -> np.ndarray:
    """Return one number for each row, of at most `LOOKED_AT` values of each column."""
    columns = [column.detach().reshape(len(column), -1) for column in list_tensors(whole)]
    rng, found = np.random.default_rng(0), np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        # As bytes before numpy, which has no bfloat16.
        parts = column[:, :: max(1, column.shape[1] // LOOKED_AT)].contiguous().view(torch.uint8).numpy()
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
        states = (ideal, SURE * (2 * ideal - 1), 2 * SURE * (2 * ideal - 1))
        of_probabilities, of_logits, of_larger = (to_float(branch.measure(values, target)) for values in states)
    except FAILURES:
        # It refuses what is no probability.
        return False
    # A metric that grows with the size of its input, such as a Dice of sums, takes probabilities.
    return of_logits > of_probabilities + LEAST_GAIN and math.isclose(of_logits, of_larger, abs_tol=LEAST_GAIN)


def _find_ending(raw: Sequence[Tensor]) -> str | None:
    """Describe predictions that do not look raw; None if they do. Raw ones lie around 0, those of a sigmoid around 1/2."""
    least, most = min(float(one.min()) for one in raw), max(float(one.max()) for one in raw)
    several = all(one.shape[1] > 1 for one in raw)
    if least >= 0 and several and all(bool((one.sum(dim=1) - 1).abs().max() < 1e-4) for one in raw):
        return "are never negative and add up to 1: it ends in a softmax. Return the outputs of the last layer before its softmax;"
    if least > 0 and most < 1 and (least > 0.25 or most > 0.5):
        return "are all between 0 and 1. If it ends in a sigmoid, return the outputs of the layer before it:"
    if least == 0 and sum(int((one == 0).sum()) for one in raw) > sum(one.numel() for one in raw) / 20:
        return "are never negative, and many are 0: it seems to end in a ReLU. Return its last layer without an activation;"
    return None
