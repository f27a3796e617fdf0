"""DeepLabv3+ (Chen et al., 2018) on a ResNet: the network of the paper's segmentation search and retraining (Section 4.1)."""

from __future__ import annotations

from autoloss.tasks.segmentation.networks.segmenter import DEPTH, Segmenter, build_backbone

# After the module above, whose error says what to do if the extra is missing.
from segmentation_models_pytorch.decoders.deeplabv3.decoder import DeepLabV3PlusDecoder  # isort: skip

CHANNELS = 256
DROPOUT = 0.5
RATES = {16: (6, 12, 18), 8: (12, 24, 36)}
"""Output stride → dilations of the pyramid (Chen et al., 2017, Rethinking Atrous Convolution, Section 3.3); the library uses the
second row for both by default."""


def deeplab(
    classes: int, name: str = "resnet50", *, output_stride: int = 16, weights: str = "none", auxiliary: bool = False
) -> Segmenter:
    """Build DeepLabv3+ with separable convolutions.

    Args:
        classes: Channels of the prediction.
        name: The backbone, one of `BACKBONES`.
        output_stride: Stride of the backbone's last features: 16 or 8.
        weights: Weights of the backbone: `none`, `imagenet`, or a path.
        auxiliary: Add an auxiliary head on the last stage but one, for training only.

    Raises:
        RequestError: An unknown backbone or stride, or weights that are not available or do not fit.
    """
    encoder = build_backbone(name, output_stride, weights)
    decoder = DeepLabV3PlusDecoder(
        encoder_channels=encoder.out_channels,  # type: ignore[arg-type]
        encoder_depth=DEPTH,
        out_channels=CHANNELS,
        atrous_rates=RATES[output_stride],
        output_stride=output_stride,  # type: ignore[arg-type]
        aspp_separable=True,
        aspp_dropout=DROPOUT,
    )
    return Segmenter(encoder, decoder, CHANNELS, classes, upsampling=4, kernel_size=1, auxiliary=auxiliary)
