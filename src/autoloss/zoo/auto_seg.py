"""Auto-Seg-Loss: differentiable surrogates of the six segmentation metrics, with curves in place of logical operations.

A metric compares one-hot predictions with one-hot targets by AND, OR and XOR. Here the prediction is a probability p; AND becomes
g(p)·y and OR becomes g(p) + y − g(p)·y, each with its own curve g from (0, 0) to (1, 1).

Source: Li et al., 2021, Auto Seg-Loss: Searching Metric Surrogates for Semantic Segmentation (ICLR), Sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from autoloss.errors import RequestError, unknown
from autoloss.space.activated import dilate, inner_band
from autoloss.space.operators import min_pool
from autoloss.zoo.region_losses import POSITIONS, Regions, average_over_classes

SMALLEST = 1e-8
"""Least denominator, which keeps quotients finite."""
FLATTEST = 1e-12
"""Least argument of the square root, which keeps the slope finite if a curve is vertical at one end."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A piece-wise quadratic Bézier curve from (0, 0) to (1, 1), as a function of p.

    Args:
        points: (x, y) of control points and nodes in turn, from a control point to a control point: 2·pieces − 1 in all.

    Raises:
        RequestError: The number of points is even, or they do not rise from (0, 0) to (1, 1).

    >>> Curve()(torch.tensor([0.0, 0.25, 1.0]))
    tensor([0.0000, 0.2500, 1.0000])
    """

    points: tuple[tuple[float, float], ...] = ((0.5, 0.5),)

    def __post_init__(self) -> None:
        if len(self.points) % 2 == 0:
            raise RequestError(f"A curve has {len(self.points)} points; expected an odd number.")
        whole = [(0.0, 0.0), *self.points, (1.0, 1.0)]
        rising = all(before[axis] <= after[axis] for before, after in pairwise(whole) for axis in (0, 1))
        if not rising or any(start[0] >= end[0] for start, end in pairwise(whole[::2])):
            raise RequestError(f"A curve rises from (0, 0) to (1, 1); these points do not: {self.points}.")

    def __call__(self, p: Tensor) -> Tensor:
        return _Evaluation.apply(p, self)[0]

    def evaluate(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Return value and slope at p."""
        whole = [(0.0, 0.0), *self.points, (1.0, 1.0)]
        value, slope = torch.zeros_like(p), torch.zeros_like(p)
        for piece in zip(whole[::2], whole[1::2], whole[2::2], strict=False):
            inside = p > piece[0][0]
            of_value, of_slope = _evaluate_piece(p, *piece)
            value, slope = torch.where(inside, of_value, value), torch.where(inside, of_slope, slope)
        return value, slope


class _Evaluation(torch.autograd.Function):
    """A curve with its slope in closed form: no step of the value has to be kept and gone through backwards."""

    @staticmethod
    def forward(p: Tensor, curve: Curve) -> tuple[Tensor, Tensor]:
        return curve.evaluate(p)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        p, ctx.curve = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(p, output[1])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[Tensor, None]:
        p, slope = ctx.saved_tensors
        # For second derivatives the slope is made again, as a function of p.
        return grad_outputs[0] * (ctx.curve.evaluate(p)[1] if torch.is_grad_enabled() else slope), None


def _evaluate_piece(
    p: Tensor, start: tuple[float, float], control: tuple[float, float], end: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return value and slope at p, which the piece holds."""
    width = end[0] - start[0]
    x, middle = (p.clamp(start[0], end[0]) - start[0]) / width, (control[0] - start[0]) / width
    # Half of dx/dt; with it, the root of x = 2·t·(1 − t)·middle + t² in [0, 1] has a form that is exact for middle = ½ too.
    rise = (middle**2 + (1 - 2 * middle) * x).clamp(min=FLATTEST).sqrt()
    t = x / (middle + rise)
    value = (1 - t) ** 2 * start[1] + 2 * t * (1 - t) * control[1] + t**2 * end[1]
    slope = ((1 - t) * (control[1] - start[1]) + t * (end[1] - control[1])) / (width * rise)
    return value, slope


@dataclass(frozen=True, slots=True)
class AutoSegLoss:
    """One minus the surrogate of a metric.

    Classes that are not in the target of the batch add 0 and have no gradient. Tolerances are those of the branch.

    Args:
        metric: One of `SURROGATES`.
        curves: One for each logical operation, in the order of `SURROGATES`. By default straight lines, from which the
            authors' search starts: AND is y·p. The curves that the authors found are in `PUBLISHED`.

    Raises:
        RequestError: The metric is unknown, or it has another number of curves.

    >>> loss = AutoSegLoss("miou", (Curve(((0.1, 0.4),)), Curve(((0.6, 0.2),))))
    >>> loss.metric, len(loss.curves)
    ('miou', 2)
    """

    metric: str
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        if self.metric not in SURROGATES:
            raise unknown("surrogate", self.metric, SURROGATES)
        _, operations = SURROGATES[self.metric]
        if len(self.curves) not in (0, len(operations)):
            raise RequestError(
                f"Found {len(self.curves)} curves; {self.metric} has {len(operations)}: {', '.join(operations)}."
            )

    def __call__(self, regions: Regions) -> Tensor:
        loss, operations = SURROGATES[self.metric]
        return loss(regions, *(self.curves or (Curve(),) * len(operations)))


def _miou(regions: Regions, both: Curve, either: Curve) -> Tensor:
    return average_over_classes(1 - _compute_iou(regions, both, either), regions.y)


def _fwiou(regions: Regions, both: Curve, either: Curve) -> Tensor:
    share = regions.y.sum(POSITIONS)
    return (share * (1 - _compute_iou(regions, both, either))).sum() / share.sum().clamp(min=SMALLEST)


def _biou(regions: Regions, both: Curve, either: Curve) -> Tensor:
    near = inner_band(regions.y, regions.tolerance).amax(dim=1, keepdim=True)
    inside = Regions(regions.p * near, regions.y * near, regions.counted, regions.divisor)
    return _miou(inside, both, either)


def _gacc(regions: Regions, both: Curve) -> Tensor:
    total = regions.y.sum().clamp(min=SMALLEST)
    return (regions.y - both(regions.p) * regions.y).sum() / total


def _macc(regions: Regions, both: Curve) -> Tensor:
    wanted = regions.y.sum(POSITIONS)
    hit = (both(regions.p) * regions.y).sum(POSITIONS)
    return average_over_classes(1 - hit / wanted.clamp(min=SMALLEST), regions.y)


def _bf1(regions: Regions, both: Curve, eroded_both: Curve, either: Curve, eroded_either: Curve) -> Tensor:
    """One minus the surrogate of BF1, where an edge is a region XOR its erosion: OR without AND."""
    eroded = min_pool(regions.p)
    union, other = either(regions.p), eroded_either(eroded)
    found = union + other - union * other - both(regions.p) * eroded_both(eroded)
    wanted = inner_band(regions.y, 1)
    precision = _compute_share(found, dilate(wanted, regions.tolerance))
    recall = _compute_share(wanted, dilate(found, regions.tolerance))
    f1 = 2 * precision * recall / (precision + recall + SMALLEST)
    return average_over_classes(1 - f1, wanted)


def _compute_iou(regions: Regions, both: Curve, either: Curve) -> Tensor:
    """Compute the surrogate of intersection over union of each class, (C,)."""
    y, union = regions.y, either(regions.p)
    intersection = (both(regions.p) * y).sum(POSITIONS)
    return intersection / (union + y - union * y).sum(POSITIONS).clamp(min=SMALLEST)


def _compute_share(edges: Tensor, matched: Tensor) -> Tensor:
    return (edges * matched).sum(POSITIONS) / (edges.sum(POSITIONS) + SMALLEST)


_TWO = ("AND of intersection", "OR of union")

SURROGATES: Mapping[str, tuple[Callable[..., Tensor], tuple[str, ...]]] = {
    "miou": (_miou, _TWO),
    "fwiou": (_fwiou, _TWO),
    "gacc": (_gacc, _TWO[:1]),
    "macc": (_macc, _TWO[:1]),
    "biou": (_biou, _TWO),
    "bf1": (_bf1, ("AND of region", "AND of erosion", "OR of region", "OR of erosion")),
}
"""Metric → its loss with curves in place of logical operations, and these operations."""

_FWIOU = (
    Curve(((0.00036539, 0.98417), (0.96949, 0.99234), (0.98833, 0.99555))),
    Curve(((0.35461, 0.26722), (0.56055, 0.43529), (0.56543, 0.60145))),
)
_ACCURACY = (Curve(((0.021454, 0.73906), (0.41163, 0.79866), (0.91986, 0.95041))),)

PUBLISHED: Mapping[str, tuple[Curve, ...]] = {
    "miou": (
        Curve(((0.00056973, 0.64372), (0.33859, 0.70554), (0.62528, 0.77955))),
        Curve(((0.69038, 0.013063), (0.83417, 0.96243), (0.94300, 0.98004))),
    ),
    "fwiou": _FWIOU,
    "gacc": _ACCURACY,
    "macc": _ACCURACY,
    "biou": _FWIOU,
    "bf1": tuple(
        Curve((point,)) for point in ((0.81130, 0.85262), (0.17165, 0.031648), (0.20997, 0.44903), (0.078475, 0.87530))
    ),
}
"""The curves that the authors found on VOC 2012, to five digits.

Source: the retraining configurations in the repository of Auto-Seg-Loss, which use the same curves for FWIoU and BIoU, and for
gAcc and mAcc.
"""


def get_published(metric: str) -> AutoSegLoss:
    """Return the loss of a metric with the curves that the authors found."""
    return AutoSegLoss(metric, PUBLISHED[metric])
