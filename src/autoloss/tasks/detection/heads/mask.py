"""The pixels of a region that belong to its object: the mask head of Mask R-CNN (Section 4.3, Appendix A.3).

Source: He et al., 2017, Mask R-CNN; layers, targets and pasting are torchvision's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.ops import roi_align

from autoloss.space.activated import ActivatedBranch, activate
from autoloss.space.boxes import AreaUnit
from autoloss.space.branch import Sample
from autoloss.tasks.detection.average_precision import MASK_THRESHOLD, measure_masks
from autoloss.tasks.detection.heads.head import Head, ObjectTarget, RegionLayers, SampledBoxes, Stage
from autoloss.tasks.detection.masks import encode_masks

PASTED_AT_ONCE = 16
"""Masks that are pasted into an image at a time, which bounds the memory."""

LOGIT_DEVIATION = 0.01
"""Standard deviation of the initial weights of the logits, that of torchvision's RPN. With that of its mask head, logits of an
untrained ResNet-18 have a standard deviation of 4, and cross entropy does not pass the rejection protocol."""

MASKS = ObjectTarget("masks", lambda masks, width: masks.flip(-1), lambda masks: (masks != 0).flatten(1).any(dim=1))
"""The mask of each object in its image, (G, H, W), 1 for the object."""


def build_mask_layers(channels: int, classes: int) -> nn.Module:
    """Return four convolutions of the features' width, and the last layers."""
    return nn.Sequential(MaskRCNNHeads(channels, (channels,) * 4, 1), make_predictor(channels, classes))


def make_predictor(channels: int, classes: int) -> nn.Module:
    """Return a deconvolution to twice the size, and a logit for each class and background, small at first."""
    predictor: Any = MaskRCNNPredictor(channels, channels, classes + 1)
    nn.init.normal_(predictor.mask_fcn_logits.weight, std=LOGIT_DEVIATION)
    nn.init.zeros_(predictor.mask_fcn_logits.bias)
    return predictor


@final
@dataclass(frozen=True, slots=True)
class MaskHead(Head):
    """The mask of each region with an object: softmax over background and foreground, of the logit z of its class over (0, z)."""

    name: str = "mask"
    stage: Stage = Stage.RCNN
    standard: str = "baseline/ce"
    layers: RegionLayers | None = RegionLayers(build=build_mask_layers)  # noqa: RUF009 - frozen
    targets: tuple[ObjectTarget, ...] = (MASKS,)

    def branch(self, classes: int, unit: AreaUnit) -> ActivatedBranch:
        return ActivatedBranch(channels=1, measure=measure_masks)

    def inputs(self, boxes: SampledBoxes) -> tuple[Tensor, dict[str, Tensor]]:
        own = boxes.own
        assert own is not None, "the network calls a head that declares layers with their output"
        side = own.prediction.shape[-1]
        parts: list[Tensor] = []
        for image, objects in enumerate(own.objects):
            here = own.image == image
            rows = torch.cat([own.assigned[here, None].to(own.region), own.region[here]], dim=1)
            parts.append(roi_align(objects[MASKS.name][:, None].to(own.region), rows, side))
        return _select_class(own.prediction, own.target), {"target": torch.cat(parts)}

    def sample(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Sample:
        # As the metric reads them. A cell at the border of an object has a share of it: |log(y·p)| draws p to a half there.
        return Sample(prediction, {"target": (context["target"] > MASK_THRESHOLD).to(prediction)})

    def detect(self, found: Mapping[str, Tensor], size: tuple[int, int]) -> Mapping[str, Any]:
        probabilities = activate(_select_class(found[self.name], found["labels"]), "softmax")[:, 1:]
        parts = zip(probabilities.split(PASTED_AT_ONCE), found["boxes"].split(PASTED_AT_ONCE), strict=True)
        pasted = (paste_masks_in_image(part, boxes, size)[:, 0] > MASK_THRESHOLD for part, boxes in parts)
        return {"masks": [mask for part in pasted for mask in encode_masks(part.cpu().numpy())]}


def _select_class(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the logits (N, 1, H, W) of each mask's own class, of those (N, C + 1, H, W) of all."""
    return logits[torch.arange(len(classes), device=classes.device), classes][:, None]


MASK = MaskHead()
