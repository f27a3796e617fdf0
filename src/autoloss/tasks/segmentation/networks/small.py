"""A convolutional network small enough for a proxy training of a few seconds on one core (digits-seg)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class SmallSegmenter(nn.Module):
    """Logits at three scales are added (as in FCN-8s), then upsampled by 2 with a pixel shuffle.

    Adding logits, rather than features, connects the coarse scale directly to the loss, so that the network soon leaves the plateau
    on which it only distinguishes ink from paper.

    Args:
        classes: Channels of the prediction.
        width: Channels of the finest scale; the next two have twice and four times as many.
    """

    def __init__(self, classes: int, width: int = 16) -> None:
        super().__init__()
        self.fine = _block(1, width, stride=2)
        self.middle = nn.Sequential(_block(width, 2 * width, stride=2), _block(2 * width, 2 * width, stride=1))
        self.coarse = _block(2 * width, 4 * width, stride=2)
        self.votes = nn.ModuleList(nn.Conv2d(channels * width, 4 * classes, kernel_size=1) for channels in (1, 2, 4))

    def forward(self, image: Tensor) -> Tensor:
        """Map images (N, 1, H, W) to logits (N, classes, H, W); H and W are multiples of 8."""
        fine = self.fine(image)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        of_fine, of_middle, of_coarse = (
            head(scale) for head, scale in zip(self.votes, (fine, middle, coarse), strict=True)
        )
        logits = of_middle + F.interpolate(of_coarse, scale_factor=2)
        logits = of_fine + F.interpolate(logits, scale_factor=2)
        return F.pixel_shuffle(logits, 2)


def _block(channels: int, into: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, into, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(into),
        nn.ReLU(inplace=True),
    )
