"""The tasks voc-seg, cityscapes-seg and folder-seg: semantic segmentation (Section 4.1 and Appendix A.1).

A search trains and validates on *train*; test is for final figures. The defaults are the paper's: those of the proxy in
`ScheduleOptions` and `PAPER`, those of retraining in `FULL`, and `HELD_OUT` of the data. All are options of the tasks, those of
retraining with the prefix `full_`. Epochs and batch size for a user's folder follow from its number of images, and its proxy has a
small network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from autoloss.errors import RequestError
from autoloss.options import Count, Natural, Positive, declare
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss_text import MAIN
from autoloss.tasks.data import Data
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.files import FileOptions, NetworkOptions, check_apart, count_held_out
from autoloss.tasks.segmentation.data import cityscapes, folder, voc
from autoloss.tasks.segmentation.data.augmentation import ImageDataset
from autoloss.tasks.segmentation.data.image_files import IGNORED, ImageFiles, hold_out, open_copy
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, make_metrics
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.recipe import Recipe

HELD_OUT, TRAIN_AUG = 1500, 10582
"""Images held out for validation by the paper, of those in VOC 2012 + SBD; the same share of a smaller data set."""


@dataclass(frozen=True, slots=True)
class ImageSplits:
    """The images of a task: train and valid for the search, test for final figures.

    `full_train` are those of retraining if they include `valid`, which is then not evaluated; as `train` when None.
    """

    train: ImageFiles
    valid: ImageFiles
    test: ImageFiles
    full_train: ImageFiles | None = None

    def list_all(self) -> tuple[ImageFiles, ...]:
        """Return splits that hold all images, each once."""
        return (*((self.train, self.valid) if self.full_train is None else (self.full_train,)), self.test)


@declare()
class SegmentationOptions(FileOptions):
    """Options of every segmentation task on files."""

    background: Natural | None = None
    """Class that the boundary metrics ignore."""
    tolerance: Count | None = None
    """Tolerance of the boundary metrics in pixels; if None 5, reduced in proportion for proxy images smaller than the paper's."""


@declare()
class VocOptions(SegmentationOptions):
    """Options of voc-seg, whose folder holds VOCdevkit, or is one inside it."""

    background: Natural | None = 0
    """Class that the boundary metrics ignore."""
    split: Literal["train", "val", "trainval", "train_aug"] | None = None
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

    classes: Annotated[int, Field(ge=2, le=IGNORED)] | None = None
    """Number of classes; counted in the masks when None."""


def split_voc(options: VocOptions) -> ImageSplits:
    """Find the splits of VOC 2012."""
    place = options.find_data(
        "VOC 2012",
        f"{voc.LAYOUT}\nand in the same folder, for the paper's {TRAIN_AUG} training images, SBD\n{voc.SBD_LAYOUT}",
        "the archive VOCtrainval_11-May-2012 (PASCAL Visual Object Classes Challenge 2012) and the archive benchmark "
        "(Semantic Boundaries Dataset)",
    )
    test = voc.load_voc(place, "val")
    if options.split in ("val", "trainval"):
        raise RequestError(f"The split {options.split!r} includes val, the test split. Use train or train_aug.")
    root = test.pairs[0][0].parent.parent
    has_sbd = any((folder / voc.SBD).is_dir() for folder in (place, root, root.parent, root.parent.parent))
    images = voc.load_voc(place, options.split or (voc.AUGMENTED if has_sbd else "train"))
    return _hold_out(images, test, options)


def split_cityscapes(options: CityscapesOptions) -> ImageSplits:
    """Find the splits of Cityscapes; errors as for `split_voc`."""
    origin = "its archives leftImg8bit_trainvaltest and gtFine_trainvaltest"
    place = options.find_data(cityscapes.NAME, cityscapes.LAYOUT, origin)
    return _hold_out(cityscapes.load_cityscapes(place, "train"), cityscapes.load_cityscapes(place, "val"), options)


def split_folder(options: FolderOptions) -> ImageSplits:
    """Find the splits of a folder of the user's own; errors as for `split_voc`."""
    place = options.find_data("images and masks", folder.LAYOUT, "you: any images whose pixels have classes")
    load = functools.partial(folder.load_folder, place, classes=options.classes, seed=options.seed)
    return ImageSplits(*map(load, folder.SPLITS))


def _hold_out(images: ImageFiles, test: ImageFiles, options: VocOptions | CityscapesOptions) -> ImageSplits:
    check_apart(*([image for image, _ in part.pairs] for part in (images, test)), names=(images.name, test.name))
    count = count_held_out(options.held_out, images, (HELD_OUT, TRAIN_AUG))
    return ImageSplits(*hold_out(images, count, options.seed), test, images)


NETWORKS = {"deeplabv3+": "deeplab", "pspnet": "pspnet"}
"""Name → function of `networks`."""
PAPER = Recipe(epochs=3, batch_size=32, learning_rate=0.02)
"""The recipe of the paper's proxy (Appendix A.1)."""


@declare()
class ScheduleOptions(NetworkOptions):
    """Network, size of crops and recipe of a schedule; the defaults are the paper's proxy."""

    network: Literal["deeplabv3+", "pspnet"] = "deeplabv3+"
    """deeplabv3+ or pspnet."""
    output_stride: Annotated[int, Field(ge=8, le=16, multiple_of=8)] = 16
    """Pixels of the image per cell of the last feature map, along each side."""
    side: Annotated[int, Field(ge=16)] = 128
    """Side of a crop in pixels. The proxy evaluates whole images resized to this side, retraining at their own size."""
    head_factor: Positive = 10.0
    """Factor on the learning rate of all layers but the backbone."""
    recipe: Recipe = PAPER

    def __post_init__(self) -> None:
        if self.recipe.batch_size == 1:
            raise RequestError("batch_size is 1; expected at least 2 for batch normalisation.")

    def build(self, classes: int) -> Callable[[], Any]:
        """Return a function that builds the network."""
        return functools.partial(
            _build_network,
            NETWORKS[self.network],
            classes,
            self.backbone,
            output_stride=self.output_stride,
            weights=self.weights,
            auxiliary=self.recipe.auxiliary > 0,
        )

    def groups(self) -> Callable[[Any], Any]:
        """Return a function that makes the parameter groups of the network."""
        return functools.partial(group_parameters, factor=self.head_factor)


PROXY = ScheduleOptions()
FULL = ScheduleOptions(
    backbone="resnet101",
    output_stride=8,
    side=512,
    recipe=replace(PAPER, epochs=30, auxiliary=0.4, evaluation_batch=1),
)
PAPERS = {"proxy": PROXY, "full": FULL}
OF_FOLDERS = {
    schedule: replace(options, recipe=replace(options.recipe, epochs=None, batch_size=None))
    for schedule, options in {"proxy": replace(PROXY, backbone="resnet18", side=64), "full": FULL}.items()
}
"""Schedule → its options for a folder of any number of images, with a proxy that a processor without a GPU can train."""
TOLERANCE = 5
"""Tolerance of the boundary metrics in pixels, at the paper's sizes (as in Auto-Seg-Loss)."""


def build_task(
    name: str,
    find_splits: Callable[[Any], ImageSplits],
    metric: str,
    options: SegmentationOptions,
    proxy: ScheduleOptions,
    full: ScheduleOptions,
) -> SupervisedTask:
    """Build a task; the boundary metrics train on the `edge` (bf1) or the `band` (biou) of each class."""
    splits = find_splits(options)
    encoding = SEGMENTATION_METRICS[metric].encoding
    tolerance = options.tolerance or max(1, min(TOLERANCE, round(TOLERANCE * proxy.side / PROXY.side)))
    six = make_metrics(tolerance=tolerance, ignore_index=IGNORED, left_out=options.background)
    classes = len(splits.train.classes)
    if options.background is not None and options.background >= classes:
        raise RequestError(
            f"background is {options.background}; expected none or one of the classes 0 to {classes - 1}."
        )
    # Resized copies of the images, which are made if there are none yet.
    valid, test, train = (open_copy(images, proxy.side) for images in (splits.valid, splits.test, splits.train))
    task = SupervisedTask(
        proxy.build(classes),
        ImageDataset(train, crop=proxy.side),
        ImageDataset(valid, proxy.side),
        test=ImageDataset(test, proxy.side),
        metric=six[metric],
        recipe=proxy.recipe,
        groups=proxy.groups(),
        full=FullSchedule(
            network=full.build(classes),
            recipe=full.recipe,
            groups=full.groups(),
            data={
                "train": ImageDataset(splits.full_train or splits.train, crop=full.side),
                "valid": ImageDataset(splits.valid) if splits.full_train is None else None,
                "test": ImageDataset(splits.test),
            },
        ),
        branch=ActivatedBranch(encoding=encoding, tolerance=tolerance, ignore_index=IGNORED),
        data=Data(loaders=options.loaders),
        name=name,
        also=six,
        device=options.find_device(),
    )
    images = sum(map(len, (splits.train, splits.valid, splits.test)))
    special = "is class 1" if splits.train.read_mask is folder.read_binary else "is ignored"
    read = f"Read {images} images with {classes} classes, 0 to {classes - 1}; {IGNORED} {special}."
    task.describe_data(f"{read} Metric: {metric}.")
    task.baselines = ({MAIN: f"baseline/asl_{metric}"},)
    return task


def _make_factory(
    name: str,
    options: type,
    find_splits: Callable[[Any], ImageSplits],
    schedules: Mapping[str, ScheduleOptions] = PAPERS,
) -> TaskFactory:
    return TaskFactory(
        name=name,
        options=options,
        schedules=schedules,
        build=functools.partial(build_task, name, find_splits),
        find_images=lambda options: find_splits(options).list_all(),
    )


voc_seg = _make_factory("voc-seg", VocOptions, split_voc)
cityscapes_seg = _make_factory("cityscapes-seg", CityscapesOptions, split_cityscapes)
folder_seg = _make_factory("folder-seg", FolderOptions, split_folder, OF_FOLDERS)


def _build_network(name: str, *arguments: Any, **options: Any) -> Any:
    # Imported when a network is built: it takes seconds.
    from autoloss.tasks.segmentation import networks

    return getattr(networks, name)(*arguments, **options)


def group_parameters(network: Any, factor: float) -> list[dict[str, Any]]:
    """Return the parameter groups: the backbone at the recipe's learning rate, all other layers at `factor` times of it."""
    backbone = list(network.encoder.parameters())
    theirs = {id(parameter) for parameter in backbone}
    heads = [parameter for parameter in network.parameters() if id(parameter) not in theirs]
    return [{"params": backbone}, {"params": heads, "factor": factor}]
