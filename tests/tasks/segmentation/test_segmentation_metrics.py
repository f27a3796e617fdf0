"""The six metrics against torchmetrics and scikit-learn, and the boundary metrics against slow loops and shapes drawn by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, jaccard_score
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, SegmentationMetric

CLASSES = 5


def scores(labels: Tensor, classes: int = CLASSES) -> Tensor:
    """Return scores (N, C, H, W) whose largest is at the labels (N, H, W)."""
    return F.one_hot(labels, classes).movedim(-1, 1).float()


def blobs(seed: int, count: int = 3, side: int = 12, classes: int = CLASSES) -> Tensor:
    """Draw labels with regions of a few pixels."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, classes, (count, side // 3, side // 3), generator=generator)
    return coarse.repeat_interleave(3, dim=1).repeat_interleave(3, dim=2)


def drawn(rows: list[str]) -> Tensor:
    """Read one image of class digits."""
    return torch.tensor([[int(pixel) for pixel in row] for row in rows])[None]


def streamed(name: str, prediction: Tensor, target: Tensor, **setting: int) -> float:
    metric = SegmentationMetric(name, **setting)
    batches = zip(prediction.split(2), target.split(2), strict=True)
    return metric.evaluate(sum(metric.count(scores(one), other) for one, other in batches))


def edges(labels: np.ndarray, cls: int, width: int, ignored: np.ndarray) -> np.ndarray:
    """Mark the pixels of a class within `width` of a pixel that is not of it, one by one."""
    height, across = labels.shape
    marked = np.zeros(labels.shape, dtype=bool)
    inside = (labels == cls) & ~ignored
    for row in range(height):
        for column in range(across):
            window = inside[max(0, row - width) : row + width + 1, max(0, column - width) : column + width + 1]
            marked[row, column] = inside[row, column] and not window.all()
    return marked


def slow_bf1(prediction: Tensor, target: Tensor, tolerance: int, ignore: int | None, left_out: int | None) -> float:
    hits = np.zeros((CLASSES, 4))
    for predicted, wanted in zip(prediction.numpy(), target.numpy(), strict=True):
        ignored = wanted == (-1 if ignore is None else ignore)
        for cls in range(CLASSES):
            pair = edges(predicted, cls, 1, ignored), edges(wanted, cls, 1, ignored)
            for place, (one, other) in enumerate((pair, pair[::-1])):
                for row, column in zip(*np.nonzero(one), strict=True):
                    near = other[
                        max(0, row - tolerance) : row + tolerance + 1,
                        max(0, column - tolerance) : column + tolerance + 1,
                    ]
                    hits[cls, 2 * place] += 1
                    hits[cls, 2 * place + 1] += near.any()
    values = []
    for cls, (found, matched, wanted, met) in enumerate(hits):
        if cls == left_out or found + wanted == 0:
            continue
        precision, recall = matched / max(found, 1), met / max(wanted, 1)
        values.append(2 * precision * recall / (precision + recall) if precision + recall else 0.0)
    return float(np.mean(values))


def slow_biou(prediction: Tensor, target: Tensor, tolerance: int, ignore: int | None, left_out: int | None) -> float:
    both, either = np.zeros(CLASSES), np.zeros(CLASSES)
    for predicted, wanted in zip(prediction.numpy(), target.numpy(), strict=True):
        ignored = wanted == (-1 if ignore is None else ignore)
        band = np.any([edges(wanted, cls, tolerance, ignored) for cls in range(CLASSES)], axis=0)
        for cls in range(CLASSES):
            both[cls] += (band & (predicted == cls) & (wanted == cls)).sum()
            either[cls] += (band & ((predicted == cls) | (wanted == cls))).sum()
    return float(np.mean([both[c] / either[c] for c in range(CLASSES) if either[c] and c != left_out]))


def test_region_metrics_agree_with_scikit_learn_and_torchmetrics():
    prediction, target = blobs(0), blobs(1)
    flat = target.flatten().numpy(), prediction.flatten().numpy()
    assert streamed("miou", prediction, target) == pytest.approx(jaccard_score(*flat, average="macro"))
    assert streamed("fwiou", prediction, target) == pytest.approx(jaccard_score(*flat, average="weighted"))
    assert streamed("gacc", prediction, target) == pytest.approx(accuracy_score(*flat))
    assert streamed("macc", prediction, target) == pytest.approx(balanced_accuracy_score(*flat))


def test_region_metrics_leave_ignored_pixels_out_as_torchmetrics_does():
    # Imported here: each process of the tests collects this file, and torchmetrics takes seconds.
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

    unlabelled = torch.rand(3, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.3
    prediction, target = blobs(2), blobs(3).masked_fill(unlabelled, 255)
    oracles = {
        "miou": MulticlassJaccardIndex(CLASSES, ignore_index=255),
        "fwiou": MulticlassJaccardIndex(CLASSES, ignore_index=255, average="weighted"),
        "gacc": MulticlassAccuracy(CLASSES, ignore_index=255, average="micro"),
        "macc": MulticlassAccuracy(CLASSES, ignore_index=255, average="macro"),
    }
    for name, oracle in oracles.items():
        assert streamed(name, prediction, target, ignore_index=255) == pytest.approx(
            oracle(prediction, target).item()
        ), name


@pytest.mark.parametrize("ignore", [None, 255])
def test_the_confusion_matrix_is_scikit_learns(ignore: int | None):
    prediction, target = blobs(2), blobs(3)
    if ignore is not None:
        target[:, 4:8, 2:9] = ignore
    counts = SegmentationMetric("miou", ignore_index=ignore).count(scores(prediction), target)
    kept = target != ignore if ignore is not None else torch.ones_like(target, dtype=torch.bool)
    assert counts.tolist() == confusion_matrix(target[kept], prediction[kept], labels=range(CLASSES)).tolist()


@pytest.mark.parametrize("tolerance", [1, 2, 5])
@pytest.mark.parametrize("ignore", [None, 255])
@pytest.mark.parametrize("left_out", [None, 0])
def test_boundary_metrics_agree_with_slow_loops(tolerance: int, ignore: int | None, left_out: int | None):
    prediction, target = blobs(4), blobs(5)
    target[:, :2, 3:8] = target[:, :2, 3:8] if ignore is None else ignore
    setting = {"tolerance": tolerance, "ignore_index": ignore, "left_out": left_out}
    expected = [slow(prediction, target, tolerance, ignore, left_out) for slow in (slow_biou, slow_bf1)]
    found = [streamed(name, prediction, target, **setting) for name in ("biou", "bf1")]
    assert found == pytest.approx(expected)


SQUARE = drawn(["0000000", "0111000", "0111000", "0111000", "0000000", "0000000", "0000000"])
SHIFTED = drawn(["0000000", "0011100", "0011100", "0011100", "0000000", "0000000", "0000000"])
FAR = drawn(["0000000", "0000000", "0000000", "0000000", "0000011", "0000011", "0000000"])


def test_a_square_shifted_by_one_pixel_has_the_counts_done_by_hand():
    # Six of the nine pixels remain: IoU 6/12 for the square; 37 of the background's 43 in all.
    assert streamed("miou", SHIFTED, SQUARE) == pytest.approx((6 / 12 + 37 / 43) / 2)
    assert streamed("gacc", SHIFTED, SQUARE) == pytest.approx(43 / 49)
    # The 3×3 square's inner edge is its 8 outer pixels; of the shifted one's 8, all lie within 1 pixel of those.
    assert streamed("bf1", SHIFTED, SQUARE, tolerance=1, left_out=0) == 1.0
    # Band of 1: the square's 8 outer pixels and the 16 around it. Of the 8, 5 are hit; of the 16, 3 are taken too.
    assert streamed("biou", SHIFTED, SQUARE, tolerance=1, left_out=0) == pytest.approx(5 / 11)


def square(left: int, top: int = 9, side: int = 5) -> Tensor:
    labels = torch.zeros(1, 24, 24, dtype=torch.long)
    labels[0, top : top + side, left : left + side] = 1
    return labels


# The 5×5 square's edge has 16 pixels. Shifted by 6, its nearest column is 2 away from the other's and its farthest 6.
@pytest.mark.parametrize(
    ("shift", "tolerance", "matched"), [(1, 1, 16), (6, 5, 11), (6, 6, 16), (6, 2, 5), (6, 1, 0), (10, 5, 0), (9, 5, 5)]
)
def test_a_square_shifted_along_a_row_matches_the_columns_within_the_tolerance(
    shift: int, tolerance: int, matched: int
):
    found = streamed("bf1", square(6 + shift), square(6), tolerance=tolerance, left_out=0)
    assert found == pytest.approx(matched / 16)


@pytest.mark.parametrize(
    ("shift", "both", "found"),
    # Tolerance 2 leaves a ring of 2 pixels inside and one around: 24 of the square's 25 pixels, 9² − 5² outside it.
    [(0, 24, 0), (1, 19, 5), (6, 0, 5), (7, 0, 0)],
)
def test_a_shifted_square_in_the_band_by_hand(shift: int, both: int, found: int):
    value = streamed("biou", square(6 + shift), square(6), tolerance=2, left_out=0)
    assert value == pytest.approx(both / (24 + found))


def test_a_square_that_grew_by_one_pixel_all_around():
    grown, own = square(5, 8, 7), square(6)
    assert streamed("bf1", grown, own, tolerance=1, left_out=0) == 1.0
    # All 24 edge pixels of the 7×7 square lie in the band of 2; so do the 24 of the target that it hits.
    assert streamed("biou", grown, own, tolerance=2, left_out=0) == pytest.approx(24 / 48)


def test_a_line_is_its_own_edge_and_half_of_it_has_half_the_recall():
    line, half = torch.zeros(2, 1, 24, 24, dtype=torch.long)
    line[0, 12, 2:22], half[0, 12, 2:12] = 1, 1
    # Precision 1; the tolerance reaches one pixel further along the line.
    assert streamed("bf1", half, line, tolerance=1, left_out=0) == pytest.approx(2 * 11 / 20 / (1 + 11 / 20))


@pytest.mark.parametrize("name", SEGMENTATION_METRICS)
def test_what_is_predicted_at_ignored_pixels_does_not_matter(name: str):
    prediction, target = blobs(10), blobs(11)
    target[:, 4:9, :7] = 255
    other = torch.where(target == 255, (prediction + 1) % CLASSES, prediction)
    values = [streamed(name, shown, target, tolerance=2, ignore_index=255) for shown in (prediction, other)]
    assert values[0] == values[1] < 1


def test_a_shape_beyond_the_tolerance_matches_no_boundary():
    assert streamed("bf1", FAR, SQUARE, tolerance=1, left_out=0) == 0.0
    assert streamed("bf1", FAR, SQUARE, tolerance=3, left_out=0) > 0.0


def test_the_image_border_is_no_class_border():
    whole = torch.ones(1, 6, 6, dtype=torch.long)
    assert math.isnan(streamed("bf1", whole, whole, tolerance=1))
    assert math.isnan(streamed("biou", whole, whole, tolerance=1))


@pytest.mark.parametrize("name", SEGMENTATION_METRICS)
def test_the_target_as_prediction_is_the_best_there_is(name: str):
    target = blobs(6)
    assert streamed(name, target, target, tolerance=1) == 1.0
    assert SegmentationMetric(name, tolerance=1)(scores(target[:1]), target[:1]) == 1.0
    assert streamed(name, blobs(7), target, tolerance=1) < 1.0


@pytest.mark.parametrize("name", SEGMENTATION_METRICS)
def test_counts_add_up_whatever_the_batches(name: str):
    prediction, target = blobs(8, count=4), blobs(9, count=4)
    target[2, :5] = 255
    metric = SegmentationMetric(name, tolerance=2, ignore_index=255)
    counts = metric.count(scores(prediction), target)
    assert metric.evaluate(counts) == streamed(name, prediction, target, tolerance=2, ignore_index=255)


def test_one_image_is_averaged_over_the_classes_of_its_target_and_a_split_over_all_that_occur():
    target = torch.zeros(1, 4, 4, dtype=torch.long)
    prediction = target.clone()
    prediction[0, 0, :2] = 3
    assert SegmentationMetric("miou")(scores(prediction), target) == pytest.approx(14 / 16)
    assert streamed("miou", prediction, target) == pytest.approx(14 / 16 / 2)


def test_an_unknown_metric_gets_the_nearest_name():
    with pytest.raises(RequestError, match="Did you mean 'miou'"):
        SegmentationMetric("mioux")
