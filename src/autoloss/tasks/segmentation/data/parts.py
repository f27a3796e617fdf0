"""Whose images are for what (Section 4.1): a search trains and measures on *train*; final figures come from what it never saw.

One function for each data set; its keyword arguments are options of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data import cityscapes, folder, voc
from autoloss.tasks.segmentation.data.pictures import ImageFiles, hold_out

HELD_OUT, TRAIN_AUG = 1500, 10582
"""Images that the paper's search measures on, of those in VOC 2012 + SBD; of a smaller data set, the same share."""


@dataclass(frozen=True, slots=True)
class ImageSplits:
    """The images of a task.

    Args:
        train: What the search trains on.
        valid: What it measures on.
        test: What final figures come from.
        everything: What retraining trains on, where that is more than `train`: with `valid`, which then measures nothing.
    """

    train: ImageFiles
    valid: ImageFiles
    test: ImageFiles
    everything: ImageFiles | None = None


def split_voc(
    data: str | None = None, *, split: str | None = None, held_out: int | None = None, seed: int = 0
) -> ImageSplits:
    """Cut VOC 2012.

    Args:
        data: The folder that holds VOCdevkit, or one inside.
        split: What is trained on; `train_aug` when left out and SBD is there, else `train`.
        held_out: Images of it that the search measures on.
        seed: Decides which.

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
            f"The split {split!r} holds val, which is kept for final figures; train on train or train_aug."
        )
    everything = voc.load_voc(data, split or (voc.AUGMENTED if _has_sbd(Path(data), test) else "train"))
    return _hold_out(everything, test, held_out, seed)


def split_cityscapes(data: str | None = None, *, held_out: int | None = None, seed: int = 0) -> ImageSplits:
    """Cut Cityscapes; arguments and errors as those of `split_voc`."""
    if data is None:
        raise _missing_folder(
            cityscapes.NAME, cityscapes.LAYOUT, "its archives leftImg8bit_trainvaltest and gtFine_trainvaltest"
        )
    return _hold_out(cityscapes.load_cityscapes(data, "train"), cityscapes.load_cityscapes(data, "val"), held_out, seed)


def split_folder(data: str | None = None, *, classes: int | None = None, seed: int = 0) -> ImageSplits:
    """Find the splits of a folder of one's own.

    Args:
        classes: How many there are; counted when left out.
        seed: Decides what is cut for a split that has no list.
    """
    if data is None:
        raise _missing_folder("images and masks", folder.LAYOUT, "you: any images whose pixels have classes")
    return ImageSplits(*(folder.load_folder(data, split, classes=classes, seed=seed) for split in folder.SPLITS))


def _missing_folder(name: str, layout: str, origin: str) -> RequestError:
    return RequestError(
        f"The option data is missing: the folder with {name}. Expected\n{layout}\nThey come from {origin}.",
        argument="data",
    )


def _hold_out(everything: ImageFiles, test: ImageFiles, count: int | None, seed: int) -> ImageSplits:
    share = max(1, min(HELD_OUT, round(len(everything) * HELD_OUT / TRAIN_AUG)))
    train, valid = hold_out(everything, share if count is None else count, seed)
    return ImageSplits(train, valid, test, everything)


def _has_sbd(place: Path, pictures: ImageFiles) -> bool:
    root = pictures.pairs[0][0].parent.parent
    return any((folder / voc.SBD).is_dir() for folder in (place, root, root.parent, root.parent.parent))
