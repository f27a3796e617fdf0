"""Average precision of boxes, in memory: COCO's and VOC 2007's (Section 4.2).

Matching is vectorised over thresholds and classes, so that one image costs about a millisecond: the protocol measures each
candidate a dozen times. COCO's rules are those of pycocotools: crowds, areas out of range and the cap on detections included.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from autoloss.errors import RequestError

Array = NDArray[Any]

COCO_THRESHOLDS = tuple(np.linspace(0.5, 0.95, 10).tolist())
COCO_AREAS: Mapping[str, tuple[float, float]] = {
    "all": (0.0, 1e10),
    "small": (0.0, 32.0**2),
    "medium": (32.0**2, 96.0**2),
    "large": (96.0**2, 1e10),
}
"""Square pixels; COCO counts a border to both sides."""
RECALLS = np.linspace(0.0, 1.0, 101)
VOC_RECALLS = np.linspace(0.0, 1.0, 11)

Recalls = Literal["coco", "voc07"]


@dataclass(frozen=True, slots=True)
class Detections:
    """What a network finds in one image: boxes (D, 4), scores (D,) and classes (D,)."""

    boxes: Array
    scores: Array
    classes: Array


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """What is in one image.

    Args:
        boxes: (G, 4) as left, top, right, bottom.
        classes: (G,).
        crowd: (G,), True where a box stands for many objects: it takes any number of detections, and none of them counts.
        area: (G,) in square pixels, of the object's mask where there is one; by default of its box.
        difficult: (G,), VOC's mark: such an object counts neither as found, however often, nor as missed.
    """

    boxes: Array
    classes: Array
    crowd: Array = field(default_factory=lambda: np.zeros(0, bool))
    area: Array = field(default_factory=lambda: np.zeros(0))
    difficult: Array = field(default_factory=lambda: np.zeros(0, bool))

    def __post_init__(self) -> None:
        count = len(self.boxes)
        for name, default in (
            ("crowd", np.zeros(count, bool)),
            ("area", box_areas(self.boxes)),
            ("difficult", np.zeros(count, bool)),
        ):
            if len(getattr(self, name)) != count:
                if len(getattr(self, name)):
                    raise RequestError(
                        f"{count} boxes have {len(getattr(self, name))} values of {name}; give one each."
                    )
                object.__setattr__(self, name, default)


@dataclass(frozen=True, slots=True)
class PrecisionSettings:
    """How detections are matched and counted.

    Args:
        thresholds: Of the IoU.
        most: Detections per image and class that count, the best by score.
        area: Square pixels; objects and detections outside it do not count.
        recalls: At which the precision is read: `coco`, 101 points; `voc07`, 11, where moreover a detection may take only the
            object that it overlaps most.
    """

    thresholds: tuple[float, ...] = COCO_THRESHOLDS
    most: int = 100
    area: tuple[float, float] = COCO_AREAS["all"]
    recalls: Recalls = "coco"


COCO = PrecisionSettings()
VOC07 = PrecisionSettings(thresholds=(0.5,), most=10**9, recalls="voc07")


@dataclass(frozen=True, slots=True)
class Matches:
    """The detections of one image held against its objects, the best score first.

    Args:
        scores: (D,).
        classes: (D,).
        hit: (T, D), found an object at each threshold.
        silent: (T, D), counts neither as right nor as wrong.
        wanted: The class of each object that counts.
    """

    scores: Array
    classes: Array
    hit: Array
    silent: Array
    wanted: Array


def match_detections(found: Detections, truth: GroundTruth, setting: PrecisionSettings = COCO) -> Matches:
    """Give each detection, the best score first, the free object of its class that it overlaps most."""
    order = _best_per_class(found, setting.most)
    boxes, classes = found.boxes[order].astype(np.float64), found.classes[order]
    low, high = setting.area
    silent_truth = truth.crowd | truth.difficult | (truth.area < low) | (truth.area > high)
    # Objects that count come first, as in pycocotools: ties in overlap then fall alike.
    first = np.argsort(silent_truth, kind="stable")
    crowd, silent_truth = truth.crowd[first], silent_truth[first]
    overlaps = pairwise_iou(boxes, truth.boxes[first].astype(np.float64), crowd)
    overlaps[classes[:, None] != truth.classes[first][None]] = -1.0
    hit, silent = _assign(overlaps, crowd | truth.difficult[first], silent_truth, setting)
    size = box_areas(boxes)
    silent |= ~hit & ((size < low) | (size > high))[None]
    wanted = truth.classes[first][~silent_truth]
    return Matches(found.scores[order], classes, hit & ~silent, silent, wanted)


def _assign(overlaps: Array, endless: Array, silent_truth: Array, setting: PrecisionSettings) -> tuple[Array, Array]:
    thresholds = np.minimum(np.array(setting.thresholds), 1 - 1e-10)[:, None]
    hit = np.zeros((len(thresholds), len(overlaps)), bool)
    silent = np.zeros_like(hit)
    if not overlaps.size:
        return hit, silent
    free = np.ones((len(thresholds), len(endless)), bool)
    rows = np.arange(len(thresholds))
    for number in np.flatnonzero(overlaps.max(axis=1) >= thresholds.min()):
        row = overlaps[number]
        if setting.recalls == "voc07":
            row = np.where(np.arange(len(row)) == row.argmax(), row, -1.0)
        near = (free | endless) & (row >= thresholds)
        # What counts comes before what does not, however much either overlaps; of equal overlaps the last wins.
        value = np.where(near, row + 2.0 * ~silent_truth, -1.0)
        best = value.shape[1] - 1 - value[:, ::-1].argmax(axis=1)
        taken = near[rows, best]
        hit[:, number] = taken
        silent[:, number] = taken & silent_truth[best]
        free[rows[taken], best[taken]] = False
    return hit, silent


def average_precisions(images: Sequence[Matches], classes: Sequence[int], setting: PrecisionSettings = COCO) -> Array:
    """Return the average precision (T, K) of each class over all images; NaN for a class of which nothing counts."""
    scores, labels = (np.concatenate([getattr(image, name) for image in images]) for name in ("scores", "classes"))
    hit, silent = (np.concatenate([getattr(image, name) for image in images], axis=1) for name in ("hit", "silent"))
    wanted = np.concatenate([image.wanted for image in images])
    result = np.full((len(setting.thresholds), len(classes)), math.nan)
    for column, label in enumerate(classes):
        count = int((wanted == label).sum())
        if not count:
            continue
        chosen = np.flatnonzero(labels == label)
        order = chosen[np.argsort(-scores[chosen], kind="stable")]
        right = np.cumsum(hit[:, order], axis=1)
        wrong = np.cumsum(~hit[:, order] & ~silent[:, order], axis=1)
        result[:, column] = _average(right, wrong, count, setting)
    return result


def _average(right: Array, wrong: Array, count: int, setting: PrecisionSettings) -> Array:
    recall = right / count
    precision = right / (right + wrong + np.spacing(1))
    # The best precision at this recall or a higher one.
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    envelope = np.concatenate([envelope, np.zeros((len(envelope), 1))], axis=1)
    points = RECALLS if setting.recalls == "coco" else VOC_RECALLS
    read = [row[np.searchsorted(reached, points)] for row, reached in zip(envelope, recall, strict=True)]
    return np.mean(read, axis=1)


def mean_average_precision(
    found: Sequence[Detections],
    truths: Sequence[GroundTruth],
    classes: Sequence[int],
    setting: PrecisionSettings = COCO,
) -> float:
    """Average the precision over thresholds and over the classes that are there; NaN where none is."""
    images = [match_detections(one, other, setting) for one, other in zip(found, truths, strict=True)]
    found_precisions = average_precisions(images, classes, setting)
    there = ~np.isnan(found_precisions)
    return float(found_precisions[there].mean()) if there.any() else math.nan


def box_areas(boxes: Array) -> Array:
    """Return the areas (N,) of boxes (N, 4)."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def pairwise_iou(boxes: Array, others: Array, crowd: Array) -> Array:
    """Return the IoU (D, G) of all pairs; with a crowd, the share of the detection that lies within."""
    corner = np.minimum(boxes[:, None, 2:], others[None, :, 2:]) - np.maximum(boxes[:, None, :2], others[None, :, :2])
    common = corner.clip(min=0).prod(axis=2)
    size = box_areas(boxes)[:, None]
    return common / np.maximum(np.where(crowd[None], size, size + box_areas(others)[None] - common), 1e-12)


def _best_per_class(found: Detections, most: int) -> Array:
    """Return the indices of the detections that count, the best score first."""
    order = np.argsort(-found.scores, kind="stable")
    if len(order) <= most:
        return order
    kept = np.zeros(len(order), bool)
    labels = found.classes[order]
    for label in np.unique(labels):
        kept[np.flatnonzero(labels == label)[:most]] = True
    return order[kept]
