"""Images with their class masks, by file: what every data set of segmentation becomes (Appendix A).

Nothing is read before it is asked for, so that a data set of any size is at hand at once, and travels to another process as a
list of paths.
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
from autoloss.tasks.files.faults import Fault, FaultyFile, missing_file, undecodable_file

IGNORED = 255
"""The label of a pixel that counts nowhere."""
DECODABLE = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")
"""Pillow's modes with at most 8 bits per channel."""
INDEXED = ("1", "L", "P")
"""Pillow's modes whose values are indices."""
AN_IMAGE = "an image of 8 bits per channel, such as JPEG or PNG"
AN_INDEX_MASK = "an index PNG (palette or grey) with one class index per pixel"


class ImageSource(Protocol):
    """Images and masks by index: `ImageFiles`, or the small copy of them."""

    @property
    def name(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    def __len__(self) -> int: ...
    def pair(self, index: int) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Images with their class masks, by file; nothing is read yet.

    Args:
        name: What messages call it, such as "VOC 2012 train".
        pairs: The files of each image and of its mask.
        classes: Names; a class is the index of its name.
        read_mask: The file of a mask → (H, W) class indices in 8 bits, `IGNORED` where nothing counts. A function of a
            module, so that it can travel to another process.
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
            FaultyFile: It is not there, or cannot be decoded.
        """
        with open_image(self.pairs[index][0], AN_IMAGE, DECODABLE) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1)

    def mask(self, index: int) -> Tensor:
        """Read a mask, (H, W) in 8 bits.

        Raises:
            FaultyFile: It is not there, cannot be decoded, or holds a label that is no class.
        """
        file = self.pairs[index][1]
        mask = self.read_mask(file)
        if mask.dtype != np.uint8 or mask.ndim != 2:
            found = f"its reader returned {mask.dtype} of shape {mask.shape}"
            raise FaultyFile(Fault(file, found, "uint8 of shape (H, W)", "Correct read_mask."))
        # The largest that counts: 255 + 1 wraps to 0, so that what is ignored comes last.
        if mask.size and int((mask + np.uint8(1)).max()) > len(self.classes):
            raise FaultyFile(_label_fault(file, mask, len(self.classes)))
        return torch.from_numpy(np.require(mask, requirements=["C", "W"]))

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Read an image and its mask.

        Raises:
            FaultyFile: As for each of them; or their sizes differ.
        """
        image, mask = self.image(index), self.mask(index)
        (height, width), (mask_height, mask_width) = image.shape[-2:], mask.shape
        if (height, width) != (mask_height, mask_width):
            raise FaultyFile(size_fault(self.pairs[index], (width, height), (mask_width, mask_height)))
        return image, mask


def hold_out(pictures: ImageFiles, count: int, seed: int) -> tuple[ImageFiles, ImageFiles]:
    """Cut a valid split from a train split: a search is never scored on the data that is kept for the final figure.

    Which images are cut depends on their names and the seed alone: not on the order of the list or the folder it lies in.

    Args:
        count: Images that are cut, less than all.

    Returns:
        The rest to train on, and what was cut; both in the order of the data set.

    Raises:
        RequestError: There are not more images than are to be cut.
    """
    if not 1 <= count < len(pictures):
        raise RequestError(
            f"{count} of the {len(pictures)} images of {pictures.name} were to be held out; expected at least 1, and at "
            "least 1 left to train on. Hold out another number, or add images."
        )
    names = [image.name for image, _ in pictures.pairs]
    cut = set(rank_by_hash(names, seed)[:count])
    rest = tuple(pair for index, pair in enumerate(pictures.pairs) if index not in cut)
    held = tuple(pair for index, pair in enumerate(pictures.pairs) if index in cut)
    return (
        replace(pictures, name=f"{pictures.name} less {count} held out", pairs=rest),
        replace(pictures, name=f"{pictures.name}, {count} held out", pairs=held),
    )


def rank_by_hash(names: list[str], seed: int) -> list[int]:
    """Return the indices in an order keyed by name and seed: adding a name moves no other before or behind a third."""
    keys = [hashlib.sha256(f"{seed}/{name}".encode()).digest() for name in names]
    return sorted(range(len(names)), key=lambda index: (keys[index], index))


def read_indices(file: Path) -> np.ndarray:
    """Read an index PNG, palette or grey, as it is: (H, W) in 8 bits.

    Raises:
        FaultyFile: It is not there, cannot be decoded, or holds colours.
    """
    with open_image(file, AN_INDEX_MASK, INDEXED) as picture:
        return np.array(picture, dtype=np.uint8)


@contextmanager
def open_image(file: Path, expected: str, modes: tuple[str, ...] | None) -> Iterator[Image.Image]:
    """Open a picture; whatever keeps it from being read becomes a fault.

    Args:
        expected: What messages say it should have been.
        modes: Pillow's modes that can be used; any when None.
    """
    try:
        with Image.open(file) as picture:
            if modes is not None and picture.mode not in modes:
                found = f"holds {picture.mode} values"
                raise FaultyFile(Fault(file, found, expected, "Convert it, and keep colours out of masks."))
            yield picture
    except FaultyFile:
        raise
    except FileNotFoundError:
        raise FaultyFile(missing_file(file, expected)) from None
    except Exception as error:  # A broken file can make a decoder raise anything.
        raise FaultyFile(undecodable_file(file, error, expected)) from None


def size_fault(pair: tuple[Path, Path], size: tuple[int, int], of_mask: tuple[int, int]) -> Fault:
    """Build the fault of a mask whose (width, height) is not its image's."""
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
        f"0 to {classes - 1}, or {IGNORED} where nothing counts",
        "Correct the mask, or the number of classes.",
    )
