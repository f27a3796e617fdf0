"""Lovász-Softmax, written by hand since it sorts the errors of the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from autoloss.zoo.regions import POSITIONS, Regions


def lovasz_softmax(regions: Regions) -> Tensor:
    """Return the Lovász extension of one minus the IoU at the errors |y − p|, averaged over classes.

    The IoU of a class is over all positions of the batch that count, not per image. The mean is over the classes in the
    target of the batch; if there are none, the loss is 0.

    Source: Berman et al., 2018, The Lovász-Softmax loss, Eq. 9 to 11 and Algorithm 1, with `classes="present"`.
    """
    y = regions.y.movedim(1, 0).flatten(1)
    # Positions that do not count have error 0: they are sorted last, where they have no influence.
    errors = (y - regions.p.movedim(1, 0).flatten(1)).abs()
    errors, order = errors.sort(dim=1, descending=True)
    losses = (errors * _compute_increments(y.gather(1, order))).sum(dim=1)
    present = regions.y.sum(POSITIONS) > 0
    return torch.where(present, losses, torch.zeros_like(losses)).sum() / present.sum().clamp(min=1)


def _compute_increments(y: Tensor) -> Tensor:
    """Return the increase of the Jaccard loss by each further wrong position, in the order of y, (C, positions)."""
    size = y.sum(dim=1, keepdim=True)
    # Before the first wrong position intersection and union equal the class; the clamp avoids 0/0 for absent classes.
    jaccard = 1 - (size - y.cumsum(dim=1)) / (size + (1 - y).cumsum(dim=1)).clamp(min=1)
    return jaccard.diff(dim=1, prepend=torch.zeros_like(size))
