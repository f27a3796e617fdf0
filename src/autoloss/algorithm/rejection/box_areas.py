# type: ignore  # noqa: PGH003  # numba compiles half of this file; its types are those of the arguments it meets.
"""The areas i, u and e of boxes with their gradient, compiled: what autograd takes thirty small operations for.

They serve the screen and the direction-aware key, since the compiled engine does not know boxes. On digits-det they are two
thirds of a step's time in plain autograd, which remains the definition.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoloss.algorithm.rejection.compiling import kept
from autoloss.space.boxes import CLAMP, BoxRegression
from autoloss.space.branch import Branch


def quick(branch: Branch) -> Branch:
    """Return the branch with compiled areas, or any other branch as it is."""
    return replace(branch, compute=CompiledAreas.apply) if isinstance(branch, BoxRegression) else branch


class CompiledAreas(torch.autograd.Function):
    """Deltas, reference boxes, deviations, target boxes → intersection, union, enclosing area; on the CPU."""

    @staticmethod
    def forward(
        ctx: Any, deltas: Tensor, reference: Tensor, deviations: Tensor, target: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        arrays = [np.ascontiguousarray(part.detach().numpy()) for part in (deltas, reference, deviations, target)]
        found = np.empty((3, len(deltas)), arrays[0].dtype)
        _compiled()[0](*arrays, found)
        ctx.arrays = arrays
        return tuple(torch.from_numpy(found).unbind(0))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None, None, None]:
        given = np.stack([slope.numpy() for slope in slopes])
        found = np.empty_like(ctx.arrays[0])
        _compiled()[1](*ctx.arrays, given, found)
        return torch.from_numpy(found), None, None, None


@cache
def _compiled() -> tuple[Any, Any]:
    """Return both functions, loaded from the cache where there is one."""
    return kept(_areas), kept(_slopes)


def _areas(deltas, reference, deviations, target, found):
    for n in range(len(deltas)):
        common, own, wanted, around = 1.0, 1.0, 1.0, 1.0
        for axis in range(2):
            size = reference[n, axis + 2] - reference[n, axis]
            half = math.exp(min(deltas[n, axis + 2] * deviations[0, axis + 2], CLAMP)) * size / 2
            centre = reference[n, axis] + size / 2 + deltas[n, axis] * deviations[0, axis] * size
            inner = min(centre + half, target[n, axis + 2]) - max(centre - half, target[n, axis])
            common *= max(inner, 0.0)
            around *= max(centre + half, target[n, axis + 2]) - min(centre - half, target[n, axis])
            own *= 2 * half
            wanted *= target[n, axis + 2] - target[n, axis]
        found[0, n], found[1, n], found[2, n] = common, own + wanted - common, around


def _slopes(deltas, reference, deviations, target, given, found):
    halves, inner, outer = np.empty(2), np.empty(2), np.empty(2)
    right, left = np.empty(2), np.empty(2)
    for n in range(len(deltas)):
        for axis in range(2):
            size = reference[n, axis + 2] - reference[n, axis]
            half = math.exp(min(deltas[n, axis + 2] * deviations[0, axis + 2], CLAMP)) * size / 2
            centre = reference[n, axis] + size / 2 + deltas[n, axis] * deviations[0, axis] * size
            first, last = centre - half, centre + half
            halves[axis] = half
            inner[axis] = min(last, target[n, axis + 2]) - max(first, target[n, axis])
            outer[axis] = max(last, target[n, axis + 2]) - min(first, target[n, axis])
            # 1 where the predicted border bounds the intersection, 1/2 where it lies on the target's.
            right[axis] = (np.sign(target[n, axis + 2] - last) + 1) / 2
            left[axis] = (np.sign(first - target[n, axis]) + 1) / 2
        for axis in range(2):
            size, other = reference[n, axis + 2] - reference[n, axis], 1 - axis
            common = (given[0, n] - given[1, n]) * max(inner[other], 0.0) if inner[axis] >= 0 else 0.0
            around = given[2, n] * outer[other]
            of_centre = (common - around) * (right[axis] - left[axis])
            of_half = common * (right[axis] + left[axis]) + around * (2 - right[axis] - left[axis])
            of_half += 4 * given[1, n] * halves[other]
            found[n, axis] = of_centre * size * deviations[0, axis]
            grows = deltas[n, axis + 2] * deviations[0, axis + 2] <= CLAMP
            found[n, axis + 2] = of_half * halves[axis] * deviations[0, axis + 2] if grows else 0.0
