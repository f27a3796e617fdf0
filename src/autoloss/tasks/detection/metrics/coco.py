"""COCO's final figures (Section 4.2), by faster-coco-eval: the numbers of pycocotools, sooner."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from faster_coco_eval import COCO, COCOeval_faster

from autoloss.tasks.detection.metrics.average_precision import Array, Detections, GroundTruth

FIGURES = {
    "map": "AP_all",
    "ap50": "AP_50",
    "ap75": "AP_75",
    "map_small": "AP_small",
    "map_medium": "AP_medium",
    "map_large": "AP_large",
}
"""Our name → faster-coco-eval's."""
ABSENT = -1
"""Its figure where no object is of that kind."""


def evaluate_coco(
    found: Sequence[Detections], truths: Sequence[GroundTruth], classes: Sequence[int]
) -> dict[str, float]:
    """Return AP@[.5:.95], AP50, AP75 and the AP of small, medium and large objects; NaN where no object is of that kind."""
    truth = _make_dataset(
        {
            "images": [{"id": number} for number in range(1, len(truths) + 1)],
            "categories": [{"id": int(label), "name": str(label)} for label in classes],
            "annotations": list(_annotations(truths)),
        }
    )
    results = list(_results(found))
    evaluation = COCOeval_faster(truth, truth.loadRes(results), "bbox", print_function=_ignore_output)
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    figures: Mapping[str, Any] = evaluation.stats_as_dict
    return {name: float(figures[theirs]) if figures[theirs] > ABSENT else math.nan for name, theirs in FIGURES.items()}


def _annotations(truths: Sequence[GroundTruth]) -> Iterator[dict[str, Any]]:
    number = 0
    for image, truth in enumerate(truths, start=1):
        for place, box in enumerate(truth.boxes):
            number += 1
            yield {
                "id": number,
                "image_id": image,
                "category_id": int(truth.classes[place]),
                "bbox": _corner_and_size(box),
                "area": float(truth.area[place]),
                "iscrowd": int(truth.crowd[place] or truth.difficult[place]),
            }


def _results(found: Sequence[Detections]) -> Iterator[dict[str, Any]]:
    for image, one in enumerate(found, start=1):
        for box, score, label in zip(one.boxes, one.scores, one.classes, strict=True):
            yield {
                "image_id": image,
                "category_id": int(label),
                "bbox": _corner_and_size(box),
                "score": float(score),
            }


def _corner_and_size(box: Array) -> list[float]:
    left, top, right, bottom = (float(side) for side in box)
    return [left, top, right - left, bottom - top]


def _make_dataset(dataset: dict[str, Any]) -> Any:
    return COCO(dataset, print_function=_ignore_output)


def _ignore_output(*_: object) -> None:
    """Take what the library would print: a task prints nothing."""
