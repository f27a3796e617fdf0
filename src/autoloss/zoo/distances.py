"""The exact Euclidean distance transform of a class map, on any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def compute_border_distances(classes: Tensor) -> Tensor:
    """Compute the distance of each position to the nearest one of another class: 1 at a border, infinite if there is none.

    The distances within each column are combined over columns at increasing offsets. The search ends at the largest
    distance found so far, since columns farther away cannot reduce any distance.

    Args:
        classes: Integers, (N, H, W).

    >>> compute_border_distances(torch.tensor([[[0, 0, 0, 1]]]))
    tensor([[[3., 2., 1., 1.]]])
    """
    vertical = _compute_vertical(classes).square()
    nearest = vertical.clone()
    for offset in range(1, classes.shape[2]):
        if offset**2 >= float(nearest.max()):
            break
        left, right = slice(None, -offset), slice(offset, None)
        same = classes[..., left] == classes[..., right]
        for own, other in ((left, right), (right, left)):
            # A position of another class in that column is itself the nearest; otherwise the nearest one above or below it counts.
            beyond = torch.where(same, vertical[..., other], torch.zeros_like(vertical[..., other])) + offset**2
            nearest[..., own] = torch.minimum(nearest[..., own], beyond)
    return nearest.sqrt()


def _compute_vertical(classes: Tensor) -> Tensor:
    """Compute the distance to the nearest position of another class in the same column, infinite if there is none."""
    upwards = _compute_upward(classes)
    return torch.minimum(upwards, _compute_upward(classes.flip(1)).flip(1))


def _compute_upward(classes: Tensor) -> Tensor:
    height = classes.shape[1]
    rows = torch.arange(height, device=classes.device, dtype=torch.float32).view(1, -1, 1).expand(classes.shape)
    starts = torch.full_like(rows, -math.inf)
    starts[:, 1:] = torch.where(classes[:, 1:] != classes[:, :-1], rows[:, 1:], starts[:, 1:])
    return rows - starts.cummax(dim=1).values + 1
