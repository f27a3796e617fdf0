"""Images with class masks, read from their files on access: the form of every segmentation data set (Appendix A).

A data set of any size is ready at once, and is sent to another process as a list of paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.files.faults import Fault, FaultyFile, report_decoding

IGNORED = 255
"""Label of a pixel that is ignored."""
DECODABLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Modes of Pillow with at most 8 bits per channel."""
INDEXED = ("1", "L", "P")
"""Modes of Pillow with one index per pixel."""
AN_IMAGE = "an image of 8 bits per channel, such as JPEG or PNG"
AN_INDEX_MASK = "an index PNG (palette or grey) with one class index per pixel"


class ImageSource(Protocol):
    """Images and masks by index: `ImageFiles`, or a resized copy of them."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def pair(self, index: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """The files of images and their class masks.

    Args:
        name: Name in messages, such as "VOC 2012 train".
        pairs: Files of each image and its mask.
        classes: Names of the classes, by index.
        read_mask: File of a mask → (H, W) class indices in 8 bits, `IGNORED` for ignored pixels. A function of a module, so
            that it can be sent to another process.
    """

    name: str
    pairs: tuple[tuple[Path, Path], ...]
    classes: tuple[str, ...]
    read_mask: Callable[[Path], np.ndarray]

    def __len__(self) -> int:
        return len(self.pairs)

    def image(self, index: int) -> Tensor:
        """Read an image, (3, H, W) in 8 bits.

        Raises:
            FaultyFile: The file is missing, or cannot be decoded.
        """
        with open_image(self.pairs[index][0], AN_IMAGE, DECODABLE) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)

    def mask(self, index: int) -> Tensor:
        """Read a mask, (H, W) in 8 bits.

        Raises:
            FaultyFile: The file is missing, cannot be decoded, or contains a label that is no class.
        """
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
        """Read an image and its mask.

        Raises:
            FaultyFile: As for `image` and `mask`; or their sizes differ.
        """
        image, mask = self.image(index), self.mask(index)
        (height, width), (mask_height, mask_width) = image.shape[-2:], mask.shape
        if (height, width) != (mask_height, mask_width):
            raise FaultyFile(size_fault(self.pairs[index], (width, height), (mask_width, mask_height)))
        return image, mask


def hold_out(images: ImageFiles, count: int, seed: int) -> tuple[ImageFiles, ImageFiles]:
    """Hold out images of a training split for validation, so that a search is never scored on the test split.

    Which images are held out depends on their names and the seed alone, not on their order or folder.

    Args:
        count: Number of images to hold out, fewer than all.

    Returns:
        The remaining images and those held out, both in the order of the data set.

    Raises:
        RequestError: There are not enough images.
    """
    if not 1 <= count < len(images):
        raise RequestError(
            f"{count} of the {len(images)} images of {images.name} were to be held out; expected at least 1, and at "
            "least 1 left to train on. Hold out another number, or add images."
        )
    names = [image.name for image, _ in images.pairs]
    chosen = set(rank_by_hash(names, seed)[:count])
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
    """Read an index PNG, palette or grey: (H, W) in 8 bits.

    Raises:
        FaultyFile: The file is missing, cannot be decoded, or holds colours.
    """
    with open_image(file, AN_INDEX_MASK, INDEXED) as picture:
        return np.array(picture, dtype=np.uint8)


@contextmanager
def open_image(file: Path, expected: str, modes: tuple[str, ...] | None) -> Iterator[Image.Image]:
    """Open an image; any error becomes a fault.

    Args:
        expected: Expected content, for messages.
        modes: Accepted modes of Pillow; any when None.
    """
    with report_decoding(file, expected), Image.open(file) as picture:
        if modes is not None and picture.mode not in modes:
            found = f"holds {picture.mode} values"
            raise FaultyFile(Fault(file, found, expected, "Convert it; a mask must not hold colours."))
        yield picture


def size_fault(pair: tuple[Path, Path], size: tuple[int, int], of_mask: tuple[int, int]) -> Fault:
    """Return the fault of a mask whose (width, height) differs from that of its image."""
    image, mask = pair
    return Fault(
        mask,
        f"is {of_mask[0]}×{of_mask[1]} pixels",
        f"the {size[0]}×{size[1]} of its image {image.name}",
        "Save the mask at the size of its image, without interpolating labels.",
    )


def _label_fault(file: Path, mask: np.ndarray, classes: int) -> Fault:
    labels, counts = np.unique(mask, return_counts=True)
    wrong = (labels >= classes) & (labels != IGNORED)
    listed = ", ".join(map(str, labels[wrong][:5])) + (", …" if wrong.sum() > 5 else "")
    return Fault(
        file,
        f"holds the label{'s' if wrong.sum() > 1 else ''} {listed} ({counts[wrong].sum()} of {mask.size} pixels)",
        f"0 to {classes - 1}, or {IGNORED} for ignored pixels",
        "Correct the mask, or the number of classes.",
    )
