"""The heads of a detector, each a branch with a loss of its own (Section 4.2). To add one: a file here, an entry in `HEADS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from autoloss.space.boxes import AreaUnit, BoxClassification, BoxRegression, compute_areas, decode, rescale_deltas
from autoloss.space.branch import Sample
from autoloss.tasks.detection.average_precision import RCNN_NMS, RPN_NMS, BoxMetric, ScoreMetric
from autoloss.tasks.detection.heads.head import Head, SampledBoxes, Stage
from autoloss.tasks.detection.heads.mask import MASK


@final
@dataclass(frozen=True, slots=True)
class ClassificationHead(Head):
    """Softmax over all classes and background; in the RPN one logit for the class object."""

    name: str
    stage: Stage
    nms: float
    standard: str = "baseline/ce"

    def branch(self, classes: int, unit: AreaUnit) -> BoxClassification:
        channels = 1 if self.stage is Stage.RPN else classes + 1
        return BoxClassification(channels=channels, measure_boxes=ScoreMetric(self.nms))

    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = decode(boxes.deltas.detach(), boxes.reference, boxes.deviations)
        intersection, union, _ = compute_areas(predicted, boxes.box)
        overlap = torch.where(boxes.target > 0, intersection / union, torch.ones_like(union))
        return boxes.logits[:, :, None, None], {**boxes.context, "overlap": overlap}


RPN_CLS = ClassificationHead("rpn_cls", Stage.RPN, RPN_NMS)
RCNN_CLS = ClassificationHead("rcnn_cls", Stage.RCNN, RCNN_NMS)

REGRESSION_WEIGHT = 10.0
"""Weight of trees of areas; a hand-written loss on deltas keeps its own, 1."""


@final
@dataclass(frozen=True, slots=True)
class RegressionHead(Head):
    """Deltas from an anchor or a region to its object, as the areas i, u and e."""

    name: str
    stage: Stage
    nms: float
    standard: str = "baseline/l1"

    def branch(self, classes: int, unit: AreaUnit) -> BoxRegression:
        return BoxRegression(measure=BoxMetric(self.nms), unit=unit, weight=REGRESSION_WEIGHT)

    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        context = {**boxes.context, "reference": boxes.reference, "deviations": boxes.deviations}
        return boxes.deltas[:, :, None, None], context

    def sample(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Sample:
        # The rejection protocol counts the deltas of both stages alike, in sides of their reference.
        return Sample(*rescale_deltas(prediction, context, torch.ones_like(context["deviations"])))


RPN_REG = RegressionHead("rpn_reg", Stage.RPN, RPN_NMS)
RCNN_REG = RegressionHead("rcnn_reg", Stage.RCNN, RCNN_NMS)

HEADS: tuple[Head, ...] = (RPN_CLS, RPN_REG, RCNN_CLS, RCNN_REG)
"""The heads of Faster R-CNN, in the order of the task's branches."""
INSTANCE_HEADS: tuple[Head, ...] = (*HEADS, MASK)
"""The heads of Mask R-CNN."""
BASELINES: tuple[Mapping[str, str], ...] = (
    {RCNN_REG.name: "baseline/iou"},
    {RCNN_REG.name: "baseline/giou"},
    {RCNN_CLS.name: "baseline/cse_auto_a_cls", RCNN_REG.name: "baseline/cse_auto_a_reg"},
)
"""The rows of the paper's tables of detection and instance segmentation, by what they change in the standard losses."""
