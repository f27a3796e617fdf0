"""Parts of the networks of several tasks: torchvision's ResNets, with weights of any source, and a small convolutional block."""

from __future__ import annotations

from typing import Any

from torch import nn

from autoloss.errors import RequestError, unknown
from autoloss.training.weights import load_state_dict

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def build_resnet(name: str, weights: str = "none", **options: Any) -> Any:
    """Build a ResNet of torchvision.

    Args:
        weights: `none`; `imagenet`, which torchvision downloads; or the path of a state dict.
        options: Further arguments of torchvision's function.

    Raises:
        RequestError: The ResNet is unknown, or the weights are not available or do not fit.
    """
    if name not in RESNETS:
        raise unknown("backbone", name, RESNETS)
    # Imported here: small networks do not need it.
    from torchvision.models import resnet

    body: Any = getattr(resnet, name)(weights="DEFAULT" if weights == "imagenet" else None, **options)
    if weights not in ("none", "imagenet"):
        try:
            body.load_state_dict(load_state_dict(weights))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise RequestError(
                f"{weights} does not hold the weights of a {name} ({reason}); give the path of its state dict."
            ) from None
    return body


def make_block(channels: int, into: int, stride: int = 2) -> nn.Sequential:
    """Return a 3×3 convolution with batch normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, into, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(into),
        nn.ReLU(inplace=True),
    )
