"""The Euclidean distance transform of a map of classes, exact, on whatever device it lies."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def distances_within(classes: Tensor) -> Tensor:
    """Return each position's distance to the nearest one of another class: 1 at a straight border, infinite without any other.

    The nearest is looked for column by column, outwards; a column's own candidate is known from its vertical runs. Columns
    farther away than the largest distance found so far cannot improve any, so the search ends there.

    Args:
        classes: Whole numbers, (N, H, W).
    """
    vertical = _vertical(classes).square()
    nearest = vertical.clone()
    for offset in range(1, classes.shape[2]):
        if offset**2 >= float(nearest.max()):
            break
        left, right = slice(None, -offset), slice(offset, None)
        same = classes[..., left] == classes[..., right]
        for own, other in ((left, right), (right, left)):
            # A column of the same class at this height is left or right of its own nearest; any other is it.
            beyond = torch.where(same, vertical[..., other], torch.zeros_like(vertical[..., other])) + offset**2
            nearest[..., own] = torch.minimum(nearest[..., own], beyond)
    return nearest.sqrt()


def _vertical(classes: Tensor) -> Tensor:
    """Return the distance to the nearest position of another class in the same column, infinite without any."""
    upwards = _upwards(classes)
    return torch.minimum(upwards, _upwards(classes.flip(1)).flip(1))


def _upwards(classes: Tensor) -> Tensor:
    height = classes.shape[1]
    rows = torch.arange(height, device=classes.device, dtype=torch.float32).view(1, -1, 1).expand(classes.shape)
    starts = torch.full_like(rows, -math.inf)
    starts[:, 1:] = torch.where(classes[:, 1:] != classes[:, :-1], rows[:, 1:], starts[:, 1:])
    return rows - starts.cummax(dim=1).values + 1
