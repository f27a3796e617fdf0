"""Samples of an untrained detector: the arguments of each head's loss on one image (Section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.tasks.detection.data.examples import Example, select_trainable
from autoloss.tasks.detection.heads.head import BranchSettings, Head, ObjectTarget, collect_targets
from autoloss.tasks.detection.networks.faster_rcnn import FasterRCNN
from autoloss.tasks.image_task import DRAWS_PER_SAMPLE, can_gain


def draw_samples(
    network: FasterRCNN,
    data: Sequence[Example],
    heads: Sequence[Head],
    branches: Mapping[str, Branch],
    settings: BranchSettings,
    count: int,
    generator: torch.Generator,
) -> dict[str, list[Sample]]:
    """Draw images until every branch has its samples; an image whose metric is already at its best on a branch is skipped there.

    Args:
        network: Untrained, in training mode.
        count: Samples for each branch.

    Raises:
        RequestError: Too few images can be used.
    """
    # A single image has no batch statistics.
    network.backbone.eval()
    found: dict[str, list[Sample]] = {name: [] for name in branches}
    tried = 0
    for example in _draw_examples(data, collect_targets(heads), count * DRAWS_PER_SAMPLE, generator):
        tried += 1
        for name, sample in _sample_image(network, example, heads, settings).items():
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
    """Draw `limit` training images and yield those that hold an object; none is drawn twice before all were drawn once."""
    drawn = 0
    while drawn < limit:
        for index in torch.randperm(len(data), generator=generator).tolist():
            drawn += 1
            image, target = data[index]
            target = select_trainable(target, further)
            # Without an object no precision is defined.
            if len(target["boxes"]):
                yield image, target
            if drawn == limit:
                return


def _sample_image(
    network: FasterRCNN, example: Example, heads: Sequence[Head], settings: BranchSettings
) -> dict[str, Sample]:
    """Return the arguments of each head's loss on one image."""
    samples: dict[str, Sample] = {}

    def recorder(head: Head) -> BranchLoss:
        def record(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
            samples[head.name] = head.sample(prediction, context, settings)
            return prediction.sum()

        return record

    network.loss([example[0]], [example[1]], {head.name: recorder(head) for head in heads}, heads)
    return samples
