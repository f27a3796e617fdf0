"""Images with class masks, read from their files on access: the form of every segmentation data set (Appendix A).

A data set of any size is ready at once, and is sent to another process as a list of paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.files import Fault, FaultyFile, missing_file, open_image

IGNORED = 255
"""Label of a pixel that is ignored."""
INDEXED = ("1", "L", "P")
"""Modes of Pillow with one index per pixel."""
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
AN_INDEX_MASK = "an index PNG (palette or grey) with one class index per pixel"
ORIENTATION, UPRIGHT = 0x0112, 1
"""EXIF tag of the orientation, and its value for an image that is not rotated."""


class ImageSource(Protocol):
    """Images and masks by index: `ImageFiles`, or a resized copy of them."""

    def __len__(self) -> int: ...
    def pair(self, index: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of images and their class masks; all methods raise a `FaultyFile` for what cannot be used.

    `classes` are names by index. `read_mask` maps the file of a mask to class indices (H, W) in 8 bits, `IGNORED` for
    ignored pixels; it is a function of a module, so that it can be sent to another process.
    """

    kind: ClassVar[str] = "pairs of image and mask"
    name: str
    pairs: tuple[tuple[Path, Path], ...]
    classes: tuple[str, ...]
    read_mask: Callable[[Path], np.ndarray]

    def __len__(self) -> int:
        return len(self.pairs)

    def image(self, index: int) -> Tensor:
        """Read an image, (3, H, W) in 8 bits."""
        with open_image(self.pairs[index][0]) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)

    def mask(self, index: int) -> Tensor:
        """Read a mask, (H, W) in 8 bits, with labels of classes only."""
        file = self.pairs[index][1]
        mask = self.read_mask(file)
        if mask.dtype != np.uint8 or mask.ndim != 2:
            found = f"its reader returned {mask.dtype} of shape {mask.shape}"
            raise FaultyFile(Fault(file, found, "uint8 of shape (H, W)", "Correct read_mask."))
        # The largest label that is not ignored: 255 + 1 wraps to 0.
        if mask.size and int((mask + np.uint8(1)).max()) > len(self.classes):
            raise FaultyFile(_label_fault(file, mask, len(self.classes)))
        return torch.from_numpy(np.require(mask, requirements=["C", "W"]))

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Read an image and its mask, of one size."""
        image, mask = self.image(index), self.mask(index)
        self._check_size(index, (image.shape[2], image.shape[1]), (mask.shape[1], mask.shape[0]))
        return image, mask

    decode = pair

    def header(self, index: int) -> tuple[int, int]:
        """Return width and height in the header of an image, which is upright and has a mask of its size."""
        image, mask = self.pairs[index]
        with open_image(image) as picture:
            size = picture.size
            # Pillow would decode a whole PNG to look for EXIF data that it does not have.
            turned = picture.getexif().get(ORIENTATION, UPRIGHT) if "exif" in picture.info else UPRIGHT
        if turned != UPRIGHT:
            found = f"is stored rotated (EXIF orientation {turned})"
            remedy = "Save it rotated, without that tag, if its mask is upright; else remove the tag."
            raise FaultyFile(Fault(image, found, "an image stored as it is displayed", remedy))
        if not mask.is_file():
            raise FaultyFile(missing_file(mask, "the mask of an image"))
        # Pillow does not read MATLAB's format.
        if mask.suffix.lower() in SUFFIXES:
            with open_image(mask, "a mask", None) as picture:
                self._check_size(index, size, picture.size)
        return size

    def _check_size(self, index: int, size: tuple[int, int], of_mask: tuple[int, int]) -> None:
        image, mask = self.pairs[index]
        if size != of_mask:
            found = f"is {of_mask[0]}×{of_mask[1]} pixels"
            expected = f"the {size[0]}×{size[1]} of its image {image.name}"
            remedy = "Save the mask at the size of its image, without interpolating labels."
            raise FaultyFile(Fault(mask, found, expected, remedy))


def hold_out(images: ImageFiles, count: int, seed: int) -> tuple[ImageFiles, ImageFiles]:
    """Hold out images of a training split for validation, so that a search is never scored on the test split.

    Return the remaining images and those held out, in the order of the data set. Which ones depends on their names and the
    seed alone, not on their order or folder.
    """
    if not 1 <= count < len(images):
        raise RequestError(
            f"{count} of the {len(images)} images of {images.name} were to be held out; expected at least 1, and at "
            "least 1 left to train on. Hold out another number, or add images."
        )
    chosen = set(rank_by_hash([image.name for image, _ in images.pairs], seed)[:count])
    rest = tuple(pair for index, pair in enumerate(images.pairs) if index not in chosen)
    held_out = tuple(pair for index, pair in enumerate(images.pairs) if index in chosen)
    return (
        replace(images, name=f"{images.name} less {count} held out", pairs=rest),
        replace(images, name=f"{images.name}, {count} held out", pairs=held_out),
    )


def rank_by_hash(names: list[str], seed: int) -> list[int]:
    """Return the indices sorted by a hash of name and seed; adding a name does not change the order of the others."""
    keys = [hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in names]
    return sorted(range(len(names)), key=lambda index: (keys[index], index))


def read_indices(file: Path) -> np.ndarray:
    """Read an index PNG, palette or grey: (H, W) in 8 bits; a `FaultyFile` is raised if it is none."""
    with open_image(file, AN_INDEX_MASK, INDEXED) as picture:
        return np.array(picture, dtype=np.uint8)


def _label_fault(file: Path, mask: np.ndarray, classes: int) -> Fault:
    labels, counts = np.unique(mask, return_counts=True)
    wrong = (labels >= classes) & (labels != IGNORED)
    listed = ", ".join(map(str, labels[wrong][:5])) + (", …" if wrong.sum() > 5 else "")
    found = f"holds the label{'s' if wrong.sum() > 1 else ''} {listed} ({counts[wrong].sum()} of {mask.size} pixels)"
    expected = f"0 to {classes - 1}, or {IGNORED} for ignored pixels"
    return Fault(file, found, expected, "Correct the mask, or the number of classes.")
