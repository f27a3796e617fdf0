"""Inspection of a data set's files in seconds, before any training; `autoloss check` lists the faults.

The header of every file is read. Decoding all images would take as long as an epoch, so the first ones and a random sample are
decoded, up to a number of pixels. Making the resized copy for a proxy reads all images, and reports the same faults.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Protocol

from autoloss.errors import RequestError
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.files.faults import FAULTS_SHOWN, Fault, FaultyFile, missing_file, report_faults
from autoloss.tasks.segmentation.data.folder import SUFFIXES
from autoloss.tasks.segmentation.data.image_files import AN_IMAGE, DECODABLE, ImageFiles, open_image, size_fault

FIRST = 8
"""Images that are always decoded, so that a fault of all images is reported for the same ones each time."""
PIXELS = 60_000_000
"""Pixels that are decoded, approximately: 300 images of VOC or 30 of Cityscapes, in a few seconds."""
ORIENTATION, UPRIGHT = 0x0112, 1
"""EXIF tag of the orientation, and its value for an image that is not rotated."""


class Named(Protocol):
    """A data set with a name."""

    @property
    def name(self) -> str:
        """Name in messages."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of an inspection.

    Args:
        name: Name of the data set.
        faults: Faults in the order of the data set.
        images: Number of images in the data set.
        headers: Number of headers read.
        decoded: Number of images decoded.
        kind: Noun for the inspected items, such as pairs of image and mask.
    """

    name: str
    faults: tuple[Fault, ...]
    images: int
    headers: int
    decoded: int
    kind: str

    def __str__(self) -> str:
        return (
            f"{self.name}: read the headers of {self.headers} and decoded {self.decoded} of {self.images} {self.kind}."
        )

    def check(self) -> None:
        """Raise a RequestError that lists the faults, if there are any."""
        if self.faults:
            raise report_faults(self.name, self.faults, str(self))


def inspect_masks(pictures: ImageFiles, limit: int = FAULTS_SHOWN, *, pixels: int = PIXELS) -> Inspection:
    """Inspect a data set of images with masks.

    Args:
        limit: Number of faults after which the inspection ends.
        pixels: Pixels to decode, approximately.

    Raises:
        RequestError: There are no images.
    """
    header = functools.partial(_read_sizes, pictures)
    return _inspect(pictures, "pairs of image and mask", header, pictures.pair, limit, pixels)


def inspect_boxes(images: BoxedImages, limit: int = FAULTS_SHOWN, *, pixels: int = PIXELS) -> Inspection:
    """Inspect a data set of images with boxes; arguments and errors as for `inspect_masks`."""
    return _inspect(images, "images", images.header, images.image, limit, pixels)


def _inspect(
    images: Named,
    kind: str,
    header: Callable[[int], tuple[int, int] | Fault],
    decode: Callable[[int], object],
    limit: int,
    pixels: int,
) -> Inspection:
    if not len(images):
        raise RequestError(f"{images.name} holds no images; expected at least one.")
    found: dict[int, Fault] = {}
    sizes: dict[int, tuple[int, int]] = {}
    headers = decoded = 0
    for index in range(len(images)):
        size = header(index)
        if isinstance(size, Fault):
            found[index] = size
        else:
            sizes[index] = size
        headers += 1
        if len(found) >= limit:
            break
    for index in islice(_draw_sample(sizes, pixels), 0 if len(found) >= limit else None):
        decoded += 1
        try:
            decode(index)
        except FaultyFile as error:
            found[index] = error.fault
            if len(found) >= limit:
                break
    return Inspection(images.name, tuple(found[index] for index in sorted(found)), len(images), headers, decoded, kind)


def _read_sizes(pictures: ImageFiles, index: int) -> tuple[int, int] | Fault:
    """Return the size in the header of an image, or the fault of its header or its mask's."""
    image, mask = pictures.pairs[index]
    try:
        with open_image(image, AN_IMAGE, DECODABLE) as picture:
            size = picture.size
            # Pillow would decode a whole PNG to look for EXIF data that it does not have.
            turned = picture.getexif().get(ORIENTATION, UPRIGHT) if "exif" in picture.info else UPRIGHT
    except FaultyFile as error:
        return error.fault
    if turned != UPRIGHT:
        remedy = "Save it rotated, without that tag, if its mask is upright; else remove the tag."
        return Fault(
            image, f"is stored rotated (EXIF orientation {turned})", "an image stored as it is displayed", remedy
        )
    mask_size = _read_mask_size(mask)
    if isinstance(mask_size, Fault):
        return mask_size
    return size_fault((image, mask), size, mask_size) if mask_size not in (None, size) else size


def _read_mask_size(mask: Path) -> tuple[int, int] | Fault | None:
    """Return the size in the header of a mask, None for formats that Pillow does not read (MATLAB)."""
    if not mask.is_file():
        return missing_file(mask, "the mask of an image")
    if mask.suffix.lower() not in SUFFIXES:
        return None
    try:
        with open_image(mask, "a mask", None) as picture:
            return picture.size
    except FaultyFile as error:
        return error.fault


def _draw_sample(sizes: dict[int, tuple[int, int]], pixels: int) -> Iterator[int]:
    """Yield the images to decode: the first ones, then others at random, at least one."""
    order = list(sizes)
    rest = order[FIRST:]
    # The same images each time, so that corrected files are inspected again.
    Random(0).shuffle(rest)
    for index in order[:FIRST] + rest:
        yield index
        pixels -= sizes[index][0] * sizes[index][1]
        if pixels <= 0:
            return
