"""The splits of each data set (Section 4.1): a search trains and validates on *train*; the test split is for final figures only.

One function for each data set; its keyword arguments are options of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data import cityscapes, folder, voc
from autoloss.tasks.segmentation.data.image_files import ImageFiles, hold_out

HELD_OUT, TRAIN_AUG = 1500, 10582
"""Images held out for validation by the paper, of those in VOC 2012 + SBD; the same share of a smaller data set."""


@dataclass(frozen=True, slots=True)
class ImageSplits:
    """The images of a task.

    Args:
        train: Training images of the search.
        valid: Validation images of the search.
        test: Test images, for final figures.
        full_train: Training images of retraining if they include `valid`, which is then not evaluated; as `train` when None.
    """

    train: ImageFiles
    valid: ImageFiles
    test: ImageFiles
    full_train: ImageFiles | None = None


def split_voc(
    data: str | None = None, *, split: str | None = None, held_out: int | None = None, seed: int = 0
) -> ImageSplits:
    """Find the splits of VOC 2012.

    Args:
        data: The folder that holds VOCdevkit, or one inside it.
        split: Split to train on; if None `train_aug` where SBD is present, else `train`.
        held_out: Number of its images that are held out for validation; if None a seventh of them, at most 1500.
        seed: Seed of the images that are held out.

    Raises:
        RequestError: No folder was given, or it has another layout.
    """
    if data is None:
        raise _missing_folder(
            "VOC 2012",
            f"{voc.LAYOUT}\nand in the same folder, for the paper's {TRAIN_AUG} training images, SBD\n{voc.SBD_LAYOUT}",
            "the archive VOCtrainval_11-May-2012 (PASCAL Visual Object Classes Challenge 2012) and the archive benchmark "
            "(Semantic Boundaries Dataset)",
        )
    test = voc.load_voc(data, "val")
    if split in ("val", "trainval"):
        raise RequestError(
            f"The split {split!r} includes val, which is kept for final figures. Train on train or train_aug."
        )
    images = voc.load_voc(data, split or (voc.AUGMENTED if _has_sbd(Path(data), test) else "train"))
    return _hold_out(images, test, held_out, seed)


def split_cityscapes(data: str | None = None, *, held_out: int | None = None, seed: int = 0) -> ImageSplits:
    """Find the splits of Cityscapes.

    Args:
        data: The folder that holds leftImg8bit and gtFine.
        held_out: Number of training images that are held out for validation; if None a seventh of them, at most 1500.
        seed: Seed of the images that are held out.

    Raises:
        RequestError: No folder was given, or it has another layout.
    """
    if data is None:
        raise _missing_folder(
            cityscapes.NAME, cityscapes.LAYOUT, "its archives leftImg8bit_trainvaltest and gtFine_trainvaltest"
        )
    return _hold_out(cityscapes.load_cityscapes(data, "train"), cityscapes.load_cityscapes(data, "val"), held_out, seed)


def split_folder(data: str | None = None, *, classes: int | None = None, seed: int = 0) -> ImageSplits:
    """Find the splits of a folder of the user's own.

    Args:
        data: The folder that holds `images` and `masks`.
        classes: Number of classes; counted in the masks when None.
        seed: Seed of the images for a split that has no list.

    Raises:
        RequestError: No folder was given, or it has another layout.
    """
    if data is None:
        raise _missing_folder("images and masks", folder.LAYOUT, "you: any images whose pixels have classes")
    return ImageSplits(*(folder.load_folder(data, split, classes=classes, seed=seed) for split in folder.SPLITS))


def _missing_folder(name: str, layout: str, origin: str) -> RequestError:
    return RequestError(
        f"The option data is missing: the folder with {name}. Expected\n{layout}\nThey come from {origin}.",
        argument="data",
    )


def _hold_out(images: ImageFiles, test: ImageFiles, count: int | None, seed: int) -> ImageSplits:
    default = max(1, min(HELD_OUT, round(len(images) * HELD_OUT / TRAIN_AUG)))
    train, valid = hold_out(images, default if count is None else count, seed)
    return ImageSplits(train, valid, test, images)


def _has_sbd(directory: Path, images: ImageFiles) -> bool:
    root = images.pairs[0][0].parent.parent
    return any((folder / voc.SBD).is_dir() for folder in (directory, root, root.parent, root.parent.parent))
