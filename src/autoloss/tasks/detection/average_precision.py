"""Average precision of boxes or masks as defined by COCO and by VOC 2007 (Section 4.2).

Matching is vectorised over thresholds and classes, so that one image takes about a millisecond: the rejection protocol measures
each candidate a dozen times. COCO's rules are those of pycocotools, including crowds, areas out of range and the limit on the
number of detections, and so are all figures (tested).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchvision.ops import nms

from autoloss.errors import RequestError
from autoloss.tasks.detection.masks import RunLengths, mask_areas, pairwise_mask_iou

Array = NDArray[Any]

COCO_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
COCO_AREAS: Mapping[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Ranges in square pixels; a limit belongs to both ranges."""
RECALLS = np.linspace(0.0, 1.0, 101)
VOC_RECALLS = np.linspace(0.0, 1.0, 11)

Recalls = Literal["coco", "voc07"]
Shape = Literal["boxes", "masks"]


@dataclass(frozen=True, slots=True)
class Detections:
    """The detections of one image: boxes (D, 4), scores (D,) and classes (D,); D masks where the network predicts them."""

    boxes: Array
    scores: Array
    classes: Array
    masks: Sequence[RunLengths] = ()


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The G objects of one image: boxes (G, 4) as left, top, right, bottom, classes (G,), and masks for the precision of masks.

    Any number of detections may match a `crowd`, a box of many objects, and all of them are ignored; a `difficult` object
    (VOC) and the detections that match it are ignored. The area is in square pixels, of the object's mask where there is
    one; by default of its box.
    """

    boxes: Array
    classes: Array
    crowd: Array = field(default_factory=lambda: np.zeros(0, bool))
    area: Array = field(default_factory=lambda: np.zeros(0))
    difficult: Array = field(default_factory=lambda: np.zeros(0, bool))
    masks: Sequence[RunLengths] = ()

    def __post_init__(self) -> None:
        count, none = len(self.boxes), np.zeros(len(self.boxes), bool)
        for name, default in {"crowd": none, "area": box_areas(self.boxes), "difficult": none}.items():
            given = len(getattr(self, name))
            if given not in (0, count):
                raise RequestError(f"{count} boxes have {given} values of {name}.")
            if not given:
                object.__setattr__(self, name, default)


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """Settings of average precision.

    `thresholds` are those of the IoU; at most `most` detections per image and class count, those with the highest scores;
    objects and detections outside the range `area` in square pixels are ignored. Precision is read at 101 `recalls`, or
    with `voc07` at 11, where a detection may match only the object that it overlaps most. Overlaps and areas are those of
    the `shape`.
    """

    thresholds: tuple[float, ...] = COCO_THRESHOLDS
    most: int = 100
    area: tuple[float, float] = COCO_AREAS["all"]
    recalls: Recalls = "coco"
    shape: Shape = "boxes"


COCO = PrecisionSettings()
VOC07 = PrecisionSettings(thresholds=(0.5,), most=10**9, recalls="voc07")


@dataclass(frozen=True, slots=True)
class Matches:
    """The detections of one image, scores (D,) and classes (D,), matched with its objects, the highest score first.

    `hit` (T, D) says whether a detection matches an object at each threshold, `ignored` (T, D) whether it is neither a true
    nor a false positive; `wanted` are the classes of the objects that are not ignored.
    """

    scores: Array
    classes: Array
    hit: Array
    ignored: Array
    wanted: Array


def match_detections(detections: Detections, truth: GroundTruth, settings: PrecisionSettings = COCO) -> Matches:
    """Match each detection, the highest score first, with the unmatched object of its class that it overlaps most."""
    order = _select_best(detections, settings.most)
    classes = detections.classes[order]
    low, high = settings.area
    ignored_truth = truth.crowd | truth.difficult | (truth.area < low) | (truth.area > high)
    # Objects that are not ignored come first, as in pycocotools, so that ties in overlap are resolved alike.
    first = np.argsort(ignored_truth, kind="stable")
    crowd, ignored_truth = truth.crowd[first], ignored_truth[first]
    overlaps, size = _measure_overlaps(detections, order, truth, first, settings.shape)
    overlaps[classes[:, None] != truth.classes[first][None]] = -1.0
    hit, ignored = _assign(overlaps, crowd | truth.difficult[first], ignored_truth, settings)
    ignored |= ~hit & ((size < low) | (size > high))[None]
    wanted = truth.classes[first][~ignored_truth]
    return Matches(detections.scores[order], classes, hit & ~ignored, ignored, wanted)


def _measure_overlaps(
    detections: Detections, order: Array, truth: GroundTruth, first: Array, shape: Shape
) -> tuple[Array, Array]:
    """Return the overlap (D, G) of detections and objects in these orders, and the areas (D,) of the detections."""
    crowd = truth.crowd[first]
    if shape == "boxes":
        boxes = detections.boxes[order].astype(np.float64)
        return pairwise_iou(boxes, truth.boxes[first].astype(np.float64), crowd), box_areas(boxes)
    for masks, rows, kind in ((detections.masks, order, "detections"), (truth.masks, first, "objects")):
        if len(masks) < len(rows):
            raise RequestError(f"{len(rows)} {kind} have {len(masks)} masks; expected one each.")
    found = [detections.masks[place] for place in order]
    return pairwise_mask_iou(found, [truth.masks[place] for place in first], crowd), mask_areas(found)


def _assign(overlaps: Array, endless: Array, ignored_truth: Array, settings: PrecisionSettings) -> tuple[Array, Array]:
    thresholds = np.minimum(np.array(settings.thresholds), 1 - 1e-10)[:, None]
    hit = np.zeros((len(thresholds), len(overlaps)), bool)
    ignored = np.zeros_like(hit)
    if not overlaps.size:
        return hit, ignored
    free = np.ones((len(thresholds), len(endless)), bool)
    rows = np.arange(len(thresholds))
    for number in np.flatnonzero(overlaps.max(axis=1) >= thresholds.min()):
        row = overlaps[number]
        if settings.recalls == "voc07":
            row = np.where(np.arange(len(row)) == row.argmax(), row, -1.0)
        near = (free | endless) & (row >= thresholds)
        # Objects that are not ignored take precedence over ignored ones; of equal overlaps the last wins.
        value = np.where(near, row + 2.0 * ~ignored_truth, -1.0)
        best = value.shape[1] - 1 - value[:, ::-1].argmax(axis=1)
        matched = near[rows, best]
        hit[:, number] = matched
        ignored[:, number] = matched & ignored_truth[best]
        free[rows[matched], best[matched]] = False
    return hit, ignored


def average_precisions(images: Sequence[Matches], classes: Sequence[int], settings: PrecisionSettings = COCO) -> Array:
    """Return the average precision (T, K) of each class over all images; NaN for a class without objects."""
    scores, labels = (np.concatenate([getattr(image, name) for image in images]) for name in ("scores", "classes"))
    hit, ignored = (np.concatenate([getattr(image, name) for image in images], axis=1) for name in ("hit", "ignored"))
    wanted = np.concatenate([image.wanted for image in images])
    result = np.full((len(settings.thresholds), len(classes)), math.nan)
    for column, label in enumerate(classes):
        count = int((wanted == label).sum())
        if not count:
            continue
        chosen = np.flatnonzero(labels == label)
        order = chosen[np.argsort(-scores[chosen], kind="stable")]
        right = np.cumsum(hit[:, order], axis=1)
        wrong = np.cumsum(~hit[:, order] & ~ignored[:, order], axis=1)
        # The highest precision at this recall or a higher one.
        recall = right / count
        precision = right / (right + wrong + np.spacing(1))
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        envelope = np.concatenate([envelope, np.zeros((len(envelope), 1))], axis=1)
        points = RECALLS if settings.recalls == "coco" else VOC_RECALLS
        read = [row[np.searchsorted(reached, points)] for row, reached in zip(envelope, recall, strict=True)]
        result[:, column] = np.mean(read, axis=1)
    return result


def mean_average_precision(
    detections: Sequence[Detections],
    truths: Sequence[GroundTruth],
    classes: Sequence[int],
    settings: PrecisionSettings = COCO,
) -> float:
    """Return the mean over thresholds and over the classes that have objects; NaN if there are none."""
    return average_defined(average_precisions(match_images(detections, truths, settings), classes, settings))


def match_images(
    detections: Sequence[Detections], truths: Sequence[GroundTruth], settings: PrecisionSettings = COCO
) -> list[Matches]:
    """Match the detections of each image with its objects."""
    return [match_detections(one, truth, settings) for one, truth in zip(detections, truths, strict=True)]


def average_defined(precisions: Array) -> float:
    """Return the mean of the average precisions that are defined; NaN if none is."""
    defined = ~np.isnan(precisions)
    return float(precisions[defined].mean()) if defined.any() else math.nan


def box_areas(boxes: Array) -> Array:
    """Return the areas (N,) of boxes (N, 4)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def pairwise_iou(boxes: Array, others: Array, crowd: Array) -> Array:
    """Return the IoU (D, G) of all pairs; with a crowd, the share of the detection inside it."""
    corner = np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - np.maximum(boxes[:, None, :2], others[None, :, :2])
    common = corner.clip(min=0).prod(axis=2)
    size = box_areas(boxes)[:, None]
    return common / np.maximum(np.where(crowd[None], size, size + box_areas(others)[None] - common), 1e-12)


def _select_best(detections: Detections, most: int) -> Array:
    """Return the indices of the `most` best detections of each class, the highest score first."""
    order = np.argsort(-detections.scores, kind="stable")
    if len(order) <= most:
        return order
    kept = np.zeros(len(order), bool)
    labels = detections.classes[order]
    for label in np.unique(labels):
        kept[np.flatnonzero(labels == label)[:most]] = True
    return order[kept]


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
