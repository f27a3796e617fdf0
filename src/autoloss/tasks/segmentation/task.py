"""The tasks voc-seg, cityscapes-seg and folder-seg: semantic segmentation (Section 4.1 and Appendix A.1).

The defaults are the paper's: those of the proxy in `ScheduleOptions` and `PAPER`, those of retraining in `FULL`, and `HELD_OUT` of
the data. All of them are options of the tasks, those of retraining with the prefix `full_`. A folder of a user's own may hold a few
images: epochs and batch size of folder-seg follow from their number, and its proxy has a small network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Annotated, Any, Literal

from pydantic import Field

from autoloss.errors import RequestError
from autoloss.options import Positive, declare
from autoloss.space.activated import ActivatedBranch
from autoloss.space.loss_text import MAIN
from autoloss.tasks.data import Data
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.files.inspection import Inspection, inspect_masks
from autoloss.tasks.segmentation.data.image_files import IGNORED
from autoloss.tasks.segmentation.data.splits import (
    CityscapesOptions,
    FolderOptions,
    ImageSplits,
    SegmentationOptions,
    VocOptions,
    split_cityscapes,
    split_folder,
    split_voc,
)
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, make_metrics
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.recipe import Recipe

NETWORKS = {"deeplabv3+": "deeplab", "pspnet": "pspnet"}
"""Name → module of `networks`, with a function of the same name."""
PAPER = Recipe(epochs=3, batch_size=32, learning_rate=0.02)
"""The recipe of the paper's proxy (Appendix A.1)."""


@declare()
class ScheduleOptions:
    """Network, size of crops and recipe of a schedule; the defaults are the paper's proxy."""

    network: Literal["deeplabv3+", "pspnet"] = "deeplabv3+"
    """deeplabv3+ or pspnet."""
    backbone: str = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    output_stride: int = 16
    """Pixels of the image per cell of the last feature map, along each side."""
    weights: str = "none"
    """Weights of the backbone: none, imagenet, or the path of a state dict."""
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
        return functools.partial(_group_parameters, self.head_factor)


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
    tolerance = options.tolerance or max(1, min(TOLERANCE, round(TOLERANCE * proxy.side / PROXY.side)))
    six = make_metrics(tolerance=tolerance, ignore_index=IGNORED, left_out=options.background)
    classes = len(splits.train.classes)
    task = SupervisedTask(
        proxy.build(classes),
        **_proxy_data(splits, proxy.side),
        metric=six[metric],
        recipe=proxy.recipe,
        groups=proxy.groups(),
        full=FullSchedule(
            network=full.build(classes),
            recipe=full.recipe,
            groups=full.groups(),
            data=_full_data(splits, full.side),
        ),
        branch=ActivatedBranch(
            encoding=SEGMENTATION_METRICS[metric].encoding, tolerance=tolerance, ignore_index=IGNORED
        ),
        data=Data(loaders=options.loaders),
        name=name,
        also=six,
        device=options.find_device(),
    )
    task.baselines = ({MAIN: f"baseline/asl_{metric}"},)
    return task


def inspect_splits(find_splits: Callable[[Any], ImageSplits], options: SegmentationOptions) -> list[Inspection]:
    """Inspect the files of all splits."""
    splits = find_splits(options)
    searched = (splits.train, splits.valid) if splits.full_train is None else (splits.full_train,)
    return [inspect_masks(images) for images in (*searched, splits.test)]


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
        inspect_data=functools.partial(inspect_splits, find_splits),
    )


voc_seg = _make_factory("voc-seg", VocOptions, split_voc)
cityscapes_seg = _make_factory("cityscapes-seg", CityscapesOptions, split_cityscapes)
folder_seg = _make_factory("folder-seg", FolderOptions, split_folder, OF_FOLDERS)


def _proxy_data(splits: ImageSplits, side: int) -> dict[str, Any]:
    """Return the splits on a resized copy of the images, which is made if there is none yet."""
    from autoloss.tasks.segmentation.data.augmentation import AugmentedDataset, WholeImageDataset
    from autoloss.tasks.segmentation.data.resized_copy import open_copy

    evaluated = {"valid": splits.valid, "test": splits.test}
    whole = {split: WholeImageDataset(open_copy(images, side), side) for split, images in evaluated.items()}
    return {"train": AugmentedDataset(open_copy(splits.train, side), side), **whole}


def _full_data(splits: ImageSplits, side: int) -> dict[str, Any]:
    """Return the splits on the original images; without `valid` where retraining trains on it."""
    from autoloss.tasks.segmentation.data.augmentation import AugmentedDataset, WholeImageDataset

    valid = WholeImageDataset(splits.valid) if splits.full_train is None else None
    return {
        "train": AugmentedDataset(splits.full_train or splits.train, side),
        "valid": valid,
        "test": WholeImageDataset(splits.test),
    }


def _build_network(module: str, *arguments: Any, **options: Any) -> Any:
    # Imported when a network is built: it takes seconds, and needs the extra `vision`.
    return getattr(import_module(f"autoloss.tasks.segmentation.networks.{module}"), module)(*arguments, **options)


def _group_parameters(factor: float, network: Any) -> Any:
    from autoloss.tasks.segmentation.networks.segmenter import group_parameters

    return group_parameters(network, factor)
