"""Average precision agrees with pycocotools, crowds and areas included; VOC's follows its own rules."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from autoloss.tasks.detection.average_precision import (
    COCO,
    COCO_AREAS,
    VOC07,
    BoxMetric,
    Detections,
    GroundTruth,
    PrecisionSettings,
    ScoreMetric,
    average_precisions,
    match_detections,
    mean_average_precision,
)

CLASSES = 3


def boxes_of(rng: np.random.Generator, count: int, spread: float = 140.0) -> np.ndarray:
    corner = rng.uniform(0, spread, (count, 2))
    return np.concatenate([corner, corner + rng.uniform(6, 120, (count, 2))], axis=1)


def scene(seed: int, *, crowds: bool = True, least: int = 0) -> tuple[Detections, GroundTruth]:
    """Draw an image whose detections are shaken copies of its objects, twice each, and some that find nothing."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(least, 9))
    boxes, classes = boxes_of(rng, count), rng.integers(1, CLASSES + 1, count)
    crowd = (rng.random(count) < 0.25) & crowds
    area = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) * rng.uniform(0.5, 1.0, count)
    shaken = [boxes + rng.normal(0, scale, boxes.shape) for scale in (1.5, 6)]
    found = np.concatenate([*shaken, boxes_of(rng, 6)])
    labels = np.concatenate([classes, classes, rng.integers(1, CLASSES + 1, 6)])
    # Scores repeat, so that ties are met too.
    scores = rng.integers(1, 12, len(found)) / 12
    return Detections(found, scores, labels), GroundTruth(boxes, classes, crowd, area)


def reference(scenes: Sequence[tuple[Detections, GroundTruth]], area: str, most: int) -> np.ndarray:
    """Return pycocotools' precision, averaged over recalls, as (T, K)."""
    coco_module = pytest.importorskip("pycocotools.coco")
    from pycocotools.cocoeval import COCOeval

    annotations, results = [], []
    for image, (found, truth) in enumerate(scenes, start=1):
        for box, label, crowd, size in zip(truth.boxes, truth.classes, truth.crowd, truth.area, strict=True):
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image, "category_id": int(label), "bbox": xywh(box)}
                | {"iscrowd": int(crowd), "area": float(size), "ignore": 0}
            )
        for box, score, label in zip(found.boxes, found.scores, found.classes, strict=True):
            results.append({"image_id": image, "category_id": int(label), "bbox": xywh(box), "score": float(score)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth_set = coco_module.COCO()
        truth_set.dataset = {
            "images": [{"id": image + 1} for image in range(len(scenes))],
            "categories": [{"id": label} for label in range(1, CLASSES + 1)],
            "annotations": annotations,
        }
        truth_set.createIndex()
        evaluation = COCOeval(truth_set, truth_set.loadRes(results), "bbox")
        evaluation.params.maxDets = [most]
        evaluation.evaluate()
        evaluation.accumulate()
    column = evaluation.params.areaRngLbl.index(area)
    found = evaluation.eval["precision"][:, :, :, column, 0]
    return np.where((found < 0).all(axis=1), np.nan, found.mean(axis=1))


def xywh(box: np.ndarray) -> list[float]:
    left, top, right, bottom = map(float, box)
    return [left, top, right - left, bottom - top]


@pytest.mark.parametrize("area", list(COCO_AREAS))
@pytest.mark.parametrize("most", [100, 3])
def test_precisions_are_those_of_pycocotools(area, most):
    scenes = [scene(seed) for seed in range(12)]
    setting = PrecisionSettings(area=COCO_AREAS[area], most=most)
    images = [match_detections(found, truth, setting) for found, truth in scenes]
    found = average_precisions(images, range(1, CLASSES + 1), setting)
    expected = reference(scenes, area, most)
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(8))
def test_a_single_image_is_that_of_pycocotools(seed):
    one = scene(seed + 100, crowds=seed % 2 == 0, least=3)
    found = mean_average_precision([one[0]], [one[1]], range(1, CLASSES + 1))
    assert found == pytest.approx(np.nanmean(reference([one], "all", 100)), abs=1e-12)


def test_without_objects_there_is_no_precision():
    nothing = GroundTruth(np.zeros((0, 4)), np.zeros(0, int))
    found = Detections(boxes_of(np.random.default_rng(0), 3), np.ones(3), np.ones(3, int))
    assert math.isnan(mean_average_precision([found], [nothing], [1]))


def test_without_detections_it_is_zero():
    truth = GroundTruth(np.array([[0.0, 0, 10, 10]]), np.array([1]))
    nothing = Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
    assert mean_average_precision([nothing], [truth], [1]) == 0.0


def found_at(boxes: list[list[float]], scores: list[float]) -> Detections:
    return Detections(np.array(boxes, float), np.array(scores), np.ones(len(boxes), int))


def test_voc_reads_eleven_points():
    truth = GroundTruth(np.array([[0.0, 0, 10, 10], [50, 50, 60, 60]]), np.array([1, 1]))
    found = found_at([[0, 0, 10, 10], [80, 80, 90, 90], [50, 50, 60, 60]], [0.9, 0.8, 0.7])
    # Precision 1 up to recall 0.5 (6 points), 2/3 beyond (5 points).
    assert mean_average_precision([found], [truth], [1], VOC07) == pytest.approx((6 + 5 * 2 / 3) / 11)


def test_voc_leaves_difficult_objects_out_however_often_they_are_found():
    boxes = np.array([[0.0, 0, 10, 10], [50, 50, 60, 60]])
    truth = GroundTruth(boxes, np.array([1, 1]), difficult=np.array([False, True]))
    found = found_at([[50, 50, 60, 60], [50, 50, 60, 61], [0, 0, 10, 10]], [0.9, 0.8, 0.7])
    assert mean_average_precision([found], [truth], [1], VOC07) == pytest.approx(1.0)


def test_a_voc_detection_takes_no_object_but_its_nearest():
    truth = GroundTruth(np.array([[0.0, 0, 10, 10], [0, 0, 10, 14]]), np.array([1, 1]))
    found = found_at([[0, 0, 10, 10], [0, 0, 10, 10.5]], [0.9, 0.8])
    # COCO gives the second detection the second object; VOC calls it a repetition.
    assert mean_average_precision([found], [truth], [1], PrecisionSettings(thresholds=(0.5,))) == pytest.approx(1.0)
    assert mean_average_precision([found], [truth], [1], VOC07) == pytest.approx(6 / 11)


TRUTH = torch.tensor([[10.0, 10, 30, 30], [50, 50, 80, 90]])
CONTEXT = {
    "target": torch.tensor([1, 1, 2, 0, 0]),
    "box": torch.cat([TRUTH[[0, 0, 1]], torch.tensor([[0.0, 60, 20, 80], [70, 0, 90, 20]])]),
    "truth": TRUTH,
    "truth_target": torch.tensor([1, 2]),
}


def test_right_classes_reach_the_top_and_wrong_ones_the_bottom():
    right = torch.nn.functional.one_hot(CONTEXT["target"], 3)[:, 1:].float()
    assert ScoreMetric(0.5)(right, CONTEXT) == pytest.approx(1.0)
    assert ScoreMetric(0.5)(1 - right, CONTEXT) < 0.5


def test_a_wrong_score_above_the_right_one_costs_precision():
    scores = torch.tensor([[0.5, 0], [0.4, 0], [0, 0.5], [0.7, 0], [0, 0]])
    # One box outranks the object of class 1: precision 1/2; class 2 is perfect.
    assert ScoreMetric(0.5)(scores, CONTEXT) == pytest.approx(0.75)


def test_boxes_on_their_targets_are_perfect_and_negatives_do_not_matter():
    boxes = CONTEXT["box"].clone()
    boxes[3:] = TRUTH[0]
    assert BoxMetric(0.5)(boxes, CONTEXT) == pytest.approx(1.0)


def test_repetitions_survive_nms_only_when_they_lie_apart():
    boxes = CONTEXT["box"].clone()
    boxes[0] += 7
    # It scores like the other box of class 1 and comes first: 1/2, and class 2 is perfect.
    assert BoxMetric(0.5)(boxes, CONTEXT) == pytest.approx(0.75)
    boxes[0] = TRUTH[0] + 1
    assert 0.75 < BoxMetric(0.5)(boxes, CONTEXT) < 1.0


def test_the_default_setting_is_cocos():
    assert COCO.thresholds == pytest.approx(np.arange(0.5, 1.0, 0.05))


@pytest.mark.parametrize("name", ["map", "ap50", "ap75", "map_small", "map_medium", "map_large"])
def test_the_final_figures_are_pycocotools(name):
    detection = pytest.importorskip("autoloss.tasks.detection.task")
    scenes = [scene(seed) for seed in range(12)]
    found, truths = zip(*scenes, strict=True)
    settings = {**detection.METRICS, **detection.make_final_metrics("boxes")}[name]
    figure = mean_average_precision(found, truths, range(1, CLASSES + 1), settings)
    expected = reference(scenes, name.removeprefix("map_") if "_" in name else "all", 100)
    thresholds = {"ap50": slice(0, 1), "ap75": slice(5, 6)}.get(name, slice(None))
    assert figure == pytest.approx(np.nanmean(expected[thresholds]), abs=1e-12)
    nothing = [Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)) for _ in scenes]
    assert mean_average_precision(nothing, truths, range(1, CLASSES + 1), settings) == 0.0
