"""Masks of objects as run lengths, COCO's form: encoded, decoded, compared (Section 4.3).

Source: Lin et al., 2014, Microsoft COCO; the run lengths are those of pycocotools, computed by faster-coco-eval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from faster_coco_eval import mask
from numpy.typing import NDArray

Array = NDArray[Any]
coco_masks: Any = mask

RunLengths = Mapping[str, Any]
"""A mask: `size`, height and width, and `counts`, compressed run lengths of columns as bytes."""


def encode_masks(masks: Array) -> tuple[RunLengths, ...]:
    """Encode masks (N, H, W), nonzero for the object."""
    if not len(masks):
        return ()
    columns = np.asfortranarray((masks != 0).view(np.uint8).transpose(1, 2, 0))
    return tuple(coco_masks.encode(columns))


def decode_masks(masks: Sequence[RunLengths], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Decode masks of one image to (N, H, W), 1 for the object.

    Args:
        size: Height and width, for an image without objects.
    """
    if not len(masks):
        return np.zeros((0, *size), np.uint8)
    return np.ascontiguousarray(coco_masks.decode(list(masks)).transpose(2, 0, 1))


def draw_polygons(polygons: Sequence[Sequence[float]], size: tuple[int, int]) -> RunLengths:
    """Return the mask of polygons, each as x, y, x, y, …, in an image of this height and width."""
    return coco_masks.merge(coco_masks.frPyObjects([list(map(float, polygon)) for polygon in polygons], *size))


def compress_run_lengths(counts: Sequence[int], size: tuple[int, int]) -> RunLengths:
    """Return a mask whose run lengths are numbers, in an image of this height and width."""
    return coco_masks.frPyObjects({"size": list(size), "counts": list(counts)}, *size)


def mask_areas(masks: Sequence[RunLengths]) -> Array:
    """Return the numbers of pixels (N,) of masks."""
    return np.asarray(coco_masks.area(list(masks)), np.float64) if len(masks) else np.zeros(0)


def pairwise_mask_iou(masks: Sequence[RunLengths], others: Sequence[RunLengths], crowd: Array) -> Array:
    """Return the IoU (D, G) of all pairs; with a crowd, the share of the first mask inside it."""
    if not len(masks) or not len(others):
        return np.zeros((len(masks), len(others)))
    return np.asarray(coco_masks.iou(list(masks), list(others), [int(one) for one in crowd]), np.float64)
