"""DeepLabv3+ (Chen et al., 2018) and PSPNet (Zhao et al., 2017) on a dilated ResNet, for images of any size (Section 4.1).

Both are built from segmentation-models-pytorch, whose own `PSPNet` uses three stages of the backbone; this one uses all five.
"""

from __future__ import annotations

from collections.abc import Sequence

from segmentation_models_pytorch.base import SegmentationHead
from segmentation_models_pytorch.decoders.deeplabv3.decoder import DeepLabV3PlusDecoder
from segmentation_models_pytorch.decoders.pspnet.decoder import PSPDecoder
from segmentation_models_pytorch.encoders import get_encoder
from torch import Tensor, nn
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.tasks.weights import load_weights

DEPTH = 5
AUXILIARY_STAGE = 4
"""Stage whose features the auxiliary head uses: the last but one, as in PSPNet (Zhao et al., 2017)."""


class Segmenter(nn.Module):
    """Encoder, decoder and head; in training with an auxiliary head, it returns two predictions.

    The encoder maps images (N, 3, H, W) to features at DEPTH + 1 scales, the finest first, the decoder these to (N,
    channels, h, w); `upsampling` is H / h. The auxiliary head, for training only, is on the features of the last stage but
    one.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        channels: int,
        classes: int,
        *,
        upsampling: int,
        kernel_size: int,
        auxiliary: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.head = SegmentationHead(channels, classes, kernel_size=kernel_size, upsampling=upsampling)
        features: Sequence[int] = encoder.out_channels  # type: ignore[assignment]
        self.auxiliary = build_auxiliary_head(features[AUXILIARY_STAGE], classes) if auxiliary else None

    def forward(self, image: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Map images (N, 3, H, W) to logits (N, classes, H, W); in training also to those of the auxiliary head, if any.

        The decoders need sides that are multiples of the output stride: images are padded with zeros, the mean colour, and
        the logits cropped.
        """
        height, width = image.shape[-2:]
        stride: int = self.encoder.output_stride  # type: ignore[assignment]
        features = self.encoder(F.pad(image, (0, -width % stride, 0, -height % stride)))
        logits = self.head(self.decoder(features))[..., :height, :width]
        if self.auxiliary is None or not self.training:
            return logits
        coarse = self.auxiliary(features[AUXILIARY_STAGE])
        fine = F.interpolate(coarse, size=features[0].shape[-2:], mode="bilinear", align_corners=True)
        return logits, fine[..., :height, :width]


def build_auxiliary_head(channels: int, classes: int) -> nn.Sequential:
    """Build the head of FCN (Long et al., 2015): one convolution with a quarter of the channels, then the classes."""
    return nn.Sequential(
        nn.Conv2d(channels, channels // 4, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels // 4),
        nn.ReLU(inplace=True),
        nn.Dropout2d(0.1),
        nn.Conv2d(channels // 4, classes, kernel_size=1),
    )


def build_backbone(name: str, output_stride: int, weights: str = "none") -> nn.Module:
    """Build a ResNet whose last stages are dilated for an output stride.

    Weights are `none`; `imagenet`, which segmentation-models-pytorch downloads once; or the path of torchvision's state
    dict.
    """
    if weights != "imagenet":
        return load_weights(get_encoder(name, depth=DEPTH, weights=None, output_stride=output_stride), name, weights)
    try:
        return get_encoder(name, depth=DEPTH, weights="imagenet", output_stride=output_stride)
    except Exception as error:  # The exception without a network differs between releases of the hub's client.
        raise RequestError(
            f"The ImageNet weights of {name} are not on this machine and cannot be downloaded ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). Give weights=<path of a state dict of torchvision's {name}>, or weights=none "
            "to start from random ones."
        ) from error


DEEPLAB_RATES = {16: (6, 12, 18), 8: (12, 24, 36)}
"""Output stride → dilations of the pyramid (Chen et al., 2017, Rethinking Atrous Convolution, Section 3.3); the library uses the
second row for both by default."""


def deeplab(
    classes: int, name: str = "resnet50", *, output_stride: int = 16, weights: str = "none", auxiliary: bool = False
) -> Segmenter:
    """Build DeepLabv3+ with separable convolutions on a ResNet, whose last features have the output stride 8 or 16.

    Weights of the backbone are `none`, `imagenet`, or a path; an auxiliary head is for training only.
    """
    encoder = build_backbone(name, output_stride, weights)
    decoder = DeepLabV3PlusDecoder(
        encoder_channels=encoder.out_channels,  # type: ignore[arg-type]
        encoder_depth=DEPTH,
        out_channels=256,
        atrous_rates=DEEPLAB_RATES[output_stride],
        output_stride=output_stride,  # type: ignore[arg-type]
        aspp_separable=True,
        aspp_dropout=0.5,
    )
    return Segmenter(encoder, decoder, 256, classes, upsampling=4, kernel_size=1, auxiliary=auxiliary)


def pspnet(
    classes: int, name: str = "resnet101", *, output_stride: int = 8, weights: str = "none", auxiliary: bool = False
) -> Segmenter:
    """Build PSPNet with the dropout of its authors' code; arguments as for `deeplab`."""
    encoder = build_backbone(name, output_stride, weights)
    decoder = PSPDecoder(encoder.out_channels, out_channels=512, dropout=0.1)  # type: ignore[arg-type]
    return Segmenter(encoder, decoder, 512, classes, upsampling=output_stride, kernel_size=3, auxiliary=auxiliary)
