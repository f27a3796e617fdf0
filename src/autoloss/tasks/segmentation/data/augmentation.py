"""The paper's joint augmentation of images and masks for training, and whole images for evaluation (Appendix A).

Both are torch data sets of (input, target) pairs: normalised images (3, H, W) in float32 and classes (H, W) in int64. Random
numbers come from torch's global generator, which a training seeds.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageSource, resize, resize_image, resize_mask

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of the colours of ImageNet, on which the weights of the networks were trained."""
SCALES = (0.5, 2.0)
_MEAN, _DEVIATION = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
_PADDING, _IGNORED = (255 * _MEAN).round().byte(), torch.tensor(IGNORED, dtype=torch.uint8)


@final
class RandomScaledCrop(v2.Transform):
    """Scale image and mask by a common random factor and crop a random square, padded where they are too small.

    The crop is done first, so that only its pixels are resized. The result equals that of torchvision's own transforms
    (tested), up to a rounding of the factor to whole pixels, in little more than half the time (measured).
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        factor = torch.empty(()).uniform_(*SCALES).item()
        return {"windows": [self._window(length, factor) for length in flat_inputs[0].shape[-2:]]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        source, place = zip(*params["windows"], strict=True)
        piece = inpt.as_subclass(Tensor)[..., *source]
        size = [part.stop - part.start for part in place]
        if isinstance(inpt, tv_tensors.Mask):
            return tv_tensors.Mask(self._pad(resize_mask(piece, *size), place, _IGNORED))
        return tv_tensors.Image(self._pad(resize_image(piece, *size), place, _PADDING))

    def _window(self, length: int, factor: float) -> tuple[slice, slice]:
        """Return the pixels of the image along one axis, and those of the crop that they are resized to."""
        wanted = max(1, round(self.side / factor))
        if wanted <= length:
            start = int(torch.randint(length - wanted + 1, ()))
            return slice(start, start + wanted), slice(0, self.side)
        shown = min(self.side, max(1, round(factor * length)))
        start = int(torch.randint(self.side - shown + 1, ()))
        return slice(0, length), slice(start, start + shown)

    def _pad(self, piece: Tensor, place: tuple[slice, ...], value: Tensor) -> Tensor:
        if piece.shape[-2:] == (self.side, self.side):
            return piece
        square = value.expand(*piece.shape[:-2], self.side, self.side).clone()
        square[..., *place] = piece
        return square


@final
class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """A data set of images with their masks.

    Args:
        side: Side in pixels that whole images are resized to for evaluation, as in the paper's proxy. None leaves each at its own
            size, which needs a batch size of 1.
        crop: Side of the square that each access crops anew for training: 128 in the paper's proxy, 512 in its retraining.
    """

    def __init__(self, source: ImageSource, side: int | None = None, *, crop: int | None = None) -> None:
        self.source, self.side = source, side
        self._augment = None if crop is None else v2.Compose([RandomScaledCrop(crop), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.source.pair(index)
        if self._augment is not None:
            image, mask = self._augment(tv_tensors.Image(image), tv_tensors.Mask(mask))
        elif self.side is not None:
            image, mask = resize(image, mask, self.side, self.side)
        return normalise(image.as_subclass(Tensor)), mask.as_subclass(Tensor).long()


def normalise(image: Tensor) -> Tensor:
    """Normalise an image (3, H, W) in 8 bits by the mean and standard deviation of ImageNet."""
    return image.float().div_(255).sub_(_MEAN).div_(_DEVIATION)
