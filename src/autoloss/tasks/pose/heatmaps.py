"""Heatmaps of joints: how targets are drawn and predictions decoded, the branch of losses, and the network (Section 4.4).

Positions are continuous: the cell in row i and column j covers i to i + 1 and j to j + 1, so that its centre is at (j + ½, i + ½).

Source: Xiao et al., 2018, Simple Baselines for Human Pose Estimation and Tracking.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.activated import spatial
from autoloss.space.branch import Branch, Role
from autoloss.space.form import Kernel
from autoloss.space.operators import upcast
from autoloss.tasks.pose.people import JOINTS
from autoloss.tasks.weights import build_resnet, make_block

REACH = 3.0
"""Standard deviations beyond which a target is 0, along each side."""
SHIFT = 0.25
"""Cells by which a decoded position moves towards the higher of the two neighbours, along each side."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class HeatmapBranch(Branch):
    """A branch with the leaves `p`, the raw heatmaps, and `y`, those of the target; unlabelled joints do not count.

    The context of N persons with K joints holds `target` (N, K, H, W), 0 for a joint that does not count, `labelled` (N,
    K), and for the metric, `measure`, also `joints`, (N, K, 2) in cells, and `area`, (N,) in square cells.
    """

    measure: Callable[[Tensor, Mapping[str, Tensor]], float]
    weight: float = 1.0
    leaves_and_roles: Mapping[str, Role] = field(
        default_factory=lambda: {"y": Role.TARGET, "p": Role.PREDICTION}, init=False
    )

    @property
    def kernel(self) -> Kernel:
        return "none"

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        heatmaps, target = upcast(spatial(prediction)), context["target"]
        if heatmaps.shape != target.shape:
            raise RequestError(
                f"The network predicts heatmaps of shape {tuple(heatmaps.shape)}; the targets have the shape "
                f"{tuple(target.shape)}. Give the network one channel for each joint, and the stride of the crops."
            )
        return {"y": target.to(heatmaps.dtype), "p": heatmaps}

    def mask(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["labelled"].bool()[:, :, None, None]

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        target = context["target"]
        return float(target.numel() // target.shape[1])

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        return float(self.measure(spatial(prediction.detach()), context))

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["target"]


def draw_heatmaps(joints: Tensor, labelled: Tensor, size: tuple[int, int], sigma: float) -> Tensor:
    """Draw a Gaussian with maximum 1 at each labelled joint, 0 beyond three standard deviations.

    Args:
        joints: (…, 2) as x and y in cells.
        labelled: (…), bool; the others stay 0.
        size: H and W.
        sigma: Standard deviation in cells.

    Returns:
        (…, H, W).

    >>> draw_heatmaps(torch.tensor([1.5, 0.5]), torch.tensor(True), (1, 3), 1.0)
    tensor([[0.6065, 1.0000, 0.6065]])
    """
    along = []
    for axis, length in ((1, size[0]), (0, size[1])):
        distance = (torch.arange(length) + 0.5 - joints[..., axis, None]) / sigma
        along.append(torch.exp(-(distance**2) / 2) * (distance.abs() <= REACH))
    rows, columns = along
    return rows[..., :, None] * columns[..., None, :] * labelled[..., None, None]


def decode_heatmaps(heatmaps: Tensor) -> tuple[Tensor, Tensor]:
    """Find each joint at the cell of the maximum, a quarter of a cell towards the higher neighbour along each side.

    Args:
        heatmaps: (N, K, H, W).

    Returns:
        Positions (N, K, 2) as x and y in cells, and the maxima (N, K).

    >>> positions, values = decode_heatmaps(torch.tensor([[[[0.0, 0.9, 1.0, 0.2]]]]))
    >>> positions.tolist(), values.tolist()
    ([[[2.25, 0.5]]], [[1.0]])
    """
    height, width = heatmaps.shape[-2:]
    values, place = heatmaps.flatten(2).max(dim=2)
    row, column = place // width, place % width
    shifts = []
    for cell, length, stride in ((column, width, 1), (row, height, width)):
        # At an edge there is one neighbour only, and no shift.
        inner = (cell > 0) & (cell < length - 1)
        beside = (torch.where(inner, place + step, place)[..., None] for step in (stride, -stride))
        after, before = (heatmaps.flatten(2).gather(2, at)[..., 0] for at in beside)
        shifts.append(torch.sign(after - before) * SHIFT)
    return torch.stack([column + 0.5 + shifts[0], row + 0.5 + shifts[1]], dim=-1), values


DEVIATION = 0.001
"""Standard deviation of the initial weights after the backbone."""


def build_baseline(backbone: nn.Module, channels: int, widths: Sequence[int] = (256, 256, 256)) -> nn.Sequential:
    """Build a network from images (N, 3, H, W) to raw heatmaps (N, 17, H/4, W/4), with a backbone of stride 32.

    The backbone maps images to features (N, channels, h, w), and deconvolutions each double their resolution.
    """
    layers: list[nn.Module] = []
    for width in widths:
        deconvolution = nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1, bias=False)
        nn.init.normal_(deconvolution.weight, std=DEVIATION)
        layers += [deconvolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        channels = width
    head = nn.Conv2d(channels, len(JOINTS), 1)
    nn.init.normal_(head.weight, std=DEVIATION)
    assert head.bias is not None
    nn.init.zeros_(head.bias)
    return nn.Sequential(OrderedDict(backbone=backbone, deconvolutions=nn.Sequential(*layers), head=head))


def simple_baseline(name: str = "resnet50", weights: str = "none") -> nn.Sequential:
    """Build the paper's network on a ResNet of torchvision; weights are `none`, `imagenet`, or the path of a state dict."""
    body = build_resnet(name, weights)
    channels: int = body.fc.in_features
    parts = (body.conv1, body.bn1, body.relu, body.maxpool, body.layer1, body.layer2, body.layer3, body.layer4)
    return build_baseline(nn.Sequential(*parts), channels)


def small_baseline(width: int = 32) -> nn.Sequential:
    """Build the same at a size that one core trains in seconds: four strided stages, two deconvolutions, stride 4."""
    widths = (width, width, 2 * width, 3 * width)
    stages = [make_block(before, after) for before, after in zip((3, *widths), widths, strict=False)]
    return build_baseline(nn.Sequential(*stages), widths[-1], (2 * width, 2 * width))
