"""The metrics of a detector's branches in the rejection protocol, on one image (Section 3.2, Appendix A).

While one branch is optimised, the predictions of the others are their targets: boxes for classification, scores for regression,
boxes and classes for masks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms

from autoloss.tasks.detection.metrics.average_precision import (
    COCO,
    COCO_THRESHOLDS,
    Array,
    Detections,
    GroundTruth,
    mean_average_precision,
)

RPN_NMS, RCNN_NMS = 0.7, 0.5
"""IoU thresholds of Faster R-CNN's non-maximum suppression: of proposals, and of final boxes."""
MASK_THRESHOLD = 0.5
"""Probability above which a pixel belongs to a mask."""


@dataclass(frozen=True, slots=True)
class ScoreMetric:
    """The metric of a classification branch: boxes are those of the target, scores are optimised.

    Mean AP@[.5:.95] over the classes of the image after NMS for each class, which drops the lower score; the RPN has one
    class. The box of a positive is its ground-truth box, that of a negative its own reference box (Section 3.2 with
    Appendix A; where they leave it open, measured).
    """

    nms: float

    def __call__(self, probabilities: Tensor, context: Mapping[str, Tensor]) -> float:
        """Measure probabilities (N, C) of the classes 1 to C."""
        scores = probabilities.detach().cpu().numpy()
        present = np.unique(context["truth_target"].cpu().numpy())
        columns = [(scores[:, label - 1], label) for label in present]
        return _measure_image(context["box"], columns, context, self.nms)


@dataclass(frozen=True, slots=True)
class BoxMetric:
    """The metric of a regression branch: scores are the one-hot target, boxes are optimised; a negative is no detection."""

    nms: float

    def __call__(self, boxes: Tensor, context: Mapping[str, Tensor]) -> float:
        """Measure boxes (N, 4)."""
        target = context["target"].cpu().numpy()
        present = np.unique(context["truth_target"].cpu().numpy())
        columns = [((target == label).astype(np.float32), label) for label in present]
        return _measure_image(boxes.detach(), columns, context, self.nms)


def measure_masks(probabilities: Tensor, target: Tensor) -> float:
    """Return the mean share of COCO's thresholds that the IoU of a mask reaches; NaN without an object that has a pixel.

    Probabilities of the foreground and shares of the object in each cell, (N, …), both count above a half.
    """
    found, wanted = (part.detach().flatten(1).cpu() > MASK_THRESHOLD for part in (probabilities, target))
    some = wanted.any(dim=1)
    found, wanted = found[some], wanted[some]
    overlap = (found & wanted).sum(dim=1).double() / (found | wanted).sum(dim=1)
    return float((overlap[:, None] >= torch.tensor(COCO_THRESHOLDS, dtype=torch.double)).double().mean())


def _measure_image(
    boxes: Tensor, columns: Sequence[tuple[Array, int]], context: Mapping[str, Tensor], threshold: float
) -> float:
    """Return the mean AP of one image over its classes, after NMS for each class; boxes with score 0 are no detections."""
    found: list[tuple[Array, Array, Array]] = []
    for scores, label in columns:
        scored = np.flatnonzero(scores > 0)
        rows = boxes[torch.as_tensor(scored)].float().cpu()
        kept = nms(rows, torch.as_tensor(scores[scored]), threshold)[: COCO.most].numpy()
        found.append((rows.numpy()[kept], scores[scored][kept], np.full(len(kept), label)))
    if not found:
        return math.nan
    rows, scores, labels = (np.concatenate(part) for part in zip(*found, strict=True))
    detections = Detections(rows, scores, labels)
    truth = GroundTruth(context["truth"].cpu().numpy(), context["truth_target"].cpu().numpy())
    return mean_average_precision([detections], [truth], [label for _, label in columns])
