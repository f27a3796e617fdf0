"""The tasks voc-seg, cityscapes-seg and folder-seg: semantic segmentation (Section 4.1 and Appendix A.1).

The defaults are the paper's: those of the proxy in `Stage` and `Recipe`, those of retraining in `FULL`, and `HELD_OUT` of the data.
All of them are options of the tasks, those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import Parameter, Signature, signature
from typing import Any, final

from autoloss.errors import RequestError, unknown
from autoloss.space.activated import ActivatedBranch
from autoloss.tasks import stages
from autoloss.tasks.data import Data
from autoloss.tasks.files.faults import report_faults
from autoloss.tasks.files.inspection import inspect_masks
from autoloss.tasks.segmentation.data.image_files import IGNORED
from autoloss.tasks.segmentation.data.splits import ImageSplits, split_cityscapes, split_folder, split_voc
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, SegmentationMetric
from autoloss.tasks.supervised import Setup, SupervisedTask
from autoloss.training.recipe import Recipe

NETWORKS = {"deeplabv3+": "deeplab", "pspnet": "pspnet"}
"""Name → module of `networks`, with a function of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Network, size of crops and recipe of a schedule; the defaults, with those of `Recipe`, are the paper's proxy.

    Raises:
        RequestError: An unknown network, or a value outside its range.
    """

    network: str = "deeplabv3+"
    """deeplabv3+ or pspnet."""
    backbone: str = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    output_stride: int = 16
    """Pixels of the image per cell of the last feature map, along each side."""
    weights: str = "none"
    """Weights of the backbone: none, imagenet, or the path of a state dict."""
    side: int = 128
    """Side of a crop in pixels. The proxy evaluates whole images resized to this side, retraining at their own size."""
    head_factor: float = 10.0
    """Factor on the learning rate of all layers but the backbone."""
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise unknown("network", self.network, NETWORKS)
        for name, value, holds, expected in (
            ("side", self.side, self.side >= 16, "at least 16"),
            ("head_factor", self.head_factor, self.head_factor > 0, "above 0"),
            ("batch_size", self.recipe.batch_size, self.recipe.batch_size >= 2, "at least 2 for batch normalisation"),
        ):
            if not holds:
                raise RequestError(f"The option {name} is {value}; it needs to be {expected}.")

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


PROXY = Stage()
FULL = Stage(
    backbone="resnet101", output_stride=8, side=512, recipe=Recipe(epochs=30, auxiliary=0.4, evaluation_batch=1)
)
STAGES = {"proxy": PROXY, "full": FULL}
TOLERANCE = 5
"""Tolerance of the boundary metrics in pixels, at the paper's sizes (as in Auto-Seg-Loss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options that the proxy and retraining share."""

    background: int | None = None
    """Class that the boundary metrics ignore."""
    tolerance: int | None = None
    """Tolerance of the boundary metrics in pixels; if None 5, reduced in proportion for proxy images smaller than the paper's."""
    device: str = "auto"
    """Device on which networks are trained; auto is a GPU if there is one."""
    loaders: int = 0
    """Worker processes that load images ahead; without them a GPU waits for its data."""

    def __post_init__(self) -> None:
        for name, value, least in (("tolerance", self.tolerance, 1), ("loaders", self.loaders, 0)):
            if value is not None and value < least:
                raise RequestError(f"The option {name} is {value}; it needs to be at least {least}.")


@final
@dataclass(frozen=True, slots=True)
class SegmentationFactory:
    """Builds the task of one data set; its signature lists the options.

    Args:
        task: Name in the catalogue.
        find_splits: Finds the images of each split; its keyword arguments are options of the task.
        background: Default of the option `background`.
    """

    task: str
    find_splits: Callable[..., ImageSplits]
    background: int | None = None

    @property
    def __signature__(self) -> Signature:
        """All options, for `help` and for the catalogue."""
        return Signature(list(self._parameters()), return_annotation=SupervisedTask)

    def _parameters(self) -> Iterator[Parameter]:
        yield stages.make_parameter("metric", "str", "miou")
        for parameter in signature(self.find_splits).parameters.values():
            yield parameter.replace(kind=Parameter.KEYWORD_ONLY)
        yield from stages.list_parameters(dataclasses.replace(CommonOptions(), background=self.background), STAGES)

    def __call__(self, metric: str = "miou", **options: Any) -> SupervisedTask:
        """Build the task.

        Args:
            metric: One of the six; the boundary metrics train on the `edge` (bf1) or the `band` (biou) of each class.
            options: Those of the data, of `CommonOptions`, `Stage` and `Recipe`; of the last two also with the prefix `full_`.

        Raises:
            RequestError: An unknown name, a value out of range, or data that is missing or faulty.
        """
        stages.check_options(self.task, options, signature(self))
        if metric not in SEGMENTATION_METRICS:
            raise unknown("segmentation metric", metric, SEGMENTATION_METRICS)
        proxy, full = stages.apply_options(STAGES, options)
        common = CommonOptions(**{"background": self.background, **stages.select_fields(CommonOptions, options)})
        return build_task(self.task, metric, self._find_splits(options), proxy, full, common)

    def _find_splits(self, options: Mapping[str, Any]) -> ImageSplits:
        own = signature(self.find_splits).parameters
        return self.find_splits(**{name: options[name] for name in own if name in options})

    def inspect(self, **options: Any) -> None:
        """Inspect the files of the data.

        Raises:
            RequestError: Files are missing or faulty; up to twenty are listed.
        """
        splits = self._find_splits(options)
        searched = (splits.train, splits.valid) if splits.full_train is None else (splits.full_train,)
        inspections = [inspect_masks(images) for images in (*searched, splits.test)]
        if faults := [fault for inspection in inspections for fault in inspection.faults]:
            raise report_faults(f"The data of {self.task}", faults, "\n".join(map(str, inspections)))


voc_seg = SegmentationFactory("voc-seg", split_voc, background=0)
cityscapes_seg = SegmentationFactory("cityscapes-seg", split_cityscapes)
folder_seg = SegmentationFactory("folder-seg", split_folder)


def build_task(
    name: str, metric: str, splits: ImageSplits, proxy: Stage, full: Stage, common: CommonOptions
) -> SupervisedTask:
    """Build a task from its images, its two stages and their common options."""
    tolerance = common.tolerance or max(1, min(TOLERANCE, round(TOLERANCE * proxy.side / PROXY.side)))
    six = {
        name: SegmentationMetric(name, tolerance=tolerance, ignore_index=IGNORED, left_out=common.background)
        for name in SEGMENTATION_METRICS
    }
    classes = len(splits.train.classes)
    return SupervisedTask(
        proxy.build(classes),
        **_proxy_data(splits, proxy.side),
        metric=six[metric],
        recipe=proxy.recipe,
        groups=proxy.groups(),
        full=Setup(
            network=full.build(classes),
            recipe=full.recipe,
            groups=full.groups(),
            data=_full_data(splits, full.side),
        ),
        branch=ActivatedBranch(
            encoding=SEGMENTATION_METRICS[metric].encoding, tolerance=tolerance, ignore_index=IGNORED
        ),
        data=Data(loaders=common.loaders),
        name=name,
        also=six,
        device=stages.resolve_device(common.device),
    )


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
