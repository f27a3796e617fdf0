"""Predictions that are the same for every example: the score of the best of them is that of a network that ignores its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from autoloss.space.activated import SURE, ActivatedBranch, encode, mark_counted
from autoloss.tasks.checks import convert_target

CLASSES = 4
"""Number of the most frequent classes of which each is tried for all examples."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
POSITIONS = 100_000
"""Positions from which the quantiles of values are taken, at most about."""
LEAST_SHARE = 1e-6


def measure_best_constant(
    predicted: Iterable[tuple[Tensor, Tensor]],
    branch: ActivatedBranch,
    measure: Callable[[list[tuple[Tensor, Tensor]]], float],
) -> float | None:
    """Return the best score of a raw prediction that is the same for all examples, chosen with the targets in hand.

    For classes the most frequent ones and the shares of all are tried; for yes and no always yes, always no, the more
    frequent one and the shares; for values their mean and some quantiles. Of `predicted`, raw predictions of any network
    and targets, the shapes of the former count. None if `measure` is NaN, undefined, for all of them.
    """
    batches = [(prediction.shape, target.cpu()) for prediction, target in predicted]
    constants = _list_constants(batches, branch)
    found = [measure([(_expand(each, shape), target) for shape, target in batches]) for each in constants]
    return max((score for score in found if not math.isnan(score)), default=None)


def _expand(constant: Tensor, shape: torch.Size) -> Tensor:
    """Return a constant (C,) as predictions; a prediction (N,) has one channel."""
    return constant.reshape(1, -1, *[1] * (len(shape) - 2)).expand(shape) if len(shape) > 1 else constant.expand(shape)


def _list_constants(batches: Sequence[tuple[torch.Size, Tensor]], branch: ActivatedBranch) -> Iterator[Tensor]:
    """Yield raw predictions, (C,) each."""
    channels = batches[0][0][1] if len(batches[0][0]) > 1 else 1
    rows = torch.cat([_list_rows(shape, target, branch) for shape, target in batches])
    if branch.activation == "none":
        kept = rows[:: 1 + len(rows) // POSITIONS].double()
        for value in (kept.nanmean(dim=0), *kept.nanquantile(torch.tensor(QUANTILES).double(), dim=0)):
            yield value.float()
        return
    shares = rows.nanmean(dim=0).nan_to_num(0.5).clamp(LEAST_SHARE, 1 - LEAST_SHARE)
    if branch.activation == "softmax" and channels > 1:
        for chosen in shares.argsort(descending=True)[:CLASSES]:
            yield torch.full((channels,), -SURE).index_fill(0, chosen, SURE)
        yield shares.log()
        return
    # A single logit is that of the second of two channels.
    odds = torch.logit(shares[-channels:])
    yield from (odds, SURE * odds.sign(), torch.full_like(odds, SURE), torch.full_like(odds, -SURE))


def _list_rows(shape: torch.Size, target: Tensor, branch: ActivatedBranch) -> Tensor:
    """Return the target of each position, (positions, C); NaN where it is ignored."""
    channels = shape[1] if len(shape) > 1 else 1
    classes = channels if branch.activation == "none" else max(channels, 2)
    known = convert_target(target, torch.empty(shape, device="meta"), branch)
    values = encode(known, classes, branch.activation, branch.ignore_index)
    if branch.ignore_index is not None:
        values = torch.where(mark_counted(known, branch.ignore_index), values, math.nan)
    return values.movedim(1, -1).reshape(-1, values.shape[1])
