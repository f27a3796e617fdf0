"""The paper's joint augmentation of images and masks, and the whole images that are evaluated (Appendix A).

Both are torch data sets of (input, target) pairs, of normalised images (3, H, W) in 32-bit floating point and classes (H, W) in
64-bit integers. All that is drawn comes from torch's global generator, which a training seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from autoloss.errors import RequestError
from autoloss.tasks.datasets.pictures import IGNORED, Source
from autoloss.tasks.datasets.resizing import resized

try:
    from torchvision import tv_tensors
    from torchvision.transforms import v2
except (ImportError, RuntimeError) as error:  # A torchvision of another torch raises RuntimeError.
    raise RequestError(
        f"torchvision cannot be imported ({error}); data sets of images need it, in the version that goes with torch. "
        "Run: pip install autoloss[vision]"
    ) from None

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet's red, green and blue, on which the networks' weights were trained."""
SCALES = (0.5, 2.0)
_MEAN, _DEVIATION = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))


@final
class RandomScale(nn.Module):
    """Resize image and mask by one factor, drawn uniformly.

    torchvision's own `ScaleJitter` scales to a fixed size, and shifts masks by up to half a pixel.
    """

    def __init__(self, scales: tuple[float, float] = SCALES) -> None:
        super().__init__()
        self.scales = scales

    def forward(self, image: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        factor = torch.empty(()).uniform_(*self.scales).item()
        height, width = (max(1, round(factor * length)) for length in image.shape[-2:])
        image, mask = resized(image.as_subclass(Tensor), mask.as_subclass(Tensor), height, width)
        return tv_tensors.Image(image), tv_tensors.Mask(mask)


def joint(side: int) -> v2.Compose:
    """Return the augmentation: scale, crop with padding, flip; (image, mask) of 8 bits → the same, side × side."""
    mean = [round(255 * value) for value in MEAN]
    fill: Any = {tv_tensors.Image: mean, tv_tensors.Mask: IGNORED}
    crop = v2.RandomCrop((side, side), pad_if_needed=True, fill=fill)
    return v2.Compose([RandomScale(), crop, v2.RandomHorizontalFlip()])


@final
class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """What is trained on: each time an example is drawn, it is augmented anew.

    Args:
        source: Pictures, or the small copy of them.
        side: Pixels of the crop's side: 128 in the paper's proxy, 512 in its retraining.
    """

    def __init__(self, source: Source, side: int) -> None:
        self.source = source
        self._transform = joint(_positive(side))

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.source.pair(index)
        image, mask = self._transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
        return normalised(image.as_subclass(Tensor)), mask.as_subclass(Tensor).long()


@final
class Whole(Dataset[tuple[Tensor, Tensor]]):
    """What is evaluated: whole images.

    Images of their own size have differing sizes, and cannot share a batch: draw them one by one (a batch size of 1).

    Args:
        source: Pictures, or the small copy of them.
        side: Pixels to which both sides are resized, as in the paper's proxy; their own size when left out.
    """

    def __init__(self, source: Source, side: int | None = None) -> None:
        self.source = source
        self.side = None if side is None else _positive(side)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.source.pair(index)
        if self.side is not None:
            image, mask = resized(image, mask, self.side, self.side)
        return normalised(image), mask.long()

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return the examples of a batch, as torch's loader asks for them.

        Raises:
            RequestError: Their sizes differ.
        """
        items = [self[index] for index in indices]
        sizes = {tuple(mask.shape) for _, mask in items}
        if len(sizes) > 1:
            raise RequestError(
                f"A batch of {self.source.name} holds images of {len(sizes)} sizes; expected one size. "
                "Evaluate whole images with a batch size of 1, or resize them to a common side."
            )
        return items


def normalised(image: Tensor) -> Tensor:
    """Scale an image (3, H, W) of 8 bits to mean 0 and deviation 1 of ImageNet's."""
    return image.float().div_(255).sub_(_MEAN).div_(_DEVIATION)


def _positive(side: int) -> int:
    if side < 1:
        raise RequestError(f"Images of {side} pixels' side were asked for; expected at least 1.")
    return side
