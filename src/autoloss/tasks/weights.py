"""Weights from files of names and tensors only, never from a pickle that could run code; ResNets, and a small block."""

from __future__ import annotations

import os
import warnings
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, name_kind, quote

_EXPECTED = "Expected a state dict, saved by torch.save(network.state_dict(), path) or as safetensors."


def load_state_dict(path: str) -> dict[str, Tensor]:
    """Read a state dict, saved by `torch.save` or as safetensors."""
    if not os.path.isfile(path):
        raise RequestError(f"There is no file {path!r}; expected none, imagenet or the path of a state dict.")
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(path)
        with warnings.catch_warnings():
            # torch warns about formats that it then refuses.
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError:
        # The message of torch advises to load the file without this protection.
        raise RequestError(
            f"The weights in {path} cannot be read: the file is damaged, or contains code, such as a pickled network. {_EXPECTED}"
        ) from None
    except Exception as error:  # Each format raises its own errors.
        reason = (str(error).splitlines() or [""])[0]
        raise RequestError(f"{path} cannot be read ({type(error).__name__}: {reason[:300]}). {_EXPECTED}") from error
    if not isinstance(found, dict):
        raise RequestError(f"{path} holds {name_kind(found)}, not a state dict. {_EXPECTED}")
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise RequestError(f"{path} holds {name_kind(value)} under {quote(name)}. {_EXPECTED}")
    return found


def build_resnet(name: str, weights: str = "none", **options: Any) -> Any:
    """Build a ResNet of torchvision.

    Args:
        weights: `none`; `imagenet`, which torchvision downloads; or the path of a state dict.
        options: Further arguments of torchvision's function.
    """
    # Imported here: small networks do not need it.
    from torchvision.models import resnet

    body: Any = getattr(resnet, name)(weights="DEFAULT" if weights == "imagenet" else None, **options)
    return load_weights(body, name, "none" if weights == "imagenet" else weights)


def load_weights(network: Any, name: str, weights: str) -> Any:
    """Load the state dict of a ResNet of torchvision into a network, which is returned; `weights` is its path, or `none`."""
    if weights != "none":
        try:
            network.load_state_dict(load_state_dict(weights))
        except RuntimeError as error:
            reason = " ".join(str(error).split())[:300]
            raise RequestError(f"{weights} is not a state dict of a {name} ({reason}).") from None
    return network


def make_block(channels: int, into: int, stride: int = 2) -> nn.Sequential:
    """Return a 3×3 convolution with batch normalisation and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, into, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(into),
        nn.ReLU(inplace=True),
    )
