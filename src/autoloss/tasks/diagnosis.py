"""Errors and warnings about a user's task: the finding, its split, row or branch, and the remedy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks.splits import Split
from autoloss.tasks.task import Task
from autoloss.training.structures import list_tensors

LARGE_INPUT = 50.0
"""Absolute value from which inputs count as large."""
SHARED = 0.5
"""Share of a split that may be in another one as well: tables have equal rows."""
LOOKED_AT = 64
"""Values of a row that are compared, evenly spaced."""
COMPARED = 4
"""Examples of two splits of one length that are compared where they are not tensors."""


def check_finite(split: Split) -> None:
    """Check that the inputs and targets of a split are finite, as far as they are tensors.

    Raises:
        RequestError: A value is not finite; the message names the first row that holds one.
    """
    for what, part in zip(("inputs", "targets"), split.whole() or (), strict=False):
        for column in list_tensors(part):
            if column.is_floating_point() and column.numel() and not all(map(math.isfinite, _find_extremes(column))):
                rows = (~column.isfinite()).reshape(len(column), -1).any(dim=1)
                count, first = int(rows.sum()), int(rows.nonzero()[0])
                raise RequestError(
                    f"The {split.name} {what} are not finite in {count} row{'s' * (count != 1)}, first in row {first} (counted "
                    "from 0). Fill the missing values, or drop these rows."
                )


def _find_extremes(column: Tensor) -> tuple[float, float]:
    """Return the least and the largest value in one pass, without a copy; NaN if a value is NaN."""
    least, most = torch.aminmax(column)
    return float(least), float(most)


def describe_unusable_samples(
    drawn: Sequence[tuple[float, float]], count: int, rows_per_sample: int | None
) -> RequestError:
    """Return the error of a task whose samples cannot be used.

    Args:
        drawn: Metric of the untrained network and of the target used as prediction, for each sample drawn.
        count: Samples that are needed.
        rows_per_sample: Rows of each sample; None if a sample is an image.
    """
    known = [(initial, best) for initial, best in drawn if not math.isnan(initial) and not math.isnan(best)]
    usable, worse = sum(initial < best for initial, best in known), [pair for pair in known if pair[0] > pair[1]]
    found = f"Only {usable} of {count} samples can be used: of {len(drawn)} that were drawn, the metric is"
    if len(worse) > len(known) / 2:
        initial, best = worse[0]
        return RequestError(
            f"{found} lower for the target itself than for an untrained network on {len(worse)} ({best:.4g} and {initial:.4g}). "
            "If lower is better, return its negative. If not, check that it understands the target as a prediction."
        )
    advice = (
        "Check that higher is better and that the metric is defined on a single image."
        if rows_per_sample is None
        else f"Raise rows_per_sample, now {rows_per_sample}, so that each sample has enough rows of every class."
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
        if not target.is_floating_point() and target.dtype != torch.bool and branch.activation != "sigmoid":
            classes[name] = set(target.unique().tolist()) - {branch.ignore_index}
    doubts += find_shared_examples(splits)
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
    """Return one sentence for each branch whose predictions, which must be raw, seem to be activated already."""
    doubts = []
    for name, branch in task.branches.items():
        if branch.predicts_probabilities and samples.get(name):
            raw = [sample.prediction.detach() for sample in samples[name]]
            if ending := _find_ending(raw):
                doubts.append(
                    f"The network's predictions on the branch {name} {ending} autoloss applies "
                    f"{'softmax' if branch.has_classes else 'sigmoid'}."
                )
    return doubts


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
