"""Training examples of a detector: selection of objects, and mirroring (Section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from autoloss.errors import RequestError
from autoloss.tasks.detection.heads.head import ObjectTarget

Example = tuple[Tensor, Mapping[str, Tensor]]
"""An image (channels, H, W) in [0, 1]; `boxes` (G, 4), `labels` (G,), and where the data has them `crowd`, `area` and
`difficult`, see `GroundTruth`; and the targets that heads declare as `ObjectTarget`."""


class TrainingExamples(Dataset[Example]):
    """The images of a data set with the objects that can be trained on.

    Args:
        flip: Probability that an image is mirrored; drawn from torch's global generator.
        further: Targets that heads need of each object besides box and class.
    """

    def __init__(self, data: Sequence[Example], flip: float, further: Sequence[ObjectTarget] = ()) -> None:
        self._data = data
        self._flip = flip
        self._further = further

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Example:
        image, target = self._data[index]
        kept = select_trainable(target, self._further)
        flips = self._flip and float(torch.rand(())) < self._flip
        return mirror(image, kept, self._further) if flips else (image, kept)


def select_trainable(target: Mapping[str, Tensor], further: Sequence[ObjectTarget] = ()) -> dict[str, Tensor]:
    """Drop crowds, difficult objects, boxes without width or height, and objects that heads cannot be trained on.

    Raises:
        RequestError: The data lack what a head needs.
    """
    names = ["boxes", "labels", *(one.name for one in further)]
    if missing := [name for name in names if name not in target]:
        raise RequestError(
            f"The targets of an image lack {', '.join(missing)}, which a head needs; found {', '.join(target)}. Add them to the "
            "data, one row for each object."
        )
    boxes = target["boxes"]
    left_out = (boxes[:, 2:] <= boxes[:, :2]).any(dim=1)
    for mark in ("crowd", "difficult"):
        if mark in target:
            left_out |= target[mark].bool()
    for one in further:
        if one.usable is not None:
            left_out |= ~one.usable(target[one.name])
    return {name: target[name][~left_out] for name in names}


def mirror(image: Tensor, target: Mapping[str, Tensor], further: Sequence[ObjectTarget] = ()) -> Example:
    """Mirror an image and its objects horizontally."""
    left, top, right, bottom = target["boxes"].unbind(dim=1)
    width = image.shape[-1]
    mirrored = {one.name: one.mirror(target[one.name], width) for one in further}
    boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
    return image.flip(-1), {**target, **mirrored, "boxes": boxes}


def move_target(target: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy the target of an image to a device."""
    return {name: part.to(device) for name, part in target.items()}
