"""The four branches of Faster R-CNN (Section 4.2): what each is like, and its usual loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoloss.space.boxes import PLAIN, AreaUnit, BoxClassification, BoxRegression
from autoloss.space.branch import Branch
from autoloss.tasks.detection.metrics.regions import RCNN_NMS, RPN_NMS, OfBoxes, OfScores
from autoloss.tasks.detection.networks.faster_rcnn import BRANCHES

STANDARD: Mapping[str, str] = {name: "baseline/ce" if name.endswith("cls") else "baseline/l1" for name in BRANCHES}
"""Branch → the zoo's name of its usual loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSettings:
    """What the four branches are like.

    Args:
        unit: Of the areas i, u and e: square `pixels`, the paper's, or the area of each `target` box.
        regression_weight: Of trees of areas; a hand-written loss on deltas keeps its own, 1.
        deviations: In which the rejection protocol counts deltas.
    """

    unit: AreaUnit = "pixels"
    regression_weight: float = 10.0
    deviations: tuple[float, float, float, float] = PLAIN


def four_branches(classes: int, settings: BranchSettings) -> dict[str, Branch]:
    """Return all of them.

    Args:
        classes: C, without background.
    """
    regression = {"unit": settings.unit, "weight": settings.regression_weight}
    return {
        "rpn_cls": BoxClassification(channels=1, measure_boxes=OfScores(RPN_NMS)),
        "rpn_reg": BoxRegression(measure=OfBoxes(RPN_NMS), **regression),
        "rcnn_cls": BoxClassification(channels=classes + 1, measure_boxes=OfScores(RCNN_NMS)),
        "rcnn_reg": BoxRegression(measure=OfBoxes(RCNN_NMS), **regression),
    }
