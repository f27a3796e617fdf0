"""The heads of a detector, each a branch with a loss of its own (Section 4.2). To add one: a file here, an entry in `HEADS`."""

from __future__ import annotations

from collections.abc import Mapping

from autoloss.tasks.detection.heads.boxes import RCNN_CLS, RCNN_REG, RPN_CLS, RPN_REG
from autoloss.tasks.detection.heads.head import Head
from autoloss.tasks.detection.heads.mask import MASK

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
