"""SimpleBaseline: a ResNet, three deconvolutions, and a heatmap for each joint (Section 4.4).

Source: Xiao et al., 2018, Simple Baselines for Human Pose Estimation and Tracking.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from autoloss.tasks.pose.people import JOINTS
from autoloss.tasks.weights import build_resnet, make_block

DEVIATION = 0.001
"""Standard deviation of the initial weights after the backbone."""


class SimpleBaseline(nn.Module):
    """A backbone, images (N, 3, H, W) → features (N, channels, h, w), and deconvolutions that each double their resolution."""

    def __init__(self, backbone: nn.Module, channels: int, widths: Sequence[int] = (256, 256, 256)) -> None:
        super().__init__()
        self.backbone = backbone
        layers: list[nn.Module] = []
        for width in widths:
            deconvolution = nn.ConvTranspose2d(channels, width, 4, stride=2, padding=1, bias=False)
            nn.init.normal_(deconvolution.weight, std=DEVIATION)
            layers += [deconvolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            channels = width
        self.deconvolutions = nn.Sequential(*layers)
        self.head = nn.Conv2d(channels, len(JOINTS), 1)
        nn.init.normal_(self.head.weight, std=DEVIATION)
        assert self.head.bias is not None
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, 3, H, W) to raw heatmaps (N, 17, H/4, W/4), with a backbone of stride 32."""
        return self.head(self.deconvolutions(self.backbone(images)))


def simple_baseline(name: str = "resnet50", weights: str = "none") -> SimpleBaseline:
    """Build the paper's network on a ResNet of torchvision; weights are `none`, `imagenet`, or the path of a state dict."""
    body = build_resnet(name, weights)
    channels: int = body.fc.in_features
    parts = (body.conv1, body.bn1, body.relu, body.maxpool, body.layer1, body.layer2, body.layer3, body.layer4)
    return SimpleBaseline(nn.Sequential(*parts), channels)


def small_baseline(width: int = 32) -> SimpleBaseline:
    """Build the same at a size that one core trains in seconds: four strided stages, two deconvolutions, stride 4."""
    widths = (width, width, 2 * width, 3 * width)
    stages = [make_block(before, after) for before, after in zip((3, *widths), widths, strict=False)]
    return SimpleBaseline(nn.Sequential(*stages), widths[-1], (2 * width, 2 * width))
