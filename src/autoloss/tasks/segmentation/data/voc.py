"""PASCAL VOC 2012, with or without the annotations of SBD, as published (Section 4.1).

Sources: The PASCAL Visual Object Classes Challenge 2012 (development kit, "Segmentation"); Hariharan et al., "Semantic
Contours from Inverse Detectors", ICCV 2011 (the data set SBD). `train_aug` is their usual union: all images
that either annotates, without VOC's val.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from autoloss.errors import RequestError
from autoloss.tasks.files import Fault, FaultyFile, find_directory, find_root, read_names, report_decoding
from autoloss.tasks.segmentation.data.image_files import ImageFiles, read_indices

NAME = "VOC 2012"
CLASSES = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
AUGMENTED = "train_aug"
LISTS = "ImageSets/Segmentation"
LAYOUT = """\
  VOCdevkit/VOC2012/JPEGImages/2007_000032.jpg, …
  VOCdevkit/VOC2012/SegmentationClass/2007_000032.png, …
  VOCdevkit/VOC2012/ImageSets/Segmentation/train.txt, val.txt, trainval.txt"""
SBD = "benchmark_RELEASE/dataset"
SBD_LAYOUT = """\
  benchmark_RELEASE/dataset/img/2008_000002.jpg, …
  benchmark_RELEASE/dataset/cls/2008_000002.mat, …
  benchmark_RELEASE/dataset/train.txt, val.txt"""
A_MAT_FILE = "a MATLAB file of SBD with the field GTcls.Segmentation"


def load_voc(directory: Path | str, split: str) -> ImageFiles:
    """Find train, val, trainval or `train_aug` of VOC 2012; only its lists are read.

    The directory is VOCdevkit, VOCdevkit/VOC2012, or the folder that holds VOCdevkit. `train_aug` needs SBD's
    benchmark_RELEASE in any of these; where both annotate an image, VOC's mask is used: it is finer, and has ignored
    borders, unlike SBD's.
    """
    place = find_directory(directory, NAME, LAYOUT)
    needed = ("JPEGImages", "SegmentationClass", LISTS)
    roots = (place, place / "VOC2012", place / "VOCdevkit" / "VOC2012")
    root = find_root(roots, needed, NAME, LAYOUT)
    stems = read_names(root / LISTS / f"{'train' if split == AUGMENTED else split}.txt", NAME)
    pairs = [(root / f"JPEGImages/{stem}.jpg", root / f"SegmentationClass/{stem}.png") for stem in stems]
    if split == AUGMENTED:
        known = {*stems, *read_names(root / LISTS / "val.txt", NAME)}
        # The devkit's folder is the data set's parent, and SBD lies inside or beside it.
        sbd = find_root((place, root.parent, root.parent.parent, root), (SBD,), "SBD", SBD_LAYOUT) / SBD
        pairs += _find_sbd_pairs(sbd, known)
    return ImageFiles(f"{NAME} {split}", tuple(pairs), CLASSES, read_mask)


def read_mask(file: Path) -> np.ndarray:
    """Read a mask of VOC (palette PNG) or of SBD (MATLAB)."""
    return _read_sbd(file) if file.suffix == ".mat" else read_indices(file)


def _find_sbd_pairs(sbd: Path, known: set[str]) -> list[tuple[Path, Path]]:
    """Return the pairs of SBD whose images are not known yet."""
    find_root((sbd,), ("img", "cls"), "SBD", SBD_LAYOUT)
    stems = dict.fromkeys(read_names(sbd / "train.txt", "SBD") + read_names(sbd / "val.txt", "SBD"))
    further = [stem for stem in stems if stem not in known]
    if not further:
        raise RequestError(
            f"SBD in {sbd} adds nothing: each of its {len(stems)} images is in VOC's train or val. "
            "Use SBD's own train.txt and val.txt, or the split 'train'."
        )
    return [(sbd / f"img/{stem}.jpg", sbd / f"cls/{stem}.mat") for stem in further]


def _read_sbd(file: Path) -> np.ndarray:
    from scipy.io import loadmat

    with report_decoding(file, A_MAT_FILE):
        segmentation = loadmat(file, variable_names="GTcls")["GTcls"]["Segmentation"].item()
    if not isinstance(segmentation, np.ndarray) or segmentation.dtype != np.uint8 or segmentation.ndim != 2:
        found = f"GTcls.Segmentation is {getattr(segmentation, 'dtype', type(segmentation).__name__)}"
        raise FaultyFile(Fault(file, found, "8-bit labels of shape (H, W)", "Copy it again from SBD's archive."))
    return np.ascontiguousarray(segmentation)
