"""Samples of an untrained detector for the rejection protocol: what each branch's loss is given of one image (Section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from autoloss.errors import RequestError
from autoloss.space.boxes import rescaled
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.tasks.detection.data.examples import Example, trainable
from autoloss.tasks.detection.networks.faster_rcnn import BRANCHES, FasterRCNN

DRAWS_PER_SAMPLE = 50
"""After so many images for each sample asked for, no more useful ones are expected."""


def drawn(
    network: FasterRCNN,
    data: Sequence[Example],
    branches: Mapping[str, Branch],
    deviations: Sequence[float],
    count: int,
    generator: torch.Generator,
) -> dict[str, list[Sample]]:
    """Draw images until every branch has its samples; one that is at its best on a branch already is none there.

    Args:
        network: Untrained, in training mode.
        deviations: In which deltas are counted.

    Raises:
        RequestError: Too few images can be used.
    """
    # One image has no batch statistics of its own.
    network.backbone.eval()
    found: dict[str, list[Sample]] = {name: [] for name in branches}
    looked = 0
    for example in _with_objects(data, count * DRAWS_PER_SAMPLE, generator):
        looked += 1
        for name, sample in _of_image(network, example, deviations).items():
            if name in branches and len(found[name]) < count and _can_gain(branches[name], sample):
                found[name].append(sample)
        if all(len(samples) == count for samples in found.values()):
            return found
    lacking = ", ".join(f"{name} {len(samples)}" for name, samples in found.items() if len(samples) < count)
    raise RequestError(
        f"Of {looked} training images too few can be used as samples: {lacking} of {count}. A sample needs a metric that "
        "is defined and below what the target itself reaches. Check that boxes are in pixels as left, top, right, "
        "bottom, and that anchors are of the objects' size."
    )


def _with_objects(data: Sequence[Example], limit: int, generator: torch.Generator) -> Iterator[Example]:
    """Draw training images that hold an object; nothing comes twice before everything came once."""
    looked = 0
    while looked < limit:
        for index in torch.randperm(len(data), generator=generator).tolist():
            looked += 1
            image, target = data[index]
            target = trainable(target)
            # Without an object no precision is defined.
            if len(target["boxes"]):
                yield image, target
            if looked == limit:
                return


def _of_image(network: FasterRCNN, example: Example, deviations: Sequence[float]) -> dict[str, Sample]:
    """Return what a criterion would be given for one image, deltas counted in the deviations asked for."""
    taken: dict[str, Sample] = {}

    def taking(name: str) -> BranchLoss:
        def take(prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
            unit = prediction.new_tensor([deviations])
            seen = rescaled(prediction, context, unit) if "deviations" in context else (prediction, dict(context))
            taken[name] = Sample(*seen)
            return prediction.sum()

        return take

    network.loss([example[0]], [example[1]], {name: taking(name) for name in BRANCHES})
    return taken


def _can_gain(branch: Branch, sample: Sample) -> bool:
    initial = branch.metric(sample.prediction, sample.context)
    # Comparisons with NaN are false.
    return initial < branch.metric(branch.ideal(sample.context), sample.context)
