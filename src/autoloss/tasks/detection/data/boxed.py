"""Images with boxes and perhaps masks, read from their files on access: the form of every detection data set (Section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import ImageOps
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.detection.masks import RunLengths, decode_masks, mask_areas
from autoloss.tasks.files import Fault, FaultyFile, open_image

IDENTITIES_SHOWN = 5
LEAST_SIDE = 0.01
"""Pixels of width and of height that a box to train on has at least: mirrored or resized in single precision, less may be 0."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The annotations of the G objects of one image.

    `size` is width and height in pixels according to them; boxes (G, 4) are left, top, right, bottom in continuous
    coordinates, so that a pixel has an area of 1; labels count from 1; `crowd` is COCO's flag, `difficult` VOC's; areas are
    in square pixels. `identities` are for messages: COCO's id, or the number of VOC's object. Masks are None where only
    boxes are used; joints, (G, 17, 3) as x, y, counts of pixels, and visibility, where they are not used.
    """

    size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    difficult: NDArray[np.bool_]
    area: NDArray[np.float64]
    identities: NDArray[np.int64]
    masks: tuple[RunLengths, ...] | None = None
    joints: NDArray[np.float64] | None = None

    @property
    def trainable_count(self) -> int:
        """Number of objects to train on: neither crowds, nor difficult, nor too small, nor without a pixel."""
        sized = (self.boxes[:, 2:] - self.boxes[:, :2] >= LEAST_SIDE).all(axis=1)
        if self.masks is not None:
            sized &= mask_areas(self.masks) > 0
        return int((sized & ~self.crowd & ~self.difficult).sum())


@dataclass(frozen=True, slots=True)
class BoxedImages(Sequence[tuple[Tensor, dict[str, Tensor]]]):
    """The images of a split: files, the boxes of each, and names of classes, of which label k is the k-th, counted from 1.

    `notes` are warnings about annotations that are unusual but accepted. Of a file of COCO, `categories` are the ids of the
    classes, and `image_ids` those of all its images.
    """

    kind: ClassVar[str] = "images"
    name: str
    files: tuple[Path, ...]
    annotations: tuple[Boxes, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    categories: tuple[int, ...] = ()
    image_ids: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read an image, (3, H, W) in [0, 1], and its boxes; where the data have masks, `masks` (G, H, W) beside."""
        columns = ("boxes", "labels", "crowd", "difficult", "area")
        image, found = self.image(index), self.annotations[index]
        target = {name: torch.from_numpy(getattr(found, name)) for name in columns}
        if found.masks is not None:
            height, width = image.shape[1:]
            target["masks"] = torch.from_numpy(decode_masks(found.masks, (height, width)))
        return image, target

    def image(self, index: int) -> Tensor:
        """Read an image, (3, H, W) in [0, 1]; faults as for an item."""
        self.header(index)
        with self._name_annotations(index), open_image(self.files[index]) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

    decode = image

    def header(self, index: int) -> tuple[int, int]:
        """Return the size in the header of an image, that which its annotations state."""
        file, expected = self.files[index], self.annotations[index].size
        with self._name_annotations(index), open_image(file) as picture:
            found = picture.size
            if found != expected:
                remedy = "Copy it again from its source: its boxes do not fit another size."
                if ImageOps.exif_transpose(picture).size == expected:
                    remedy = "It has an EXIF orientation: save it as it is displayed, without that tag."
                stated = f"{expected[0]}×{expected[1]} as its annotations state"
                raise FaultyFile(Fault(file, f"has {found[0]}×{found[1]} pixels", stated, remedy))
        return found

    @contextmanager
    def _name_annotations(self, index: int) -> Iterator[None]:
        """Add the annotations of an image to a fault of its file."""
        try:
            yield
        except FaultyFile as error:
            identities = self.annotations[index].identities.tolist()
            listed = ", ".join(map(str, identities[:IDENTITIES_SHOWN]))
            which = f"annotation{'s' if len(identities) > 1 else ''} {listed}" if listed else "no annotation"
            more = len(identities) - IDENTITIES_SHOWN
            found = f"{error.fault.found} ({which}{f' and {more} more' if more > 0 else ''} in it)"
            raise FaultyFile(replace(error.fault, found=found)) from None

    def select(self, indices: Sequence[int], name: str) -> BoxedImages:
        """Return the images with these indices, in this order."""
        files, annotations = (tuple(column[index] for index in indices) for column in (self.files, self.annotations))
        return replace(self, name=name, files=files, annotations=annotations, notes=())

    def with_objects(self) -> BoxedImages:
        """Return the images with an object to train on, as is usual for COCO."""
        kept = [index for index, boxes in enumerate(self.annotations) if boxes.trainable_count]
        if not kept:
            raise RequestError(
                f"None of the {len(self)} images of {self.name} has an object that counts; expected one at least. Check their "
                "annotations; of images that are held out there can be more: --set held_out=<number of images>."
            )
        return self if len(kept) == len(self) else self.select(kept, self.name)

    def hold_out(self, count: int, seed: int) -> tuple[BoxedImages, BoxedImages]:
        """Return the images to train on, and `count` of them that are held out at random."""
        held = set(Random(seed).sample(range(len(self)), count))
        rest = [index for index in range(len(self)) if index not in held]
        return self.select(rest, self.name), self.select(sorted(held), f"{self.name}, held out")

    def draw(self, share: float, seed: int) -> BoxedImages:
        """Return a share of the images, drawn at random, in their order."""
        count = max(1, round(share * len(self)))
        return self.select(sorted(Random(seed).sample(range(len(self)), count)), self.name)
