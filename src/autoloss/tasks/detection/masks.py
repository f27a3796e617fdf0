"""Masks of objects as run lengths, COCO's form: encoded, decoded, compared, and read from outlines (Section 4.3).

Outlines are polygons, or run lengths that are compressed or not. As in pycocotools, polygons are cut off at
the border of their image.

Source: Lin et al., 2014, Microsoft COCO, and the data format of cocodataset.org; the run lengths are computed by faster-coco-eval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from faster_coco_eval import mask
from numpy.typing import NDArray

from autoloss.errors import quote

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
    """Decode masks of one image to (N, H, W), 1 for the object; `size` is height and width, for an image without objects."""
    if not len(masks):
        return np.zeros((0, *size), np.uint8)
    return np.ascontiguousarray(coco_masks.decode(list(masks)).transpose(2, 0, 1))


def mask_areas(masks: Sequence[RunLengths]) -> Array:
    """Return the numbers of pixels (N,) of masks."""
    return np.asarray(coco_masks.area(list(masks)), np.float64) if len(masks) else np.zeros(0)


def pairwise_mask_iou(masks: Sequence[RunLengths], others: Sequence[RunLengths], crowd: Array) -> Array:
    """Return the IoU (D, G) of all pairs; with a crowd, the share of the first mask inside it."""
    if not len(masks) or not len(others):
        return np.zeros((len(masks), len(others)))
    return np.asarray(coco_masks.iou(list(masks), list(others), [int(one) for one in crowd]), np.float64)


LEAST_NUMBERS = 6
"""Coordinates of a polygon, at least: three points."""
LARGEST = 1e7
"""Upper limit of coordinates: 32 bits would round larger ones, or make them infinite."""
MOST_PIXELS = 2**31 - 1
"""Upper limit of an image's pixels: the library counts them in 32 bits."""
DIGITS = 7
"""Characters of one compressed run length, at most; each holds five bits."""

Problem = tuple[str, str]
"""(what was found, what was expected)."""


def is_finite(side: Any) -> bool:
    """Return True for a number whose absolute value is below `LARGEST`."""
    # Comparisons accept integers of any length, and are false for NaN.
    return isinstance(side, int | float) and abs(side) < LARGEST


def find_outline_problems(outline: Any, image: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of an outline that concern its form."""
    if isinstance(outline, list):
        for polygon in outline:
            if isinstance(polygon, list) and not all(map(is_finite, polygon)):
                yield "has a polygon with what is no number", "points of two numbers"
            elif not isinstance(polygon, list) or len(polygon) < LEAST_NUMBERS or len(polygon) % 2:
                count = len(polygon) if isinstance(polygon, list) else 0
                yield f"has a polygon of {count} numbers", "at least three points of two numbers"
        return
    size = [image["height"], image["width"]]
    if not isinstance(outline, Mapping) or "counts" not in outline or outline.get("size") != size:
        found = outline.get("size") if isinstance(outline, Mapping) else type(outline).__name__
        yield f"has run lengths of size {quote(found)}", f"counts and the size {size}, height and width of its image"
    elif isinstance(outline["counts"], list):
        yield from _find_count_problems(outline["counts"], size)


def find_mask_problems(outline: Any, image: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the problems of an outline, none of `find_outline_problems`, as a mask of its image; None where there is no outline."""
    width, height = image["width"], image["height"]
    bounds = [_find_bounds(polygon) for polygon in outline] if isinstance(outline, list) else []
    if not outline:
        yield "has no mask", "a segmentation: polygons or run lengths"
    elif width * height > MOST_PIXELS:
        yield f"has the mask of an image of {width}×{height} pixels", f"at most {MOST_PIXELS} pixels"
    elif isinstance(outline, Mapping):
        if not isinstance(outline["counts"], list):
            counts = _parse_counts(outline["counts"])
            if counts is None:
                yield "has compressed run lengths that cannot be read", "counts as pycocotools writes them"
            else:
                yield from _find_count_problems(counts, [height, width])
    # The library draws every pixel of each side, however far from the image a point is.
    elif any(x < -width or y < -height or right > 2 * width or low > 2 * height for x, y, right, low in bounds):
        yield f"has a polygon that reaches far outside its image of {width}×{height} pixels", "a mask in its image"
    elif not any(x <= width and y <= height and right >= 0 and low >= 0 for x, y, right, low in bounds):
        yield f"has a mask outside its image of {width}×{height} pixels", "a mask that touches its image"


def reaches_outside(outline: Any, image: Mapping[str, Any]) -> bool:
    """Return True if a part of a mask is cut off at the border of its image; coordinates are rounded to pixels."""
    return isinstance(outline, list) and any(
        x < -1 or y < -1 or right > image["width"] + 1 or low > image["height"] + 1
        for x, y, right, low in map(_find_bounds, outline)
    )


def to_run_lengths(outline: Any, image: Mapping[str, Any]) -> RunLengths:
    """Return the mask of an outline without problems."""
    size = image["height"], image["width"]
    if isinstance(outline, list):
        return coco_masks.merge(coco_masks.frPyObjects([list(map(float, polygon)) for polygon in outline], *size))
    found = {"size": list(size), "counts": outline["counts"]}
    if isinstance(found["counts"], list):
        return coco_masks.frPyObjects(found, *size)
    return {**found, "counts": found["counts"].encode()}


def _find_count_problems(counts: Sequence[Any], size: Sequence[int]) -> Iterator[Problem]:
    if not all(isinstance(run, int) and run >= 0 for run in counts):
        yield "has run lengths that are no lengths", "whole numbers of at least 0"
    elif sum(counts) != size[0] * size[1]:
        yield f"has run lengths that cover {sum(counts)} pixels", f"{size[0] * size[1]}, all of its image"


def _parse_counts(text: Any) -> list[int] | None:
    """Return the run lengths of a compressed text, or None where it is not one; the library would read beyond its end."""
    if not isinstance(text, str) or not text.isascii():
        return None
    counts: list[int] = []
    value = place = 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or place == DIGITS:
            return None
        value |= (code & 31) << 5 * place
        place += 1
        if code & 32:
            continue
        if code & 16:
            value -= 1 << 5 * place
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = place = 0
    return None if place else counts


def _find_bounds(polygon: Sequence[float]) -> tuple[float, float, float, float]:
    """Return left, top, right and bottom."""
    xs, ys = polygon[::2], polygon[1::2]
    return min(xs), min(ys), max(xs), max(ys)
