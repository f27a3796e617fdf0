"""Images with boxes, by file: what every data set of detection becomes (Section 4.2). An image is read when it is asked for."""

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
from autoloss.tasks.files.faults import Fault, FaultyFile
from autoloss.tasks.segmentation.data.pictures import AN_IMAGE, DECODABLE, open_image

IDENTITIES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Boxes:
    """What is annotated in one image.

    Args:
        size: Width and height in pixels, as the annotations say.
        boxes: (G, 4) as left, top, right, bottom; continuous, so that a pixel has an area of 1.
        labels: (G,), from 1.
        crowd: (G,), COCO's mark.
        difficult: (G,), VOC's mark.
        area: (G,) in square pixels.
        identities: (G,), what messages call each annotation: COCO's id, or the number of VOC's object.
    """

    size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    difficult: NDArray[np.bool_]
    area: NDArray[np.float64]
    identities: NDArray[np.int64]

    def lying_in(self, fault: Fault) -> Fault:
        """Return the fault of their image with the annotations that it concerns."""
        listed = ", ".join(map(str, self.identities[:IDENTITIES_SHOWN].tolist()))
        more = len(self.identities) - IDENTITIES_SHOWN
        which = f"annotation{'s' if len(self.identities) > 1 else ''} {listed}" if listed else "no annotation"
        return replace(fault, found=f"{fault.found} ({which}{f' and {more} more' if more > 0 else ''} in it)")

    @property
    def trainable(self) -> int:
        """How many objects can be trained on: neither crowds, nor difficult, nor without width or height."""
        sized = (self.boxes[:, 2:] > self.boxes[:, :2]).all(axis=1)
        return int((sized & ~self.crowd & ~self.difficult).sum())


@dataclass(frozen=True, slots=True)
class BoxedImages(Sequence[tuple[Tensor, dict[str, Tensor]]]):
    """The images of a split.

    Args:
        name: What messages call it, such as "COCO train2017".
        files: Of the images.
        annotated: What is in each.
        classes: Names; label k is the k-th, counted from 1.
        notes: What was left as it is although it is odd, and how often.
    """

    name: str
    files: tuple[Path, ...]
    annotated: tuple[Boxes, ...]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read an image, (3, H, W) in [0, 1], and its boxes.

        Raises:
            FaultyFile: It is not there, cannot be decoded, or has another size than its annotations say.
        """
        columns = ("boxes", "labels", "crowd", "difficult", "area")
        return self.image(index), {name: torch.from_numpy(getattr(self.annotated[index], name)) for name in columns}

    def image(self, index: int) -> Tensor:
        """Read an image, (3, H, W) in [0, 1].

        Raises:
            FaultyFile: As when its boxes are asked for too.
        """
        fault = self.header(index)
        if isinstance(fault, Fault):
            raise FaultyFile(fault)
        try:
            with open_image(self.files[index], AN_IMAGE, DECODABLE) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except FaultyFile as error:
            raise FaultyFile(self.annotated[index].lying_in(error.fault)) from None
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

    def header(self, index: int) -> tuple[int, int] | Fault:
        """Return the size that an image's header says, or what is wrong with it."""
        file, boxes = self.files[index], self.annotated[index]
        try:
            with open_image(file, AN_IMAGE, DECODABLE) as picture:
                found = picture.size
        except FaultyFile as error:
            return boxes.lying_in(error.fault)
        if found == boxes.size:
            return found
        return boxes.lying_in(
            Fault(
                file,
                f"has {found[0]}×{found[1]} pixels",
                f"{boxes.size[0]}×{boxes.size[1]} as its annotations say",
                "Copy it again from its source: its boxes do not fit another size.",
            )
        )

    def chosen(self, indices: Sequence[int], name: str) -> BoxedImages:
        """Return some of the images, in this order."""
        files, annotated = (tuple(column[index] for index in indices) for column in (self.files, self.annotated))
        return replace(self, name=name, files=files, annotated=annotated, notes=())

    def with_objects(self) -> BoxedImages:
        """Return the images that can be trained on, as COCO's usual trainings do."""
        kept = [index for index, boxes in enumerate(self.annotated) if boxes.trainable]
        if not kept:
            raise RequestError(f"{self.name} has no object to train on; check its annotations.")
        return self if len(kept) == len(self) else self.chosen(kept, self.name)

    def divided(self, count: int, seed: int) -> tuple[BoxedImages, BoxedImages]:
        """Return the images without `count` that are drawn at random, and those.

        Raises:
            RequestError: There are not as many.
        """
        if not 0 < count < len(self):
            raise RequestError(
                f"{count} images cannot be held out of the {len(self)} of {self.name}; hold out at least 1 and fewer than all."
            )
        held = set(Random(seed).sample(range(len(self)), count))
        rest = [index for index in range(len(self)) if index not in held]
        return self.chosen(rest, self.name), self.chosen(sorted(held), f"{self.name}, held out")
