"""COCO's metrics of boxes and masks for final evaluation (Section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from autoloss.tasks.coco_metrics import measure_coco
from autoloss.tasks.detection.metrics.average_precision import Array, Detections, GroundTruth, Shape

METRICS = {
    "map": "AP_all",
    "ap50": "AP_50",
    "ap75": "AP_75",
    "map_small": "AP_small",
    "map_medium": "AP_medium",
    "map_large": "AP_large",
}
"""Name of a metric → its name in faster-coco-eval."""
IOU_TYPES: Mapping[Shape, Literal["bbox", "segm"]] = {"boxes": "bbox", "masks": "segm"}


def evaluate_coco(
    detections: Sequence[Detections], truths: Sequence[GroundTruth], classes: Sequence[int], shape: Shape = "boxes"
) -> dict[str, float]:
    """Return AP@[.5:.95], AP50, AP75 and the AP of small, medium and large objects; NaN where there is no object of that size."""
    truth = {
        "images": [{"id": number, **_size(one)} for number, one in enumerate(truths, start=1)],
        "categories": [{"id": int(label), "name": str(label)} for label in classes],
        "annotations": _annotations(truths),
    }
    return measure_coco(truth, _results(detections, shape), IOU_TYPES[shape], METRICS)


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
                **({"segmentation": dict(truth.masks[place])} if truth.masks else {}),
            }


def _size(truth: GroundTruth) -> dict[str, int]:
    """Return the size of an image, which the library reads beside masks."""
    height, width = truth.masks[0]["size"] if truth.masks else (1, 1)
    return {"height": int(height), "width": int(width)}


def _results(detections: Sequence[Detections], shape: Shape) -> Iterator[dict[str, Any]]:
    for image, one in enumerate(detections, start=1):
        for place, (box, score, label) in enumerate(zip(one.boxes, one.scores, one.classes, strict=True)):
            # With a box beside its mask, a detection would have the area of the box.
            outline = {"bbox": _corner_and_size(box)} if shape == "boxes" else {"segmentation": dict(one.masks[place])}
            yield {"image_id": image, "category_id": int(label), "score": float(score), **outline}


def _corner_and_size(box: Array) -> list[float]:
    left, top, right, bottom = (float(side) for side in box)
    return [left, top, right - left, bottom - top]
