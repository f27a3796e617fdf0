"""The tasks voc-seg, cityscapes-seg and folder-seg: semantic segmentation as in Section 4.1 and Appendix A.1.

The paper's values are the defaults of `Stage` and `Recipe`, what `FULL` changes of them, and `HELD_OUT` of the data; all of
them are options of the tasks, those of `FULL` behind `full_`.
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
from autoloss.tasks import stages
from autoloss.tasks.files.faults import report_faults
from autoloss.tasks.files.inspection import inspect_masks
from autoloss.tasks.segmentation.data.parts import ImageSplits, split_cityscapes, split_folder, split_voc
from autoloss.tasks.segmentation.data.pictures import IGNORED
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS, SegmentationMetric
from autoloss.tasks.supervised import Setup, SupervisedTask
from autoloss.tasks.training.recipe import Recipe

NETWORKS = {"deeplabv3+": "deeplab", "pspnet": "pspnet"}
"""Name → module of `networks`, and the function in it of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a schedule trains, on crops of one size; the defaults, with those of `Recipe`, are the paper's proxy.

    Raises:
        RequestError: An unknown network, or a value outside its range.
    """

    network: str = "deeplabv3+"
    backbone: str = "resnet50"
    output_stride: int = 16
    weights: str = "none"
    """Of the backbone: none, imagenet, or the path of a state dict."""
    side: int = 128
    """Pixels of a crop's side. The proxy measures whole images at that size too, retraining at their own."""
    head_factor: float = 10.0
    """On the learning rate of all that is not the backbone."""
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise unknown("network", self.network, NETWORKS)
        for name, found, holds, expected in (
            ("side", self.side, self.side >= 16, "at least 16"),
            ("head_factor", self.head_factor, self.head_factor > 0, "above 0"),
            ("batch_size", self.recipe.batch_size, self.recipe.batch_size >= 2, "at least 2 for batch normalisation"),
        ):
            if not holds:
                raise RequestError(f"The option {name} is {found}; it needs to be {expected}.")

    def build(self, classes: int) -> Callable[[], Any]:
        """Return a function that makes the network."""
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
        """Return a function that makes the network's parameter groups."""
        return functools.partial(_group_parameters, self.head_factor)


PROXY = Stage()
FULL = Stage(
    backbone="resnet101", output_stride=8, side=512, recipe=Recipe(epochs=30, auxiliary=0.4, evaluation_batch=1)
)
STAGES = {"proxy": PROXY, "full": FULL}
TOLERANCE = 5
"""Pixels of the boundary metrics at the paper's sizes (as in Auto-Seg-Loss)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What else can be set of a segmentation task."""

    background: int | None = None
    """Class that the means of the boundary metrics leave out."""
    tolerance: int | None = None
    """Pixels of the boundary metrics; when left out 5, or less by as much as the proxy's images are smaller than the paper's."""
    device: str = "auto"
    """Where networks are trained; auto: on a GPU if there is one."""
    loaders: int = 0
    """Processes that load images ahead; a GPU waits for its data without."""

    def __post_init__(self) -> None:
        for name, value, least in (("tolerance", self.tolerance, 1), ("loaders", self.loaders, 0)):
            if value is not None and value < least:
                raise RequestError(f"The option {name} is {value}; it needs to be at least {least}.")


@final
@dataclass(frozen=True, slots=True)
class SegmentationFactory:
    """Makes the tasks of one data set; callable with the options that its signature lists.

    Args:
        task: The name in the catalogue.
        parts: Finds the images; its keyword arguments are options of the task.
        background: Default of the option.
    """

    task: str
    parts: Callable[..., ImageSplits]
    background: int | None = None

    @property
    def __signature__(self) -> Signature:
        """All options, for `help` and for the catalogue."""
        return Signature(list(self._parameters()), return_annotation=SupervisedTask)

    def _parameters(self) -> Iterator[Parameter]:
        yield stages.make_parameter("metric", "str", "miou")
        for found in signature(self.parts).parameters.values():
            yield found.replace(kind=Parameter.KEYWORD_ONLY)
        yield from stages.list_parameters(dataclasses.replace(CommonOptions(), background=self.background), STAGES)

    def __call__(self, metric: str = "miou", **options: Any) -> SupervisedTask:
        """Make a task.

        Args:
            metric: One of the six; the boundary metrics train on the `edge` (bf1) or the `band` (biou) of each class.
            options: Those of the data, of `CommonOptions`, `Stage` and `Recipe`, and of the last two behind `full_`.

        Raises:
            RequestError: An unknown name, a value out of range, or data that is not there or cannot be used.
        """
        stages.check_options(self.task, options, signature(self))
        if metric not in SEGMENTATION_METRICS:
            raise unknown("segmentation metric", metric, SEGMENTATION_METRICS)
        proxy, full = stages.apply_options(STAGES, options)
        common = CommonOptions(**{"background": self.background, **stages.select_fields(CommonOptions, options)})
        return build_task(self.task, metric, self._cut(options), proxy, full, common)

    def _cut(self, options: Mapping[str, Any]) -> ImageSplits:
        own = signature(self.parts).parameters
        return self.parts(**{name: options[name] for name in own if name in options})

    def inspect(self, **options: Any) -> None:
        """Look the data over, before anything is made of it.

        Raises:
            RequestError: It is not there, or files are faulty; up to twenty are named.
        """
        parts = self._cut(options)
        trained = (parts.train, parts.valid) if parts.everything is None else (parts.everything,)
        looks = [inspect_masks(pictures) for pictures in (*trained, parts.test)]
        if found := [fault for look in looks for fault in look.faults]:
            raise report_faults(f"The data of {self.task}", found, "\n".join(map(str, looks)))


voc_seg = SegmentationFactory("voc-seg", split_voc, background=0)
cityscapes_seg = SegmentationFactory("cityscapes-seg", split_cityscapes)
folder_seg = SegmentationFactory("folder-seg", split_folder)


def build_task(
    name: str, metric: str, parts: ImageSplits, proxy: Stage, full: Stage, common: CommonOptions
) -> SupervisedTask:
    """Put a task together from its images, its two stages and what they have in common."""
    tolerance = common.tolerance or max(1, min(TOLERANCE, round(TOLERANCE * proxy.side / PROXY.side)))
    six = {
        name: SegmentationMetric(name, tolerance=tolerance, ignore_index=IGNORED, left_out=common.background)
        for name in SEGMENTATION_METRICS
    }
    classes = len(parts.train.classes)
    return SupervisedTask(
        proxy.build(classes),
        **_proxy_data(parts, proxy.side),
        activation="softmax",
        metric=six[metric],
        recipe=proxy.recipe,
        groups=proxy.groups(),
        full_recipe=full.recipe,
        full=Setup(network=full.build(classes), groups=full.groups(), data=_full_data(parts, full.side)),
        name=name,
        also=six,
        ignore_index=IGNORED,
        encoding=SEGMENTATION_METRICS[metric].encoding,
        tolerance=tolerance,
        device=stages.resolve_device(common.device),
        loaders=common.loaders,
    )


def _proxy_data(parts: ImageSplits, side: int) -> dict[str, Any]:
    """Return the splits on a small copy of the images, which is made when there is none yet."""
    from autoloss.tasks.segmentation.data.augmentation import AugmentedDataset, WholeImageDataset
    from autoloss.tasks.segmentation.data.shrinking import open_copy

    measured = {"valid": parts.valid, "test": parts.test}
    whole = {split: WholeImageDataset(open_copy(pictures, side), side) for split, pictures in measured.items()}
    return {"train": AugmentedDataset(open_copy(parts.train, side), side), **whole}


def _full_data(parts: ImageSplits, side: int) -> dict[str, Any]:
    """Return the splits on the images themselves; no valid where it is trained on."""
    from autoloss.tasks.segmentation.data.augmentation import AugmentedDataset, WholeImageDataset

    valid = WholeImageDataset(parts.valid) if parts.everything is None else None
    return {
        "train": AugmentedDataset(parts.everything or parts.train, side),
        "valid": valid,
        "test": WholeImageDataset(parts.test),
    }


def _build_network(module: str, *arguments: Any, **options: Any) -> Any:
    # Imported when a network is made: it takes seconds, and needs the extra.
    return getattr(import_module(f"autoloss.tasks.segmentation.networks.{module}"), module)(*arguments, **options)


def _group_parameters(factor: float, network: Any) -> Any:
    from autoloss.tasks.segmentation.networks.segmenter import group_parameters

    return group_parameters(network, factor)
