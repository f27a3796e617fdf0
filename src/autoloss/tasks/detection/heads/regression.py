"""The position of the object of each sampled box: the heads rpn_reg and rcnn_reg of Faster R-CNN (Section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from autoloss.space.boxes import BoxRegression, rescale_deltas
from autoloss.space.branch import Sample
from autoloss.tasks.detection.heads.head import BranchSettings, Head, SampledBoxes, Stage
from autoloss.tasks.detection.metrics.regions import RCNN_NMS, RPN_NMS, BoxMetric


@final
@dataclass(frozen=True, slots=True)
class RegressionHead(Head):
    """Deltas from an anchor or a region to its object, as the areas i, u and e."""

    name: str
    stage: Stage
    nms: float
    standard: str = "baseline/l1"

    def branch(self, classes: int, settings: BranchSettings) -> BoxRegression:
        return BoxRegression(measure=BoxMetric(self.nms), unit=settings.unit, weight=settings.regression_weight)

    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        context = {**boxes.context, "reference": boxes.reference, "deviations": boxes.deviations}
        return boxes.deltas[:, :, None, None], context

    def sample(self, prediction: Tensor, context: Mapping[str, Tensor], settings: BranchSettings) -> Sample:
        return Sample(*rescale_deltas(prediction, context, prediction.new_tensor([settings.deviations])))


RPN_REG = RegressionHead("rpn_reg", Stage.RPN, RPN_NMS)
RCNN_REG = RegressionHead("rcnn_reg", Stage.RCNN, RCNN_NMS)
