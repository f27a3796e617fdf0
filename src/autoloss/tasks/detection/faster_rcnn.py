"""Faster R-CNN whose losses come from a criterion, one for each of its heads (Section 4.2); all else is torchvision's.

Anchors, matching, sampling, NMS and RoIAlign are torchvision's. The RPN and the R-CNN each report the boxes that they sample, and
the losses of the heads of that stage are called with them; `space/boxes.py` says what a context holds. Heads that declare layers
get them in the second stage: pooled, trained on regions with an object, applied to detections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from autoloss.errors import RequestError
from autoloss.space.boxes import PLAIN
from autoloss.space.branch import BranchLoss, Criterion
from autoloss.space.operators import upcast
from autoloss.tasks.detection.heads import HEADS
from autoloss.tasks.detection.heads.head import Head, OwnOutput, RegionLayers, SampledBoxes, Stage
from autoloss.tasks.weights import build_resnet, make_block
from autoloss.training.structures import map_tensors

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

    `levels` are the names of the feature maps, of some channels, that regions are pooled from; `classes` is C, without
    background.
    """

    def __init__(self, heads: Iterable[Head], levels: list[str], channels: int, classes: int) -> None:
        super().__init__()
        for head in heads:
            if head.layers is None:
                continue
            if head.stage is not Stage.RCNN:
                raise RequestError(f"The head {head.name!r} declares layers; only heads of the stage RCNN can.")
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

        Regions of each image are (N, 4), `labels` their classes, 0 for a negative, and `indices` those of their
        objects.
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


Target = Mapping[str, Tensor]
"""`boxes` (G, 4) and `labels` (G,) of one image, and the further targets that heads declare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorSettings:
    """Settings of a Faster R-CNN; the defaults are torchvision's.

    Images are resized so that the short side has `short_side` pixels, unless the long side exceeds `long_side`, and
    normalised by mean and deviation of each colour. There is one side of anchors for each level of the pyramid. `roi_size`
    and `roi_points` are cells of a region, and sampling points of a cell, along each side; `rpn_sampled` anchors and
    `rcnn_sampled` regions per image are trained on; `proposals` are kept per image and level before NMS, and per image
    after it.
    """

    short_side: int = 800
    long_side: int = 1333
    anchor_sizes: tuple[int, ...] = (32, 64, 128, 256, 512)
    aspect_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    head_width: int = 1024
    roi_size: int = 7
    roi_points: int = 2
    rpn_sampled: int = 256
    rcnn_sampled: int = 512
    proposals: tuple[int, int] = (2000, 1000)
    least_score: float = 0.05
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    deviation: tuple[float, ...] = (0.229, 0.224, 0.225)


class Float32Anchors(AnchorGenerator):
    """Anchors in the precision of the images, not of the feature maps: 16 bits cannot count the pixels of a large image."""

    def forward(self, image_list: ImageList, feature_maps: list[Tensor]) -> list[Tensor]:
        empty = [image_list.tensors.new_empty(()).expand(level.shape) for level in feature_maps]
        return super().forward(image_list, empty)


def _raise_precision(module: nn.Module, inputs: object, outputs: Any) -> Any:
    """Return a layer's outputs in float32 whatever its precision: 16 bits are too coarse for boxes and losses."""
    return map_tensors(upcast, outputs)


DEVIATIONS = (0.1, 0.1, 0.2, 0.2)
"""Standard deviations of the R-CNN head's deltas, torchvision's; those of the RPN are 1."""
Report = Callable[[Stage, SampledBoxes, Mapping[str, OwnOutput]], None]
"""(stage, its sampled boxes in a training step, output of the heads' own layers) → None; computes the losses of its heads."""


class ReportingRPN(RegionProposalNetwork):
    """A region proposal network that reports its sampled boxes instead of computing losses."""

    report: Report

    def assign_targets_to_anchors(
        self, anchors: list[Tensor], targets: list[dict[str, Tensor]]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Match as torchvision does, and keep the boxes for `compute_loss`, which is called next."""
        labels, matched = super().assign_targets_to_anchors(anchors, targets)
        self._assigned = torch.cat(anchors), torch.cat(matched), targets
        return labels, matched

    def compute_loss(
        self,
        objectness: Tensor,
        pred_bbox_deltas: Tensor,
        labels: list[Tensor],
        regression_targets: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        positive, negative = (torch.where(torch.cat(chosen))[0] for chosen in self.fg_bg_sampler(labels))
        sampled = torch.cat([positive, negative])
        anchors, matched, targets = self._assigned
        del self._assigned
        truth = [(target["boxes"], torch.ones_like(target["labels"])) for target in targets]
        target = torch.cat(labels)[sampled].long()
        logits, deltas = objectness.reshape(-1, 1)[sampled], pred_bbox_deltas[sampled]
        boxes = _collect_boxes(logits, deltas, target, anchors[sampled], matched[sampled], PLAIN, truth)
        self.report(Stage.RPN, boxes, {})
        zero = logits.new_zeros(())
        return zero, zero


class ReportingRoIHeads(RoIHeads):
    """The second stage of an R-CNN, which reports its sampled boxes, and has the layers of heads that declare some."""

    report: Report
    own: OwnLayers

    def forward(
        self,
        features: dict[str, Tensor],
        proposals: list[Tensor],
        image_shapes: list[tuple[int, int]],
        targets: list[dict[str, Tensor]] | None = None,
    ) -> tuple[list[dict[str, Tensor]], dict[str, Tensor]]:
        if not self.training or targets is None:
            found, losses = super().forward(features, proposals, image_shapes, targets)
            self.own.add_to(found, features, image_shapes)
            return found, losses
        truth = [target["boxes"].to(proposals[0].dtype) for target in targets]
        regions, indices, labels, _ = self.select_training_samples(proposals, targets)
        logits, deltas = self.box_predictor(self.box_head(self.box_roi_pool(features, regions, image_shapes)))
        target = torch.cat(labels)
        chosen = deltas.reshape(len(target), -1, 4)[torch.arange(len(target), device=target.device), target]
        pairs = zip(truth, indices, regions, strict=True)
        matched = [boxes[index] if len(boxes) else own for boxes, index, own in pairs]
        known = [(boxes, one["labels"]) for boxes, one in zip(truth, targets, strict=True)]
        reference, box = torch.cat(regions), torch.cat(matched)
        boxes = _collect_boxes(logits, chosen, target, reference, box, DEVIATIONS, known)
        self.report(Stage.RCNN, boxes, self.own.predict(features, regions, labels, indices, image_shapes, targets))
        return [], {}


def _collect_boxes(
    logits: Tensor,
    deltas: Tensor,
    target: Tensor,
    reference: Tensor,
    matched: Tensor,
    deviations: Sequence[float],
    truth: Sequence[tuple[Tensor, Tensor]],
) -> SampledBoxes:
    return SampledBoxes(
        logits=logits,
        deltas=deltas,
        target=target,
        # torchvision assigns some ground-truth box to negatives too; here their target is their own reference box.
        box=torch.where((target > 0)[:, None], matched, reference),
        reference=reference,
        deviations=reference.new_tensor([deviations]),
        truth=torch.cat([boxes for boxes, _ in truth]),
        truth_target=torch.cat([classes for _, classes in truth]),
    )


def _compute_loss(head: Head, loss: BranchLoss, boxes: SampledBoxes, own: OwnOutput | None) -> Tensor:
    if head.layers is None:
        return loss(*head.inputs(boxes))
    if own is None:
        raise RequestError(f"The network has no layers of the head {head.name!r}; build it with heads=….")
    if not len(own.prediction):
        # No image holds an object: the gradient is zero.
        return own.prediction.sum()
    return loss(*head.inputs(replace(boxes, own=own)))


class FasterRCNN(GeneralizedRCNN):
    """Faster R-CNN for images of any size, C classes without background and heads that may declare layers of their own.

    The backbone returns feature maps by name and has `out_channels`; the last map is the pooled extra level.
    """

    def __init__(
        self,
        backbone: nn.Module,
        classes: int,
        settings: DetectorSettings = DetectorSettings(),
        heads: Sequence[Head] = HEADS,
    ) -> None:
        channels: int = backbone.out_channels  # pyright: ignore[reportAssignmentType]
        levels = len(settings.anchor_sizes)
        anchors = Float32Anchors(tuple((size,) for size in settings.anchor_sizes), (settings.aspect_ratios,) * levels)
        kept: dict[str, int] = dict(zip(("training", "testing"), settings.proposals, strict=True))
        rpn = ReportingRPN(
            anchors,
            RPNHead(channels, len(settings.aspect_ratios)),
            0.7,
            0.3,
            settings.rpn_sampled,
            0.5,
            kept,
            kept,
            0.7,
        )
        # Features of regions are read from all levels but the pooled one.
        pooled = [str(level) for level in range(levels - 1)]
        roi_heads = ReportingRoIHeads(
            MultiScaleRoIAlign(pooled, settings.roi_size, settings.roi_points),
            TwoMLPHead(channels * settings.roi_size**2, settings.head_width),
            FastRCNNPredictor(settings.head_width, classes + 1),
            *(0.5, 0.5, settings.rcnn_sampled, 0.25),
            tuple(1 / deviation for deviation in DEVIATIONS),
            *(settings.least_score, 0.5, 100),
        )
        for layers in (rpn.head, roi_heads.box_predictor):
            layers.register_forward_hook(_raise_precision)
        roi_heads.own = OwnLayers(heads, pooled, channels, classes)
        transform = GeneralizedRCNNTransform(
            settings.short_side, settings.long_side, list(settings.mean), list(settings.deviation)
        )
        super().__init__(backbone, rpn, roi_heads, transform)

    def loss(
        self, images: Sequence[Tensor], targets: Sequence[Target], criterion: Criterion, heads: Sequence[Head] = HEADS
    ) -> Tensor:
        """Sum the criterion's losses, called outside any autocast, over the heads; images are (3, H, W) each, in [0, 1]."""
        losses: dict[str, Tensor] = {}

        def report(stage: Stage, boxes: SampledBoxes, own: Mapping[str, OwnOutput]) -> None:
            with torch.autocast(boxes.logits.device.type, enabled=False):
                for head in heads:
                    if head.stage is stage:
                        losses[head.name] = _compute_loss(head, criterion[head.name], boxes, own.get(head.name))

        self.rpn.report = self.roi_heads.report = report  # pyright: ignore[reportArgumentType]
        try:
            self(list(images), [dict(target) for target in targets])
        finally:
            del self.rpn.report, self.roi_heads.report
        # In torchvision's order: floating-point sums depend on it.
        ordered = [head.name for stage in (Stage.RCNN, Stage.RPN) for head in heads if head.stage is stage]
        return torch.stack([losses[name] for name in ordered]).sum()


def build_pyramid(
    name: str, channels: int = 256, weights: str = "none", stages: Sequence[int] = (3, 4)
) -> BackboneWithFPN:
    """Return torchvision's ResNet with the pyramid levels of some stages and a pooled one, by default P4 to P6 (Appendix A).

    With weights, `imagenet` or the path of a state dict, batch normalisation and the first stage are frozen, as is usual.
    """
    fresh = weights == "none"
    body = build_resnet(name, weights, norm_layer=nn.BatchNorm2d if fresh else FrozenBatchNorm2d)
    for part in () if fresh else (body.conv1, body.layer1):
        part.requires_grad_(False)
    layers = {f"layer{stage}": str(level) for level, stage in enumerate(stages)}
    return BackboneWithFPN(body, layers, [body.inplanes // 2 ** (4 - stage) for stage in stages], channels)


def small_levels(channels: int = 64, width: int = 16) -> BackboneWithFPN:
    """Return four convolutional stages with the last two levels of their pyramid and a pooled one, as in Appendix A's proxy.

    They train in a minute on one core (digits-det). The strides of the last two are 8 and 16 pixels.
    """
    body: OrderedDict[str, nn.Module] = OrderedDict(
        layer1=make_block(1, width, 2),
        layer2=make_block(width, 2 * width, 2),
        layer3=nn.Sequential(make_block(2 * width, 4 * width, 2), make_block(4 * width, 4 * width, 1)),
        layer4=nn.Sequential(make_block(4 * width, 6 * width, 2), make_block(6 * width, 6 * width, 1)),
    )
    return BackboneWithFPN(nn.Sequential(body), {"layer3": "0", "layer4": "1"}, [4 * width, 6 * width], channels)
