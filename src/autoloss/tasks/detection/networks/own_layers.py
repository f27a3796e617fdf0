"""Layers that heads add to the second stage of a detector: pooled, trained on regions with an object, applied to detections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torchvision.ops import MultiScaleRoIAlign

from autoloss.errors import RequestError
from autoloss.space.operators import upcast
from autoloss.tasks.detection.heads.head import Head, OwnOutput, RegionLayers, Stage

Features = dict[str, Tensor]
Sizes = list[tuple[int, int]]


class PooledLayers(nn.Module):
    """The layers of one head, on features that are pooled for it, with output in float32 whatever their precision."""

    def __init__(self, declared: RegionLayers, levels: list[str], channels: int, classes: int) -> None:
        super().__init__()
        self.pool = MultiScaleRoIAlign(levels, declared.roi_size, declared.roi_points)
        self.layers = declared.build(channels, classes)

    def forward(self, features: Features, regions: list[Tensor], sizes: Sizes) -> Tensor:
        return upcast(self.layers(self.pool(features, regions, sizes)))


class OwnLayers(nn.ModuleDict):
    """The layers of all heads that declare some, by the name of the head.

    Args:
        levels: Names of the feature maps that regions are pooled from.
        channels: Channels of these.
        classes: C, without background.

    Raises:
        RequestError: A head of the first stage declares layers.
    """

    def __init__(self, heads: Iterable[Head], levels: list[str], channels: int, classes: int) -> None:
        super().__init__()
        for head in heads:
            if head.layers is None:
                continue
            if head.stage is not Stage.RCNN:
                raise RequestError(
                    f"The head {head.name!r} of the stage {head.stage.name} declares layers; only heads of the stage RCNN can."
                )
            self[head.name] = PooledLayers(head.layers, levels, channels, classes)

    def predict(
        self,
        features: Features,
        regions: Sequence[Tensor],
        labels: Sequence[Tensor],
        indices: Sequence[Tensor],
        sizes: Sizes,
        objects: Sequence[Mapping[str, Tensor]],
    ) -> dict[str, OwnOutput]:
        """Return what each head predicts for the sampled regions with an object.

        Args:
            regions: Those of each image, (N, 4); their classes, 0 for a negative; and the indices of their objects.
        """
        positive = [classes > 0 for classes in labels]
        chosen = [image[rows] for image, rows in zip(regions, positive, strict=True)]
        return {
            name: OwnOutput(
                prediction=layers(features, chosen, sizes),
                region=torch.cat(chosen),
                target=torch.cat([image[rows] for image, rows in zip(labels, positive, strict=True)]),
                image=torch.cat([torch.full_like(part[:, 0], at).long() for at, part in enumerate(chosen)]),
                assigned=torch.cat([image[rows] for image, rows in zip(indices, positive, strict=True)]),
                objects=objects,
            )
            for name, layers in self.items()
        }

    def add_to(self, detections: Sequence[dict[str, Tensor]], features: Features, sizes: Sizes) -> None:
        """Add what each head predicts for the detections of each image, under the name of the head."""
        counts = [len(image["boxes"]) for image in detections]
        for name, layers in self.items():
            predicted = layers(features, [image["boxes"] for image in detections], sizes)
            for image, part in zip(detections, predicted.split(counts), strict=True):
                image[name] = part
