"""PSPNet (Zhao et al., 2017) on a ResNet: the network that found losses are transferred to (Section 4.1, Generalization).

The library's own `PSPNet` uses three stages of the backbone; this one uses all five, as in the paper.
"""

from __future__ import annotations

from autoloss.tasks.segmentation.networks.segmenter import Segmenter, build_backbone

# After the module above, whose error says what to do if the extra is missing.
from segmentation_models_pytorch.decoders.pspnet.decoder import PSPDecoder  # isort: skip

CHANNELS = 512
DROPOUT = 0.1
"""Dropout of the head (code of Zhao et al.)."""


def pspnet(
    classes: int, name: str = "resnet101", *, output_stride: int = 8, weights: str = "none", auxiliary: bool = False
) -> Segmenter:
    """Build PSPNet; arguments and errors as for `deeplab`."""
    encoder = build_backbone(name, output_stride, weights)
    decoder = PSPDecoder(encoder.out_channels, out_channels=CHANNELS, dropout=DROPOUT)  # type: ignore[arg-type]
    return Segmenter(encoder, decoder, CHANNELS, classes, upsampling=output_stride, kernel_size=3, auxiliary=auxiliary)
