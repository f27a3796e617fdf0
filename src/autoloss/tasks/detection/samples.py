"""Training examples of a detector, and samples of an untrained one: the arguments of each head's loss (Section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from autoloss.errors import RequestError
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.tasks.detection.data.boxed import LEAST_SIDE
from autoloss.tasks.detection.faster_rcnn import FasterRCNN
from autoloss.tasks.detection.heads.head import Head, ObjectTarget, collect_targets
from autoloss.tasks.trainer_task import DRAWS_PER_SAMPLE, can_gain, draw_batches

Example = tuple[Tensor, Mapping[str, Tensor]]
"""An image (channels, H, W) in [0, 1]; `boxes` (G, 4), `labels` (G,), and where the data has them `crowd`, `area` and
`difficult`, see `GroundTruth`; and the targets that heads declare as `ObjectTarget`."""


class TrainingExamples(Dataset[Example]):
    """The images of a data set with the objects that can be trained on, and the further targets that heads need of them.

    An image is mirrored with the probability `flip`, drawn from torch's global generator.
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
    """Drop crowds, difficult objects, boxes below `LEAST_SIDE`, and objects that heads cannot be trained on."""
    names = ["boxes", "labels", *(one.name for one in further)]
    if missing := [name for name in names if name not in target]:
        raise RequestError(
            f"The targets of an image lack {', '.join(missing)}, which a head needs; found {', '.join(target)}. Add them to the "
            "data, one row for each object."
        )
    boxes = target["boxes"]
    left_out = (boxes[:, 2:] - boxes[:, :2] < LEAST_SIDE).any(dim=1)
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


def draw_samples(
    network: FasterRCNN,
    data: Sequence[Example],
    heads: Sequence[Head],
    branches: Mapping[str, Branch],
    count: int,
    generator: torch.Generator,
) -> dict[str, list[Sample]]:
    """Draw images until every branch has `count` samples from an untrained network in training mode.

    An image whose metric is already at its best on a branch is skipped there.
    """
    # A single image has no batch statistics.
    network.backbone.eval()
    found: dict[str, list[Sample]] = {name: [] for name in branches}
    tried = 0
    for example in _draw_examples(data, collect_targets(heads), count * DRAWS_PER_SAMPLE, generator):
        tried += 1
        for name, sample in _sample_image(network, example, heads).items():
            if len(found[name]) < count and can_gain(branches[name], sample):
                found[name].append(sample)
        if all(len(samples) == count for samples in found.values()):
            return found
    lacking = ", ".join(f"{name} {len(samples)}" for name, samples in found.items() if len(samples) < count)
    raise RequestError(
        f"Of {tried} training images too few can be used as samples: {lacking} of {count}. A sample needs a metric that "
        "is defined and below what the target itself reaches. Check that boxes are in pixels as left, top, right, "
        "bottom, and that anchors have the size of the objects."
    )


def _draw_examples(
    data: Sequence[Example], further: Sequence[ObjectTarget], limit: int, generator: torch.Generator
) -> Iterator[Example]:
    """Draw `limit` training images and yield those that hold an object."""
    for (index,) in draw_batches(len(data), limit, 1, generator):
        image, target = data[int(index)]
        target = select_trainable(target, further)
        # Without an object no precision is defined.
        if len(target["boxes"]):
            yield image, target


def _sample_image(network: FasterRCNN, example: Example, heads: Sequence[Head]) -> dict[str, Sample]:
    """Return the arguments of each head's loss on one image."""
    samples: dict[str, Sample] = {}

    def recorder(head: Head) -> BranchLoss:
        def record(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
            samples[head.name] = head.sample(prediction, context)
            return prediction.sum()

        return record

    network.loss([example[0]], [example[1]], {head.name: recorder(head) for head in heads}, heads)
    return samples
