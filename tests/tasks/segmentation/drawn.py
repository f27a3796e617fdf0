"""Pictures drawn by hand: a few pixels, known to the last one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from autoloss.tasks.segmentation.data.image_files import ImageFiles, read_indices
from tests.tasks.segmentation.generated import save_grey

CLASSES = ("paper", "ink", "smudge")


def painted(mask: np.ndarray) -> np.ndarray:
    """An image that shows its mask: class c is grey of 20 + 60·c, 255 is white."""
    grey = np.where(mask == 255, 255, 20 + 60 * mask.astype(int)).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def pictures(place: Path, masks: list[np.ndarray]) -> ImageFiles:
    """Save masks, and images painted from them without loss."""
    pairs = []
    for index, mask in enumerate(masks):
        pair = (place / f"image{index}.png", place / f"mask{index}.png")
        Image.fromarray(painted(mask)).save(pair[0])
        save_grey(mask, pair[1])
        pairs.append(pair)
    return ImageFiles("drawn", tuple(pairs), CLASSES, read_indices)


def blocks(count: int, height: int = 32, width: int = 40) -> list[np.ndarray]:
    """Masks of 8 × 8 blocks of one class each, some ignored."""
    rng = np.random.default_rng(0)
    small = rng.choice([0, 1, 2, 255], size=(count, height // 8, width // 8)).astype(np.uint8)
    return list(small.repeat(8, axis=1).repeat(8, axis=2))
