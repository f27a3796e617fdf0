"""Backbones of detectors with a feature pyramid: all of its levels, or the last ones as in the proxy (Appendix A)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d

from autoloss.tasks.weights import build_resnet, make_block


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


class SmallBody(nn.Module):
    """A body of four convolutional stages, for a proxy training of a minute on one core (digits-det).

    The strides of `layer3` and `layer4` are 8 and 16 pixels.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layer1 = make_block(1, width, 2)
        self.layer2 = make_block(width, 2 * width, 2)
        self.layer3 = nn.Sequential(make_block(2 * width, 4 * width, 2), make_block(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(make_block(4 * width, 6 * width, 2), make_block(6 * width, 6 * width, 1))


def small_levels(channels: int = 64, width: int = 16) -> BackboneWithFPN:
    """Return a small body with the last two levels of its pyramid and a pooled one, as in Appendix A's proxy."""
    return BackboneWithFPN(SmallBody(width), {"layer3": "0", "layer4": "1"}, [4 * width, 6 * width], channels)
