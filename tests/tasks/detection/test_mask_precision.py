"""The average precision of masks is COCO's, by an oracle on plain arrays and by pycocotools: crowds, empty images, misses."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from autoloss.errors import RequestError

precision = pytest.importorskip("autoloss.tasks.detection.average_precision")
masks_module = pytest.importorskip("autoloss.tasks.detection.masks")

CLASSES = 3
HEIGHT, WIDTH = 80, 110
THRESHOLDS = [0.5 + 0.05 * step for step in range(10)]
# As COCO computes them: a recall that equals one of these counts as reached.
RECALLS = np.linspace(0, 1, 101).tolist()
AREAS = precision.COCO_AREAS


@dataclass
class Image:
    """Masks (N, H, W) with classes, of objects and of detections; a crowd's flag, an area and a score each."""

    objects: np.ndarray
    classes: np.ndarray
    crowd: np.ndarray
    area: np.ndarray
    found: np.ndarray
    labels: np.ndarray
    scores: np.ndarray


def blob(rng: np.random.Generator) -> np.ndarray:
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    middle, half = rng.uniform(0, (HEIGHT, WIDTH)), rng.uniform(3, 38, 2)
    return (((rows - middle[0]) / half[0]) ** 2 + ((columns - middle[1]) / half[1]) ** 2 <= 1).astype(np.uint8)


def drawn(seed: int) -> Image:
    """Draw an image: detections are shifted objects, some of another class, and some that find nothing; every fourth is empty."""
    rng = np.random.default_rng(seed)
    count = 0 if seed % 4 == 3 else int(rng.integers(1, 7))
    objects = np.array([blob(rng) for _ in range(count)], np.uint8).reshape(count, HEIGHT, WIDTH)
    classes = rng.integers(1, CLASSES + 1, count)
    shifted = [np.roll(one, tuple(rng.integers(-3, 4, 2)), (0, 1)) for one in objects for _ in range(2)]
    others = [blob(rng) for _ in range(int(rng.integers(0, 4)))]
    nothing = [np.zeros((HEIGHT, WIDTH), np.uint8)]
    found = np.array([*shifted, *others, *nothing], np.uint8)
    strange = rng.integers(1, CLASSES + 1, len(found))
    labels = np.where(
        np.arange(len(found)) < 2 * count, np.repeat(classes, 2).tolist() + [0] * (len(found) - 2 * count), 0
    )
    labels = np.where((labels == 0) | (rng.random(len(found)) < 0.1), strange, labels)
    return Image(
        objects,
        classes,
        rng.random(count) < 0.3,
        objects.sum(axis=(1, 2)) * rng.uniform(0.5, 1.2, count),
        found,
        labels,
        # Scores repeat, so that ties are met too.
        rng.integers(1, 9, len(found)) / 8,
    )


IMAGES = [drawn(seed) for seed in range(12)]


def overlap(found: np.ndarray, wanted: np.ndarray, crowd: bool) -> float:
    common = int((found & wanted).sum())
    whole = int(found.sum()) if crowd else int((found | wanted).sum())
    return common / whole if common else 0.0


def oracle(images: Sequence[Image], threshold: float, label: int, area: tuple[float, float], most: int) -> float:
    """Return the precision of a class at a threshold as COCO's rules say it, one detection after the other."""
    rows, wanted = [], 0
    for image in images:
        mine = [place for place in range(len(image.classes)) if image.classes[place] == label]
        skipped = {place: bool(image.crowd[place]) or not area[0] <= image.area[place] <= area[1] for place in mine}
        wanted += sum(not skip for skip in skipped.values())
        taken: set[int] = set()
        ranked = sorted(
            (place for place in range(len(image.scores)) if image.labels[place] == label),
            key=lambda p: -image.scores[p],
        )
        for place in ranked[:most]:
            best, match = min(threshold, 1 - 1e-10), None
            for candidate in sorted(mine, key=lambda p: skipped[p]):
                if candidate in taken and not image.crowd[candidate]:
                    continue
                if match is not None and not skipped[match] and skipped[candidate]:
                    break
                value = overlap(image.found[place], image.objects[candidate], bool(image.crowd[candidate]))
                if value >= best:
                    best, match = value, candidate
            if match is not None:
                taken.add(match)
            size = int(image.found[place].sum())
            ignored = skipped[match] if match is not None else not area[0] <= size <= area[1]
            if not ignored:
                rows.append((image.scores[place], match is not None))
    if not wanted:
        return math.nan
    rows.sort(key=lambda row: -row[0])
    hits = np.cumsum([hit for _, hit in rows])
    points = [(hits[rank] / wanted, hits[rank] / (rank + 1)) for rank in range(len(rows))]
    return sum(max((height for reach, height in points if reach >= recall), default=0.0) for recall in RECALLS) / 101


def to_detections(image: Image) -> precision.Detections:
    boxes = np.zeros((len(image.labels), 4), np.float32)
    return precision.Detections(boxes, image.scores, image.labels, masks_module.encode_masks(image.found))


def to_truth(image: Image) -> precision.GroundTruth:
    # Boxes say nothing here: overlaps and areas are those of masks.
    boxes = np.tile(np.array([[0.0, 0, 1, 1]]), (len(image.classes), 1))
    masks = masks_module.encode_masks(image.objects)
    return precision.GroundTruth(boxes, image.classes, image.crowd, image.area, masks=masks)


def ours(images: Sequence[Image], **settings: object) -> np.ndarray:
    chosen = precision.PrecisionSettings(shape="masks", **settings)
    matches = [precision.match_detections(to_detections(image), to_truth(image), chosen) for image in images]
    return precision.average_precisions(matches, range(1, CLASSES + 1), chosen)


@pytest.mark.parametrize(("area", "most"), [("all", 100), ("all", 2), ("small", 100), ("medium", 100)])
def test_precisions_are_those_of_an_oracle_on_plain_arrays(area, most):
    found = ours(IMAGES, area=AREAS[area], most=most)
    expected = [
        [oracle(IMAGES, threshold, label, AREAS[area], most) for label in (1, 2, 3)] for threshold in THRESHOLDS
    ]
    assert 0.1 < np.nanmean(expected) < 0.9
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


def pycocotools(images: Sequence[Image], area: str, most: int) -> np.ndarray:
    """Return pycocotools' precision, averaged over recalls, as (T, K)."""
    coco_module = pytest.importorskip("pycocotools.coco")
    from pycocotools import mask as tools
    from pycocotools.cocoeval import COCOeval

    def encode(mask: np.ndarray) -> dict[str, object]:
        return tools.encode(np.asfortranarray(mask))

    annotations, results = [], []
    for number, image in enumerate(images, start=1):
        for mask, label, crowd, size in zip(image.objects, image.classes, image.crowd, image.area, strict=True):
            row = {"id": len(annotations) + 1, "image_id": number, "category_id": int(label), "iscrowd": int(crowd)}
            annotations.append({**row, "segmentation": encode(mask), "area": float(size), "ignore": 0})
        for mask, label, score in zip(image.found, image.labels, image.scores, strict=True):
            row = {"image_id": number, "category_id": int(label), "score": float(score)}
            results.append({**row, "segmentation": encode(mask)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco_module.COCO()
        truth.dataset = {
            "images": [{"id": number + 1, "height": HEIGHT, "width": WIDTH} for number in range(len(images))],
            "categories": [{"id": label} for label in range(1, CLASSES + 1)],
            "annotations": annotations,
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), "segm")
        evaluation.params.maxDets = [most]
        evaluation.evaluate()
        evaluation.accumulate()
    column = evaluation.params.areaRngLbl.index(area)
    found = evaluation.eval["precision"][:, :, :, column, 0]
    return np.where((found < 0).all(axis=1), np.nan, found.mean(axis=1))


@pytest.mark.parametrize("area", list(AREAS))
@pytest.mark.parametrize("most", [100, 2])
def test_precisions_are_those_of_pycocotools(area, most):
    np.testing.assert_allclose(
        ours(IMAGES, area=AREAS[area], most=most), pycocotools(IMAGES, area, most), rtol=0, atol=1e-12
    )


def test_the_final_figures_are_pycocotools():
    detection = pytest.importorskip("autoloss.tasks.detection.task")
    found, truths = zip(*[(to_detections(image), to_truth(image)) for image in IMAGES], strict=True)
    nothing = [precision.Detections(np.zeros((0, 4)), np.zeros(0), np.zeros(0, int)) for _ in truths]
    settings = {**detection.MASK_METRICS, **detection.make_final_metrics("masks")}

    def measure(name, detections=found):
        return precision.mean_average_precision(detections, truths, range(1, CLASSES + 1), settings[name])

    whole = pycocotools(IMAGES, "all", 100)
    assert measure("map") == pytest.approx(np.nanmean(whole), abs=1e-9)
    assert measure("ap50") == pytest.approx(np.nanmean(whole[0]), abs=1e-9)
    assert measure("ap75") == pytest.approx(np.nanmean(whole[5]), abs=1e-9)
    for size in ("small", "medium", "large"):
        expected = pycocotools(IMAGES, size, 100)
        if np.isfinite(expected).any():
            assert measure(f"map_{size}") == pytest.approx(np.nanmean(expected), abs=1e-9)
        else:
            assert math.isnan(measure(f"map_{size}"))
    assert measure("map", nothing) == 0.0
    # Boxes have their own figures, of the same detections.
    assert measure("box_map") != measure("map")


def test_a_precision_of_masks_needs_masks():
    boxes = np.array([[0.0, 0, 10, 10]])
    found = precision.Detections(boxes, np.ones(1), np.ones(1, int))
    truth = precision.GroundTruth(boxes, np.ones(1, int))
    with pytest.raises(RequestError, match="1 detections have 0 masks"):
        precision.match_detections(found, truth, precision.PrecisionSettings(shape="masks"))
