"""A convolutional network small enough for a proxy training of a few seconds on one core (digits-seg)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from autoloss.tasks.resnet import make_block


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
        self.fine = make_block(1, width, stride=2)
        self.middle = nn.Sequential(make_block(width, 2 * width, stride=2), make_block(2 * width, 2 * width, stride=1))
        self.coarse = make_block(2 * width, 4 * width, stride=2)
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
