"""Object keypoint similarity, OKS: the protocol's metric, suppression of duplicates, and COCO's AP (Section 4.4).

Source: cocodataset.org, keypoint evaluation; Xiao et al., 2018, for suppression.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import faster_coco_eval
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from autoloss.tasks.pose.data.coco import PERSON, list_annotations
from autoloss.tasks.pose.heatmaps import decode_heatmaps
from autoloss.tasks.pose.people import SIGMAS, People, list_joints

Array = NDArray[Any]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
"""Thresholds of the similarity, as in COCO's AP."""
VARIANCES = (2 * SIGMAS) ** 2
COCO_METRICS = {
    "map": "AP_all",
    "ap50": "AP_50",
    "ap75": "AP_75",
    "map_medium": "AP_medium",
    "map_large": "AP_large",
    "mar": "AR_all",
}
"""Name of a metric → its name in faster-coco-eval."""
ABSENT = -1
"""Value of faster-coco-eval if there is no person of that size."""
METRICS = (*COCO_METRICS, "oks")
"""COCO's metrics, and the mean OKS, which also distinguishes poses that are all below COCO's lowest threshold."""


@dataclass(frozen=True, slots=True)
class Poses:
    """The predicted poses of one image: joints (D, 17, 2) as x and y in continuous coordinates of the image, and scores (D,).

    `area`, (D,) in square pixels, is that of the crops in which they were predicted, for suppression.
    """

    joints: Array
    scores: Array
    area: Array


def similarity(joints: Array, others: Array, counts: Array, area: Array) -> Array:
    """Return the OKS of pairs of poses: the mean of exp(−d²/(2·area·(2σ)²)) over the joints that count.

    Joints are (…, 17, 2), `counts` (…, 17) and `area` (…), in the square of their unit; NaN where no joint counts.
    """
    distances = ((joints - others) ** 2).sum(axis=-1)
    near = np.exp(-distances / VARIANCES / (area[..., None] + np.spacing(1)) / 2)
    number = counts.sum(axis=-1)
    return np.where(number > 0, (near * counts).sum(axis=-1) / np.maximum(number, 1), np.nan)


def share_of_thresholds(heatmaps: Tensor, context: Mapping[str, Tensor]) -> float:
    """Measure raw heatmaps (N, 17, H, W): the mean over persons of the share of COCO's OKS thresholds that each passes.

    The context is that of `HeatmapBranch` (Section 3.2 with Appendix A).
    """
    # The metric of a prediction that is not finite is not needed: the protocol rejects its loss.
    positions, _ = decode_heatmaps(heatmaps.float())
    labelled = context["labelled"].cpu().numpy().astype(bool)
    parts = (positions, context["joints"], context["area"])
    found, joints, area = (part.detach().cpu().numpy().astype(np.float64) for part in parts)
    reached = similarity(found, joints, labelled, area)
    defined = ~np.isnan(reached)
    return float((reached[defined, None] >= THRESHOLDS).mean()) if defined.any() else math.nan


def suppress(poses: Poses, threshold: float) -> Poses:
    """Drop each pose that has an OKS above the threshold with one of a higher score; all 17 joints count.

    Source: Xiao et al., 2018, with the mean area of the two crops.
    """
    order = np.argsort(-poses.scores, kind="stable")
    kept: list[int] = []
    for place in order:
        others = poses.joints[kept]
        area = (poses.area[kept] + poses.area[place]) / 2
        near = similarity(poses.joints[place], others, np.ones(others.shape[:2], bool), area)
        if not (near > threshold).any():
            kept.append(int(place))
    return Poses(poses.joints[kept], poses.scores[kept], poses.area[kept])


def evaluate_poses(poses: Sequence[Poses], people: Sequence[People]) -> dict[str, float]:
    """Return COCO's AP@[.5:.95], AP50, AP75, AP of medium and large persons and AR, and `oks`, of several images.

    `oks` is the mean over persons of the OKS of the nearest pose, 0 without any; a value is NaN where there is no such
    person.
    """
    rows = [row for image, those in enumerate(people, start=1) for row in list_annotations(those, image)]
    annotations = [{"id": number, **row} for number, row in enumerate(rows, start=1)]
    if not annotations:
        return dict.fromkeys(METRICS, math.nan)
    images = [{"id": number} for number in range(1, len(people) + 1)]
    truth = {"images": images, "categories": [PERSON], "annotations": annotations}
    quiet: dict[str, Any] = {"print_function": lambda *_: None}
    dataset: Any = faster_coco_eval.COCO(truth, **quiet)
    results = dataset.loadRes(list(_list_results(poses)))
    found: Any = faster_coco_eval.COCOeval_faster(dataset, results, "keypoints", **quiet)
    found.evaluate()
    found.accumulate()
    found.summarize()
    figures = {name: float(found.stats_as_dict[theirs]) for name, theirs in COCO_METRICS.items()}
    defined = {name: value if value > ABSENT else math.nan for name, value in figures.items()}
    return {**defined, "oks": _average_similarity(poses, people)}


def _average_similarity(poses: Sequence[Poses], people: Sequence[People]) -> float:
    nearest: list[float] = []
    for found, those in zip(poses, people, strict=True):
        for row in those.trainable:
            reached = similarity(found.joints, those.joints[row], those.visibility[row] > 0, those.area[row])
            nearest.append(float(reached.max(initial=0.0)))
    return float(np.mean(nearest)) if nearest else math.nan


def _list_results(poses: Sequence[Poses]) -> Iterator[dict[str, Any]]:
    for image, those in enumerate(poses, start=1):
        for joints, score in zip(those.joints, those.scores, strict=True):
            keypoints = list_joints(joints, np.ones(len(joints), int))
            yield {"image_id": image, "category_id": PERSON["id"], "keypoints": keypoints, "score": float(score)}
