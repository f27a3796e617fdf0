"""PSPNet (Zhao et al., 2017) on a ResNet: the network that the found losses are carried over to (Section 4.1, Generalization).

The library's own `PSPNet` stops after the third stage; this one has all five, as in the paper.
"""

from __future__ import annotations

from autoloss.tasks.segmentation.networks.segmenter import Segmenter, build_backbone

# After the module above, which says what to do where the extra is missing.
from segmentation_models_pytorch.decoders.pspnet.decoder import PSPDecoder  # isort: skip

CHANNELS = 512
DROPOUT = 0.1
"""Of the head (Zhao et al.'s code)."""


def pspnet(
    classes: int, name: str = "resnet101", *, output_stride: int = 8, weights: str = "none", auxiliary: bool = False
) -> Segmenter:
    """Build PSPNet; arguments and errors as those of `deeplab`."""
    encoder = build_backbone(name, output_stride, weights)
    decoder = PSPDecoder(encoder.out_channels, out_channels=CHANNELS, dropout=DROPOUT)  # type: ignore[arg-type]
    return Segmenter(encoder, decoder, CHANNELS, classes, upsampling=output_stride, kernel_size=3, auxiliary=auxiliary)
