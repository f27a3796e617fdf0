"""What is wrong with a data set, found in seconds and before any training: `autoloss check` lists it.

Every file's header is looked at; decoding all would take as long as an epoch, so the first and random other pictures are decoded,
up to a fixed number of pixels. The small copy of a proxy reads all of them, and refuses the same faults.
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
from autoloss.tasks.segmentation.data.pictures import AN_IMAGE, DECODABLE, ImageFiles, open_image, size_fault

FIRST = 8
"""Pictures that are decoded whatever is drawn: what is wrong with all of them is found in the same ones each time."""
PIXELS = 60_000_000
"""Of images that are decoded, about: some 300 of VOC or 30 of Cityscapes, in a few seconds."""
ORIENTATION, UPRIGHT = 0x0112, 1
"""EXIF's entry, and its value for an image that is shown as it is stored."""


class Named(Protocol):
    """A data set that messages can name."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found, and how much was looked at.

    Args:
        pictures: Images in the data set.
        headers: How many headers were read.
        decoded: How many were decoded.
        kind: What was looked at, such as pairs of image and mask.
    """

    name: str
    faults: tuple[Fault, ...]
    pictures: int
    headers: int
    decoded: int
    kind: str

    def __str__(self) -> str:
        return f"{self.name}: looked at the headers of {self.headers} and decoded {self.decoded} of {self.pictures} {self.kind}."

    def check(self) -> None:
        """Raise a RequestError that lists the faults, if there are any."""
        if self.faults:
            raise report_faults(self.name, self.faults, str(self))


def faults(pictures: ImageFiles, limit: int = FAULTS_SHOWN) -> list[Fault]:
    """Return what is wrong with a data set's files, `limit` faults at most."""
    return list(inspect_masks(pictures, limit).faults)


def inspect_masks(pictures: ImageFiles, limit: int = FAULTS_SHOWN, *, pixels: int = PIXELS) -> Inspection:
    """Look a data set of images with masks over.

    Args:
        limit: Faults after which no more are looked for.
        pixels: Of images that are decoded, about.

    Raises:
        RequestError: There are no images.
    """
    header = functools.partial(_read_sizes, pictures)
    return _inspect(pictures, "pairs of image and mask", header, pictures.pair, limit, pixels)


def inspect_boxes(images: BoxedImages, limit: int = FAULTS_SHOWN, *, pixels: int = PIXELS) -> Inspection:
    """Look a data set of images with boxes over; arguments and errors as those of `inspect_masks`."""
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
    """Return the size that an image's header says, or what is wrong with its or its mask's."""
    image, mask = pictures.pairs[index]
    try:
        with open_image(image, AN_IMAGE, DECODABLE) as picture:
            size = picture.size
            # Asked for what a PNG does not have, Pillow would decode all of it.
            turned = picture.getexif().get(ORIENTATION, UPRIGHT) if "exif" in picture.info else UPRIGHT
    except FaultyFile as error:
        return error.fault
    if turned != UPRIGHT:
        remedy = "Save it turned, without that entry, if its mask is upright; else remove the entry."
        return Fault(image, f"is stored turned (EXIF orientation {turned})", "an image stored as it is shown", remedy)
    of_mask = _read_mask_size(mask)
    if isinstance(of_mask, Fault):
        return of_mask
    return size_fault((image, mask), size, of_mask) if of_mask not in (None, size) else size


def _read_mask_size(mask: Path) -> tuple[int, int] | Fault | None:
    """Return what a mask's header says, None where only its own reader knows (MATLAB's files)."""
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
    """Yield which pictures to decode, the first ones and then others at random, at least one."""
    order = list(sizes)
    rest = order[FIRST:]
    # The same ones each time: what was mended is looked at again.
    Random(0).shuffle(rest)
    for index in order[:FIRST] + rest:
        yield index
        pixels -= sizes[index][0] * sizes[index][1]
        if pixels <= 0:
            return
