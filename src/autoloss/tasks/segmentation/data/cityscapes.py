"""Cityscapes with its 19 classes of the benchmark, as published (Section 4.2, generalisation).

Source: Cordts et al., "The Cityscapes Dataset for Semantic Urban Scene Understanding", CVPR 2016, and the table of labels in
the data set's own scripts (id and trainId of each label).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from autoloss.errors import RequestError
from autoloss.tasks.files import Fault, FaultyFile, find_directory, find_root
from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageFiles, read_indices

NAME = "Cityscapes"
LABELS = 34
"""Label ids in a mask run from 0 to 33; those of no class are ignored."""
CLASSES: Mapping[str, int] = {
    "road": 7,
    "sidewalk": 8,
    "building": 11,
    "wall": 12,
    "fence": 13,
    "pole": 17,
    "traffic light": 19,
    "traffic sign": 20,
    "vegetation": 21,
    "terrain": 22,
    "sky": 23,
    "person": 24,
    "rider": 25,
    "car": 26,
    "truck": 27,
    "bus": 28,
    "train": 31,
    "motorcycle": 32,
    "bicycle": 33,
}
"""Class → label id, in the order of the train ids."""
IMAGES, MASKS = "leftImg8bit", "gtFine"
IMAGE_END, MASK_END = "_leftImg8bit.png", "_gtFine_labelIds.png"
LAYOUT = """\
  leftImg8bit/train/aachen/aachen_000000_000019_leftImg8bit.png, …
  gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png, …
  and the same for val"""

TRAIN_IDS = np.full(256, IGNORED, dtype=np.uint8)
TRAIN_IDS[list(CLASSES.values())] = np.arange(len(CLASSES), dtype=np.uint8)


def load_cityscapes(directory: Path | str, split: str) -> ImageFiles:
    """Find train or val of Cityscapes (fine annotations) in the folder of leftImg8bit and gtFine; no image is read."""
    place = find_directory(directory, NAME, LAYOUT)
    root = find_root((place, place / "cityscapes"), (IMAGES, MASKS), NAME, LAYOUT)
    find_root((root,), (f"{IMAGES}/{split}", f"{MASKS}/{split}"), f"{split} split of {NAME}", LAYOUT)
    images = sorted((root / IMAGES / split).glob(f"*/*{IMAGE_END}"))
    if not images:
        raise RequestError(
            f"The split {split!r} of {NAME} is empty: {root / IMAGES / split} has no folder of a city with files that end "
            f"in {IMAGE_END}. Expected\n{LAYOUT}\nUnpack both archives into one folder."
        )
    names = (f"{image.parent.name}/{image.name.removesuffix(IMAGE_END)}{MASK_END}" for image in images)
    masks = (root / MASKS / split / name for name in names)
    return ImageFiles(f"{NAME} {split}", tuple(zip(images, masks, strict=True)), tuple(CLASSES), read_mask)


def read_mask(file: Path) -> np.ndarray:
    """Read a mask of label ids as train ids, `IGNORED` for labels that are not among the 19."""
    labels = read_indices(file)
    if labels.size and labels.max() >= LABELS:
        remedy = "Use the files that end in _labelIds.png, not those in colour or with train ids."
        raise FaultyFile(Fault(file, f"holds the label id {labels.max()}", f"ids from 0 to {LABELS - 1}", remedy))
    return TRAIN_IDS[labels]
