"""The paper's joint augmentation of images and masks, and the whole images that are evaluated (Appendix A).

Both are torch data sets of (input, target) pairs, of normalised images (3, H, W) in 32-bit floating point and classes (H, W) in
64-bit integers. All that is drawn comes from torch's global generator, which a training seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data.pictures import IGNORED, ImageSource
from autoloss.tasks.segmentation.data.resizing import resize, resize_image, resize_mask

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
_PADDING, _IGNORED = (255 * _MEAN).round().byte(), torch.tensor(IGNORED, dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class Window:
    """What a crop shows of one axis: `length` pixels from `start` become `shown` pixels, `offset` from the crop's edge."""

    start: int
    length: int
    offset: int
    shown: int

    @property
    def source(self) -> slice:
        return slice(self.start, self.start + self.length)

    @property
    def place(self) -> slice:
        return slice(self.offset, self.offset + self.shown)


@final
class RandomScaledCrop(v2.Transform):
    """Scale image and mask by one factor, drawn uniformly, and crop a square at random, padded where they are too small.

    The crop comes first, so that only what is shown is resized; what is shown is the same (tested beside torchvision's own
    transforms), up to a rounding of the factor to whole pixels, in little more than half the time (measured).

    Args:
        side: Pixels of the square.
    """

    def __init__(self, side: int, scales: tuple[float, float] = SCALES) -> None:
        super().__init__()
        self.side = side
        self.scales = scales

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        factor = torch.empty(()).uniform_(*self.scales).item()
        return {"windows": [self._window(length, factor) for length in flat_inputs[0].shape[-2:]]}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        vertical, horizontal = params["windows"]
        piece = inpt.as_subclass(Tensor)[..., vertical.source, horizontal.source]
        size = vertical.shown, horizontal.shown
        if isinstance(inpt, tv_tensors.Mask):
            return tv_tensors.Mask(self._padded(resize_mask(piece, *size), params, _IGNORED))
        return tv_tensors.Image(self._padded(resize_image(piece, *size), params, _PADDING))

    def _window(self, length: int, factor: float) -> Window:
        wanted = max(1, round(self.side / factor))
        if wanted <= length:
            return Window(_draw_below(length - wanted + 1), wanted, 0, self.side)
        shown = min(self.side, max(1, round(factor * length)))
        return Window(0, length, _draw_below(self.side - shown + 1), shown)

    def _padded(self, piece: Tensor, params: dict[str, Any], value: Tensor) -> Tensor:
        if piece.shape[-2:] == (self.side, self.side):
            return piece
        vertical, horizontal = params["windows"]
        square = value.expand(*piece.shape[:-2], self.side, self.side).clone()
        square[..., vertical.place, horizontal.place] = piece
        return square


@final
class AugmentedDataset(Dataset[tuple[Tensor, Tensor]]):
    """What is trained on: each time an example is drawn, it is augmented anew.

    Args:
        source: Pictures, or the small copy of them.
        side: Pixels of the crop's side: 128 in the paper's proxy, 512 in its retraining.
    """

    def __init__(self, source: ImageSource, side: int) -> None:
        self.source = source
        self._transform = v2.Compose([RandomScaledCrop(_check_side(side)), v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.source.pair(index)
        image, mask = self._transform(tv_tensors.Image(image), tv_tensors.Mask(mask))
        return normalise(image.as_subclass(Tensor)), mask.as_subclass(Tensor).long()


@final
class WholeImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """What is evaluated: whole images.

    Images of their own size have differing sizes, and cannot share a batch: draw them one by one (a batch size of 1).

    Args:
        source: Pictures, or the small copy of them.
        side: Pixels to which both sides are resized, as in the paper's proxy; their own size when left out.
    """

    def __init__(self, source: ImageSource, side: int | None = None) -> None:
        self.source = source
        self.side = None if side is None else _check_side(side)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.source.pair(index)
        if self.side is not None:
            image, mask = resize(image, mask, self.side, self.side)
        return normalise(image), mask.long()


def normalise(image: Tensor) -> Tensor:
    """Scale an image (3, H, W) of 8 bits to mean 0 and deviation 1 of ImageNet's."""
    return image.float().div_(255).sub_(_MEAN).div_(_DEVIATION)


def _draw_below(end: int) -> int:
    return int(torch.randint(end, ()).item())


def _check_side(side: int) -> int:
    if side < 1:
        raise RequestError(f"Images of {side} pixels' side were asked for; expected at least 1.")
    return side
