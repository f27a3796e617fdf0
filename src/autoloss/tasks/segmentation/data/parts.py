"""Whose images are for what (Section 4.1): a search trains and measures on *train*; final figures come from what it never saw.

One function for each data set; its keyword arguments are options of the task.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data import cityscapes, folder, voc
from autoloss.tasks.segmentation.data.pictures import Pictures, held_out

HELD_OUT, TRAIN_AUG = 1500, 10582
"""Images that the paper's search measures on, of those in VOC 2012 + SBD; of a smaller data set, the same share."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The images of a task.

    Args:
        train: What the search trains on.
        valid: What it measures on.
        test: What final figures come from.
        everything: What retraining trains on, where that is more than `train`: with `valid`, which then measures nothing.
    """

    train: Pictures
    valid: Pictures
    test: Pictures
    everything: Pictures | None = None


def of_voc(data: str | None = None, *, split: str | None = None, held_out: int | None = None, seed: int = 0) -> Parts:
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
        raise _not_given(
            "VOC 2012",
            f"{voc.LAYOUT}\nand in the same folder, for the paper's {TRAIN_AUG} training images, SBD\n{voc.SBD_LAYOUT}",
            "the archive VOCtrainval_11-May-2012 (PASCAL Visual Object Classes Challenge 2012) and the archive benchmark "
            "(Semantic Boundaries Dataset)",
        )
    test = voc.voc(data, "val")
    if split in ("val", "trainval"):
        raise RequestError(
            f"The split {split!r} holds val, which is kept for final figures; train on train or train_aug."
        )
    everything = voc.voc(data, split or (voc.AUGMENTED if _has_sbd(Path(data), test) else "train"))
    return _cut(everything, test, held_out, seed)


def of_cityscapes(data: str | None = None, *, held_out: int | None = None, seed: int = 0) -> Parts:
    """Cut Cityscapes; arguments and errors as those of `of_voc`."""
    if data is None:
        raise _not_given(
            cityscapes.NAME, cityscapes.LAYOUT, "its archives leftImg8bit_trainvaltest and gtFine_trainvaltest"
        )
    return _cut(cityscapes.cityscapes(data, "train"), cityscapes.cityscapes(data, "val"), held_out, seed)


def of_folder(data: str | None = None, *, classes: int | None = None, seed: int = 0) -> Parts:
    """Find the splits of a folder of one's own.

    Args:
        classes: How many there are; counted when left out.
        seed: Decides what is cut for a split that has no list.
    """
    if data is None:
        raise _not_given("images and masks", folder.LAYOUT, "you: any images whose pixels have classes")
    return Parts(*(folder.folder(data, split, classes=classes, seed=seed) for split in folder.SPLITS))


def _not_given(name: str, layout: str, origin: str) -> RequestError:
    return RequestError(
        f"No folder with {name} was given. Name it with --data DIR on the command line, data=… in Python. Expected\n{layout}\n"
        f"They come from {origin}."
    )


def _cut(everything: Pictures, test: Pictures, count: int | None, seed: int) -> Parts:
    share = max(1, min(HELD_OUT, round(len(everything) * HELD_OUT / TRAIN_AUG)))
    train, valid = held_out(everything, share if count is None else count, seed)
    return Parts(train, valid, test, everything)


def _has_sbd(place: Path, pictures: Pictures) -> bool:
    root = pictures.pairs[0][0].parent.parent
    return any((folder / voc.SBD).is_dir() for folder in (place, root, root.parent, root.parent.parent))
