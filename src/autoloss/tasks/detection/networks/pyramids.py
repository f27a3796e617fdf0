"""Backbones of detectors with a feature pyramid: all of its levels, or the last ones as in the proxy (Appendix A)."""

from __future__ import annotations

from typing import Any

from torch import nn
from torchvision.models import resnet
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d

from autoloss.errors import RequestError, unknown
from autoloss.training.weights import load_state_dict

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def last_levels(name: str, channels: int = 256, weights: str = "none") -> BackboneWithFPN:
    """Return torchvision's ResNet with the last three levels of its pyramid: P4, P5 and the pooled P6 (Appendix A).

    Args:
        name: As in torchvision, such as resnet50.
        weights: `none`; `imagenet`, which torchvision downloads; or the path of a state dict. With weights, batch normalisation
            and the first stage are frozen, as is usual for detectors.

    Raises:
        RequestError: There is no such ResNet, or the weights do not fit.
    """
    return _pyramid(name, channels, weights, {"layer3": "0", "layer4": "1"})


def all_levels(name: str, channels: int = 256, weights: str = "none") -> BackboneWithFPN:
    """Return torchvision's ResNet with its whole pyramid, P2 to P6; arguments and errors as those of `last_levels`."""
    return _pyramid(name, channels, weights, {f"layer{number + 1}": str(number) for number in range(4)})


def _pyramid(name: str, channels: int, weights: str, layers: dict[str, str]) -> BackboneWithFPN:
    body = _resnet(name, weights)
    widths = [body.inplanes // 2 ** (4 - int(layer[-1])) for layer in layers]
    return BackboneWithFPN(body, layers, widths, channels)


def _resnet(name: str, weights: str) -> Any:
    if name not in RESNETS:
        raise unknown("backbone", name, RESNETS)
    fresh = weights == "none"
    body = getattr(resnet, name)(
        weights="DEFAULT" if weights == "imagenet" else None, norm_layer=nn.BatchNorm2d if fresh else FrozenBatchNorm2d
    )
    if fresh:
        return body
    if weights != "imagenet":
        try:
            body.load_state_dict(load_state_dict(weights))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise RequestError(
                f"{weights} holds no weights of a {name} ({reason}); give the path of its state dict."
            ) from None
    for part in (body.conv1, body.layer1):
        part.requires_grad_(False)
    return body


class SmallBody(nn.Module):
    """A body of four convolutional stages, for a proxy training of a minute on one core (digits-det).

    The strides of `layer3` and `layer4` are 8 and 16 pixels.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layer1 = _stage(1, width, 2)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = nn.Sequential(_stage(2 * width, 4 * width, 2), _stage(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(_stage(4 * width, 6 * width, 2), _stage(6 * width, 6 * width, 1))


def small_levels(channels: int = 64, width: int = 16) -> BackboneWithFPN:
    """Return a small body with the last two levels of its pyramid and a pooled one, as in Appendix A's proxy."""
    return BackboneWithFPN(SmallBody(width), {"layer3": "0", "layer4": "1"}, [4 * width, 6 * width], channels)


def _stage(channels: int, into: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, into, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(into), nn.ReLU(inplace=True)
    )
