"""The options and splits of each data set (Section 4.1): a search trains and validates on *train*; test is for final figures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autoloss.errors import RequestError
from autoloss.options import Count, declare
from autoloss.tasks.files.options import FileOptions, count_held_out
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


@declare()
class SegmentationOptions(FileOptions):
    """Options of every segmentation task on files."""

    background: int | None = None
    """Class that the boundary metrics ignore."""
    tolerance: Count | None = None
    """Tolerance of the boundary metrics in pixels; if None 5, reduced in proportion for proxy images smaller than the paper's."""


@declare()
class VocOptions(SegmentationOptions):
    """Options of voc-seg, whose folder holds VOCdevkit, or is one inside it."""

    background: int | None = 0
    """Class that the boundary metrics ignore."""
    split: str | None = None
    """Split to train on; if None `train_aug` where SBD is present, else `train`."""
    held_out: int | None = None
    """Number of its images that are held out for validation; if None a seventh of them, at most 1500."""


@declare()
class CityscapesOptions(SegmentationOptions):
    """Options of cityscapes-seg, whose folder holds leftImg8bit and gtFine."""

    held_out: int | None = None
    """Number of training images that are held out for validation; if None a seventh of them, at most 1500."""


@declare()
class FolderOptions(SegmentationOptions):
    """Options of folder-seg, whose folder holds `images` and `masks`; the seed draws the images of a split that has no list."""

    classes: int | None = None
    """Number of classes; counted in the masks when None."""


def split_voc(options: VocOptions) -> ImageSplits:
    """Find the splits of VOC 2012.

    Raises:
        RequestError: No folder was given, or it has another layout.
    """
    place = options.find_data(
        "VOC 2012",
        f"{voc.LAYOUT}\nand in the same folder, for the paper's {TRAIN_AUG} training images, SBD\n{voc.SBD_LAYOUT}",
        "the archive VOCtrainval_11-May-2012 (PASCAL Visual Object Classes Challenge 2012) and the archive benchmark "
        "(Semantic Boundaries Dataset)",
    )
    test = voc.load_voc(place, "val")
    if options.split in ("val", "trainval"):
        raise RequestError(
            f"The split {options.split!r} includes val, which is kept for final figures. Train on train or train_aug."
        )
    images = voc.load_voc(place, options.split or (voc.AUGMENTED if _has_sbd(place, test) else "train"))
    return _hold_out(images, test, options)


def split_cityscapes(options: CityscapesOptions) -> ImageSplits:
    """Find the splits of Cityscapes; errors as for `split_voc`."""
    place = options.find_data(
        cityscapes.NAME, cityscapes.LAYOUT, "its archives leftImg8bit_trainvaltest and gtFine_trainvaltest"
    )
    return _hold_out(cityscapes.load_cityscapes(place, "train"), cityscapes.load_cityscapes(place, "val"), options)


def split_folder(options: FolderOptions) -> ImageSplits:
    """Find the splits of a folder of the user's own; errors as for `split_voc`."""
    place = options.find_data("images and masks", folder.LAYOUT, "you: any images whose pixels have classes")
    return ImageSplits(
        *(folder.load_folder(place, split, classes=options.classes, seed=options.seed) for split in folder.SPLITS)
    )


def _hold_out(images: ImageFiles, test: ImageFiles, options: VocOptions | CityscapesOptions) -> ImageSplits:
    count = count_held_out(options.held_out, len(images), (HELD_OUT, TRAIN_AUG))
    return ImageSplits(*hold_out(images, count, options.seed), test, images)


def _has_sbd(directory: Path, images: ImageFiles) -> bool:
    root = images.pairs[0][0].parent.parent
    return any((folder / voc.SBD).is_dir() for folder in (directory, root, root.parent, root.parent.parent))
