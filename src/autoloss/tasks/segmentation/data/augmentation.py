"""The paper's joint augmentation of images and masks for training, and whole images for evaluation (Appendix A).

Both are torch data sets of (input, target) pairs: normalised images (3, H, W) in float32 and classes (H, W) in int64. Random
numbers come from torch's global generator, which a training seeds.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision.transforms.v2.functional import horizontal_flip

from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageSource, resize

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the colours of ImageNet, on which the weights of the networks were trained."""
SCALES, FLIPPED = (0.5, 2.0), 0.5
"""Smallest and largest factor on an image, and the share of images that are mirrored."""
_MEAN, _DEVIATION = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
_PADDING, _IGNORED = (255 * _MEAN).round().byte(), torch.tensor(IGNORED, dtype=torch.uint8)


def crop_at_random(image: Tensor, mask: Tensor, side: int) -> tuple[Tensor, Tensor]:
    """Scale image and mask by a common random factor and crop a random square, padded where they are too small.

    The crop is done first, so that only its pixels are resized. The result equals that of torchvision's own transforms
    (tested), up to a rounding of the factor to whole pixels, in little more than half the time (measured).
    """
    factor = torch.empty(()).uniform_(*SCALES).item()
    source, place = zip(*(_draw_window(length, factor, side) for length in image.shape[-2:]), strict=True)
    size = [part.stop - part.start for part in place]
    pieces = resize(image[..., *source], mask[..., *source], *size)
    if size == [side, side]:
        return pieces
    squares = _PADDING.expand(-1, side, side).clone(), _IGNORED.expand(side, side).clone()
    for square, piece in zip(squares, pieces, strict=True):
        square[..., *place] = piece
    return squares


def _draw_window(length: int, factor: float, side: int) -> tuple[slice, slice]:
    """Return the pixels of the image along one axis, and those of the crop that they are resized to."""
    wanted = max(1, round(side / factor))
    if wanted <= length:
        start = int(torch.randint(length - wanted + 1, ()))
        return slice(start, start + wanted), slice(0, side)
    shown = min(side, max(1, round(factor * length)))
    start = int(torch.randint(side - shown + 1, ()))
    return slice(0, length), slice(start, start + shown)


@final
class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """A data set of images with their masks.

    Args:
        side: Side in pixels that whole images are resized to for evaluation, as in the paper's proxy. None leaves each at its own
            size, which needs a batch size of 1.
        crop: Side of the square that each access crops anew for training: 128 in the paper's proxy, 512 in its retraining.
    """

    def __init__(self, source: ImageSource, side: int | None = None, *, crop: int | None = None) -> None:
        self.source, self.side, self._crop = source, side, crop

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.source.pair(index)
        if self._crop is not None:
            image, mask = crop_at_random(image, mask, self._crop)
            if torch.rand(1) < FLIPPED:
                image, mask = map(horizontal_flip, (image, mask))
        elif self.side is not None:
            image, mask = resize(image, mask, self.side, self.side)
        return normalise(image), mask.long()


def normalise(image: Tensor) -> Tensor:
    """Normalise an image (3, H, W) in 8 bits by the mean and standard deviation of ImageNet."""
    return image.float().div_(255).sub_(_MEAN).div_(_DEVIATION)
