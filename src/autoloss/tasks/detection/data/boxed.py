"""Images with boxes and perhaps masks, read from their files on access: the form of every detection data set (Section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.detection.masks import RunLengths, decode_masks, mask_areas
from autoloss.tasks.files.faults import Fault, FaultyFile
from autoloss.tasks.segmentation.data.image_files import AN_IMAGE, DECODABLE, open_image

IDENTITIES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Boxes:
    """The annotations of one image.

    Args:
        size: Width and height in pixels according to the annotations.
        boxes: (G, 4) as left, top, right, bottom in continuous coordinates, so that a pixel has an area of 1.
        labels: (G,), from 1.
        crowd: (G,), COCO's flag.
        difficult: (G,), VOC's flag.
        area: (G,) in square pixels.
        identities: (G,), identifiers for messages: COCO's id, or the number of VOC's object.
        masks: G masks of the image; None where only boxes are used.
    """

    size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    difficult: NDArray[np.bool_]
    area: NDArray[np.float64]
    identities: NDArray[np.int64]
    masks: tuple[RunLengths, ...] | None = None

    def add_identities(self, fault: Fault) -> Fault:
        """Return the fault of an image with the annotations that are affected."""
        listed = ", ".join(map(str, self.identities[:IDENTITIES_SHOWN].tolist()))
        more = len(self.identities) - IDENTITIES_SHOWN
        which = f"annotation{'s' if len(self.identities) > 1 else ''} {listed}" if listed else "no annotation"
        return replace(fault, found=f"{fault.found} ({which}{f' and {more} more' if more > 0 else ''} in it)")

    @property
    def trainable_count(self) -> int:
        """Number of objects to train on: neither crowds, nor difficult, nor without width, height or a pixel."""
        sized = (self.boxes[:, 2:] > self.boxes[:, :2]).all(axis=1)
        if self.masks is not None:
            sized &= mask_areas(self.masks) > 0
        return int((sized & ~self.crowd & ~self.difficult).sum())


@dataclass(frozen=True, slots=True)
class BoxedImages(Sequence[tuple[Tensor, dict[str, Tensor]]]):
    """The images of a split.

    Args:
        name: Name in messages, such as "COCO train2017".
        files: Files of the images.
        annotations: Boxes of each image.
        classes: Names; label k is the k-th, counted from 1.
        notes: Warnings about annotations that are unusual but accepted.
    """

    name: str
    files: tuple[Path, ...]
    annotations: tuple[Boxes, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read an image, (3, H, W) in [0, 1], and its boxes; where the data have masks, `masks` (G, H, W) beside.

        Raises:
            FaultyFile: The file is missing, cannot be decoded, or does not have the size that its annotations state.
        """
        columns = ("boxes", "labels", "crowd", "difficult", "area")
        image, found = self.image(index), self.annotations[index]
        target = {name: torch.from_numpy(getattr(found, name)) for name in columns}
        if found.masks is not None:
            height, width = image.shape[1:]
            target["masks"] = torch.from_numpy(decode_masks(found.masks, (height, width)))
        return image, target

    def image(self, index: int) -> Tensor:
        """Read an image, (3, H, W) in [0, 1].

        Raises:
            FaultyFile: As for an item.
        """
        fault = self.header(index)
        if isinstance(fault, Fault):
            raise FaultyFile(fault)
        try:
            with open_image(self.files[index], AN_IMAGE, DECODABLE) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except FaultyFile as error:
            raise FaultyFile(self.annotations[index].add_identities(error.fault)) from None
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

    def header(self, index: int) -> tuple[int, int] | Fault:
        """Return the size in the header of an image, or its fault."""
        file, boxes = self.files[index], self.annotations[index]
        try:
            with open_image(file, AN_IMAGE, DECODABLE) as picture:
                found = picture.size
        except FaultyFile as error:
            return boxes.add_identities(error.fault)
        if found == boxes.size:
            return found
        return boxes.add_identities(
            Fault(
                file,
                f"has {found[0]}×{found[1]} pixels",
                f"{boxes.size[0]}×{boxes.size[1]} as its annotations state",
                "Copy it again from its source: its boxes do not fit another size.",
            )
        )

    def select(self, indices: Sequence[int], name: str) -> BoxedImages:
        """Return the images with these indices, in this order."""
        files, annotations = (tuple(column[index] for index in indices) for column in (self.files, self.annotations))
        return replace(self, name=name, files=files, annotations=annotations, notes=())

    def with_objects(self) -> BoxedImages:
        """Return the images with an object to train on, as is usual for COCO."""
        kept = [index for index, boxes in enumerate(self.annotations) if boxes.trainable_count]
        if not kept:
            raise RequestError(f"{self.name} has no object to train on; check its annotations.")
        return self if len(kept) == len(self) else self.select(kept, self.name)

    def hold_out(self, count: int, seed: int) -> tuple[BoxedImages, BoxedImages]:
        """Return the images to train on, and `count` of them that are held out at random.

        Raises:
            RequestError: There are not enough images.
        """
        if not 0 < count < len(self):
            raise RequestError(
                f"{count} images cannot be held out of the {len(self)} of {self.name}; hold out at least 1 and fewer than all."
            )
        held = set(Random(seed).sample(range(len(self)), count))
        rest = [index for index in range(len(self)) if index not in held]
        return self.select(rest, self.name), self.select(sorted(held), f"{self.name}, held out")

    def draw(self, share: float, seed: int) -> BoxedImages:
        """Return a share of the images, drawn at random, in their order."""
        count = max(1, round(share * len(self)))
        return self.select(sorted(Random(seed).sample(range(len(self)), count)), self.name)
