"""Box branches of object detection: areas i, u and e of two boxes, and the classes of sampled boxes (Sections 3.1 and 4.2).

The batch dimension counts the *sampled* boxes, positive and negative, of one part of the network: anchors of the RPN or regions
of the R-CNN head. The context of both kinds of branch holds

- `target` (N,): the class of each box, 0 for a negative one; of anchors 1 for any object,
- `box` (N, 4): the assigned ground-truth box of a positive, its own reference box of a negative,
- `reference` (N, 4): the anchor or region itself, and `deviations` (1, 4), standard deviations of the deltas (regression only),
- `truth` (G, 4) and `truth_target` (G,): the ground truth, which only the metric of one image needs,
- `overlap` (N,): the IoU of the predicted box of a positive with its target, detached; 1 for a negative (classes only).

Boxes are (left, top, right, bottom) in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from autoloss.errors import unknown
from autoloss.space.activated import ActivatedBranch, activate, spatial
from autoloss.space.branch import Branch, Role, Sample, require_measure
from autoloss.space.form import AREA_UNITS, AreaUnit, BranchForm, Kernel
from autoloss.space.ranges import POSITIVE, Range

CLAMP = math.log(1000 / 16)
"""Upper bound of the predicted log-ratios of width and height, as in torchvision's box coder."""
PLAIN = (1.0, 1.0, 1.0, 1.0)
"""Standard deviations of the deltas x, y, width, height in the RPN; the rejection protocol uses them for every branch."""

BoxMeasure = Callable[[Tensor, Mapping[str, Tensor]], float]
"""(class probabilities (N, C), context) → metric, or (boxes (N, 4), context) → metric."""


def decode(deltas: Tensor, reference: Tensor, deviations: Tensor) -> Tensor:
    """Turn deltas (N, 4) into boxes (N, 4).

    Args:
        reference: Anchors or regions, (N, 4).
        deviations: (1, 4); the deltas are multiplied by them to give shifts in box sizes and log-ratios of sizes.

    Source: Girshick et al., 2014, R-CNN, Appendix C, with the clamp of Detectron.
    """
    counted = deltas * deviations.to(deltas)
    shift, growth = counted[:, :2], counted[:, 2:]
    size = reference[:, 2:] - reference[:, :2]
    centre = reference[:, :2] + size / 2 + shift * size
    half = growth.clamp(max=CLAMP).exp() * size / 2
    return torch.cat([centre - half, centre + half], dim=1)


def encode(boxes: Tensor, reference: Tensor, deviations: Tensor) -> Tensor:
    """Turn boxes (N, 4) into deltas (N, 4); the inverse of `decode`."""
    size, reference_size = (rows[:, 2:] - rows[:, :2] for rows in (boxes, reference))
    # The difference of corners and sizes loses less precision than that of centres.
    shift = ((boxes[:, :2] - reference[:, :2]) + (size - reference_size) / 2) / reference_size
    return torch.cat([shift, (size / reference_size).log()], dim=1) / deviations.to(boxes)


def compute_areas(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return intersection, union and enclosing area, (N,) each, of pairs of boxes (N, 4)."""
    inner = torch.minimum(first[:, 2:], second[:, 2:]) - torch.maximum(first[:, :2], second[:, :2])
    outer = torch.maximum(first[:, 2:], second[:, 2:]) - torch.minimum(first[:, :2], second[:, :2])
    intersection = inner.clamp(min=0).prod(dim=1)
    union = _compute_area(first) + _compute_area(second) - intersection
    return intersection, union, outer.prod(dim=1)


def rescale_deltas(
    deltas: Tensor, context: Mapping[str, Tensor], deviations: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the deltas (N, 4, 1, 1) of the same boxes for other standard deviations, and the context with these."""
    factor = (context["deviations"] / deviations)[:, :, None, None]
    return deltas * factor, {**context, "deviations": deviations}


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRegression(Branch):
    """A branch of box deltas (N, 4, 1, 1) with the areas `i`, `u`, `e` as leaves; only positives count.

    Args:
        measure: (boxes (N, 4), context) → metric, higher is better; required for a search only.
        unit: Unit of the areas: square `pixels`, as in the paper, or the area of each `target` box.
    """

    is_single: ClassVar[bool] = True
    measure: BoxMeasure | None = None
    unit: AreaUnit = "pixels"
    weight: float = 10.0
    leaves_and_roles: Mapping[str, Role] = field(
        default_factory=lambda: {"i": Role.BOTH, "u": Role.BOTH, "e": Role.BOTH}, init=False
    )

    def __post_init__(self) -> None:
        if self.unit not in AREA_UNITS:
            raise unknown("unit of areas", str(self.unit), AREA_UNITS)

    @property
    def ranges(self) -> Mapping[str, Range]:
        return dict.fromkeys(self.leaves_and_roles, POSITIVE)

    @property
    def kernel(self) -> Kernel | None:
        return "box" if self._has_own_areas else None

    @property
    def _has_own_areas(self) -> bool:
        return type(self).leaves is BoxRegression.leaves and type(self).get_area_unit is BoxRegression.get_area_unit

    def form(self, samples: Sequence[Sample] = ()) -> BranchForm:
        unit = self.unit if self._has_own_areas else None
        # Two arguments: `super()` does not know the class that a dataclass with slots becomes.
        return replace(super(BoxRegression, self).form(samples), unit=unit)

    def fixed_inputs(self, sample: Sample, precision: torch.dtype) -> Tensor:
        """Return reference box, target box, deviations of the deltas and unit of the areas, one channel for each number."""
        given = (sample.context[name].to(precision) for name in ("reference", "box", "deviations"))
        reference, target, deviations = given
        unit = self.get_area_unit(target).unsqueeze(1)
        return spatial(torch.cat([reference, target, deviations.expand_as(reference), unit], dim=1))

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        reference, deviations, target = (context[name].to(prediction) for name in ("reference", "deviations", "box"))
        found = compute_areas(decode(prediction.flatten(1), reference, deviations), target)
        unit = self.get_area_unit(target)
        return {name: spatial(area / unit) for name, area in zip("iue", found, strict=True)}

    def get_area_unit(self, target: Tensor) -> Tensor:
        """Return the unit of each box's areas, (N,) in square pixels."""
        return _compute_area(target) if self.unit == "target" else torch.ones_like(target[:, 0])

    def boxes(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        """Return the predicted boxes, (N, 4) in pixels."""
        deltas = prediction.flatten(1)
        return decode(deltas, context["reference"].to(deltas), context["deviations"])

    def mask(self, context: Mapping[str, Tensor]) -> Tensor:
        return (context["target"] > 0)[:, None, None, None]

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        return float(max(1, len(context["target"])))

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        return float(require_measure(self.measure)(self.boxes(prediction, context), context))

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return spatial(encode(context["box"], context["reference"], context["deviations"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxClassification(ActivatedBranch):
    """A branch of the classes of sampled boxes: softmax over C + 1 channels, or over (0, z) for the one logit z of the RPN.

    It differs from `ActivatedBranch` only in its metric, which needs the boxes as well.

    Args:
        measure_boxes: (probabilities of the C classes without background (N, C), context) → metric.
    """

    measure_boxes: BoxMeasure | None = None

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        probabilities = activate(spatial(prediction), self.activation)
        return float(require_measure(self.measure_boxes)(probabilities[:, 1:].flatten(1), context))


def _compute_area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)
