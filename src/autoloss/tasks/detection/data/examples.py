"""Training examples of a detector: which objects are left out, and mirroring (Section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

Example = tuple[Tensor, Mapping[str, Tensor]]
"""An image (channels, H, W) in [0, 1]; `boxes` (G, 4), `labels` (G,), and where the data has them `crowd`, `area` and
`difficult`, see `GroundTruth`."""


class TrainingExamples(Dataset[Example]):
    """The images of a data set with the objects that can be trained on.

    Args:
        flip: Probability that an image is mirrored; drawn from torch's global generator.
    """

    def __init__(self, data: Sequence[Example], flip: float) -> None:
        self._data = data
        self._flip = flip

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Example:
        image, target = self._data[index]
        kept = select_trainable(target)
        return mirror(image, kept) if self._flip and float(torch.rand(())) < self._flip else (image, kept)


def select_trainable(target: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Drop crowds, difficult objects, and boxes without width or height."""
    boxes, labels = target["boxes"], target["labels"]
    left_out = (boxes[:, 2:] <= boxes[:, :2]).any(dim=1)
    for mark in ("crowd", "difficult"):
        if mark in target:
            left_out |= target[mark].bool()
    return {"boxes": boxes[~left_out], "labels": labels[~left_out]}


def mirror(image: Tensor, target: Mapping[str, Tensor]) -> Example:
    """Mirror an image and its boxes horizontally."""
    left, top, right, bottom = target["boxes"].unbind(dim=1)
    width = image.shape[-1]
    return image.flip(-1), {**target, "boxes": torch.stack([width - right, top, width - left, bottom], dim=1)}


def move_target(target: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Copy the target of an image to a device."""
    return {name: part.to(device) for name, part in target.items()}
