"""The four branches of Faster R-CNN (Section 4.2): what each is like, its usual loss, and which of them keep one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoloss.errors import unknown
from autoloss.space.boxes import PLAIN, AreaUnit, BoxClassification, BoxRegression, smooth_l1
from autoloss.space.branch import Branch, BranchLoss
from autoloss.space.expression import Expression
from autoloss.space.parsing import parse
from autoloss.tasks.metrics.regions import RCNN_NMS, RPN_NMS, OfBoxes, OfScores
from autoloss.tasks.networks.faster_rcnn import BRANCHES

STANDARD: Mapping[str, str] = {name: "baseline/ce" if name.endswith("cls") else "baseline/l1" for name in BRANCHES}
"""Branch → the zoo's name of its usual loss."""

Kept = Expression | BranchLoss
"""A loss that a branch keeps."""


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


def standard_loss(branch: str) -> Kept:
    """Return the usual loss of Faster R-CNN's branch: cross entropy, or smooth L1 on deltas."""
    return parse("-y * log(p)") if branch.endswith("cls") else smooth_l1


def frozen_losses(text: str) -> dict[str, Kept]:
    """Read which branches keep a loss: `rpn_cls; rpn_reg: e / (i + u)`; a branch without a formula keeps its usual loss.

    Args:
        text: Branches separated by semicolons; `rpn` stands for its two, `rcnn` for its two.

    Raises:
        RequestError: There is no such branch, or a formula is wrong.
    """
    kept: dict[str, Kept] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, colon, formula = (piece.strip() for piece in part.partition(":"))
        named = [branch for branch in BRANCHES if branch == name or branch.split("_")[0] == name]
        if not named:
            raise unknown("branch", name, [*BRANCHES, "rpn", "rcnn"])
        for branch in named:
            leaves = ("y", "p") if branch.endswith("cls") else ("i", "u", "e")
            kept[branch] = parse(formula, leaves) if colon else standard_loss(branch)
    return kept
