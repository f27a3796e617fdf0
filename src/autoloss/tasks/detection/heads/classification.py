"""The class of each sampled box: the heads rpn_cls and rcnn_cls of Faster R-CNN (Section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from autoloss.space.boxes import BoxClassification, compute_areas, decode
from autoloss.tasks.detection.heads.head import BranchSettings, Head, SampledBoxes, Stage
from autoloss.tasks.detection.metrics.regions import RCNN_NMS, RPN_NMS, ScoreMetric


@final
@dataclass(frozen=True, slots=True)
class ClassificationHead(Head):
    """Softmax over all classes and background; in the RPN one logit for the class object."""

    name: str
    stage: Stage
    nms: float
    standard: str = "baseline/ce"

    def branch(self, classes: int, settings: BranchSettings) -> BoxClassification:
        channels = 1 if self.stage is Stage.RPN else classes + 1
        return BoxClassification(channels=channels, measure_boxes=ScoreMetric(self.nms))

    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = decode(boxes.deltas.detach(), boxes.reference, boxes.deviations)
        intersection, union, _ = compute_areas(predicted, boxes.box)
        overlap = torch.where(boxes.target > 0, intersection / union, torch.ones_like(union))
        return boxes.logits[:, :, None, None], {**boxes.context, "overlap": overlap}


RPN_CLS = ClassificationHead("rpn_cls", Stage.RPN, RPN_NMS)
RCNN_CLS = ClassificationHead("rcnn_cls", Stage.RCNN, RCNN_NMS)
