"""Lovász-Softmax, a loss that is no tree: it sorts the errors of the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from autoloss.zoo.regions import POSITIONS, Regions


def lovasz_softmax(regions: Regions) -> Tensor:
    """Return the Lovász extension of one minus the IoU at the errors |y − p|, averaged over classes.

    Each class has one IoU over all positions of the batch that count, not one per image. The mean is over the classes that
    the batch's target holds; without any the loss is 0.

    Source: Berman et al., 2018, The Lovász-Softmax loss, Eq. 9 to 11 and Algorithm 1, with `classes="present"`.
    """
    y = regions.y.movedim(1, 0).flatten(1)
    # What does not count has error 0: it is sorted last, where it has no influence.
    errors = (y - regions.p.movedim(1, 0).flatten(1)).abs()
    errors, order = errors.sort(dim=1, descending=True)
    losses = (errors * _increments(y.gather(1, order))).sum(dim=1)
    present = regions.y.sum(POSITIONS) > 0
    return torch.where(present, losses, torch.zeros_like(losses)).sum() / present.sum().clamp(min=1)


def _increments(y: Tensor) -> Tensor:
    """Return by how much the Jaccard loss grows with each further position got wrong, in the order of y, (C, positions)."""
    size = y.sum(dim=1, keepdim=True)
    # Until the first wrong one, intersection and union are both the whole class; an absent class's union is at least 1.
    jaccard = 1 - (size - y.cumsum(dim=1)) / (size + (1 - y).cumsum(dim=1)).clamp(min=1)
    return jaccard.diff(dim=1, prepend=torch.zeros_like(size))
