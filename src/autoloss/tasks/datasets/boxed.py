"""Images with boxes, by file: what every data set of detection becomes (Section 4.2). An image is read when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.tasks.datasets.faults import Fault, FaultyFile, missing, undecodable

AN_IMAGE = "an image such as JPEG or PNG"


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
    """

    size: tuple[int, int]
    boxes: NDArray[np.float32]
    labels: NDArray[np.int64]
    crowd: NDArray[np.bool_]
    difficult: NDArray[np.bool_]
    area: NDArray[np.float64]

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
        boxes = self.annotated[index]
        image = read_image(self.files[index], boxes.size)
        columns = ("boxes", "labels", "crowd", "difficult", "area")
        return image, {name: torch.from_numpy(getattr(boxes, name)) for name in columns}

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


def read_image(file: Path, size: tuple[int, int]) -> Tensor:
    """Read an image of a known size as (3, H, W) in [0, 1].

    Raises:
        FaultyFile: It is not there, cannot be decoded, or has another size.
    """
    if not file.is_file():
        raise FaultyFile(missing(file, AN_IMAGE))
    try:
        with Image.open(file) as picture:
            found = picture.size
            pixels = np.asarray(picture.convert("RGB"))
    except Exception as error:  # A broken file can make a decoder raise anything.
        raise FaultyFile(undecodable(file, error, AN_IMAGE)) from None
    if found != size:
        raise FaultyFile(
            Fault(
                file,
                f"has {found[0]}×{found[1]} pixels",
                f"{size[0]}×{size[1]} as its annotations say",
                "Copy it again from its source: its boxes do not fit another size.",
            )
        )
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255
