"""The tasks coco-det and voc-det: detection as in Section 4.2 and Appendix A, on the original files.

The paper's values are the defaults: of the proxy in `Stage`, of retraining in `FULL`; all of them are options of the tasks,
retraining's behind `full_`.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from random import Random
from typing import Any, final

import torch

from autoloss.errors import RequestError, unknown
from autoloss.space.boxes import AREA_UNITS
from autoloss.tasks.datasets import coco as coco_files
from autoloss.tasks.datasets import voc_boxes as voc_files
from autoloss.tasks.datasets.boxed import BoxedImages
from autoloss.tasks.detection import BranchSettings, DetectionTask, Full, frozen_losses
from autoloss.tasks.networks.faster_rcnn import FasterRCNN, Shape, all_levels, last_levels
from autoloss.tasks.training import Recipe

LEVELS = {"P4-P6": (last_levels, (128, 256, 512)), "P2-P6": (all_levels, (32, 64, 128, 256, 512))}
"""Which part of the pyramid → what makes it, and the anchors' sides in pixels."""
PAPER_HELD_OUT = {"coco-det": (5000, 118287), "voc-det": (1500, 16551)}
"""Images that the search measures on, of so many; of a smaller data set the same share. The paper names no number for VOC."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What a schedule trains; the defaults, with those of `RECIPE`, are the paper's proxy.

    Raises:
        RequestError: Unknown levels.
    """

    backbone: str = "resnet50"
    levels: str = "P4-P6"
    channels: int = 128
    """Of the pyramid, and so of the RPN's head; half of the usual."""
    head_width: int = 512
    """Of the R-CNN head; half of the usual."""
    weights: str = "none"
    """Of the backbone: none, imagenet, or the path of a state dict."""
    short_side: int = 800
    long_side: int = 1333
    recipe: Recipe = field(default_factory=lambda: RECIPE)

    def __post_init__(self) -> None:
        if self.levels not in LEVELS:
            raise unknown("choice of levels", self.levels, LEVELS)

    def network(self, classes: int) -> FasterRCNN:
        """Make the network."""
        backbone, anchors = LEVELS[self.levels]
        shape = Shape(
            short_side=self.short_side, long_side=self.long_side, anchor_sizes=anchors, head_width=self.head_width
        )
        return FasterRCNN(backbone(self.backbone, self.channels, self.weights), classes, shape)


RECIPE = Recipe(epochs=1, batch_size=32, learning_rate=0.04, weight_decay=1e-4, schedule="constant", warmup_steps=250)
"""Appendix A's proxy of detection. It names no decay within its one epoch."""
PROXY = Stage()
FULL = Stage(
    levels="P2-P6",
    channels=256,
    head_width=1024,
    recipe=Recipe(
        epochs=12,
        batch_size=16,
        learning_rate=0.02,
        weight_decay=1e-4,
        schedule="steps",
        minimum_learning_rate=0.0,
        warmup_steps=500,
    ),
)
STAGES = {"": PROXY, "full_": FULL}
"""Prefix of the options → what they change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """What else can be set of these tasks.

    Args:
        data: The data set's folder.
        held_out: Images of the training set that the search measures on.
        share: Of the others, how much the proxy trains on.
        seed: Decides both.
        frozen: Branches that keep their loss, as in `rpn`.
        unit: Of areas: square pixels, or the area of the target box.
        device: Where networks are trained; auto: on a GPU if there is one.
    """

    data: str | None = None
    held_out: int | None = None
    share: float = 0.25
    seed: int = 0
    frozen: str = ""
    unit: str = "pixels"
    device: str = "auto"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise RequestError(f"The option share is {self.share}; it needs to be above 0 and at most 1.")
        if self.unit not in AREA_UNITS:
            raise unknown("unit of areas", self.unit, AREA_UNITS)


@final
@dataclass(frozen=True, slots=True)
class BoxedFiles:
    """Makes the task of one data set; callable with the options that its signature lists.

    Args:
        task: The name in the catalogue.
        metric: The default.
    """

    task: str
    metric: str

    @property
    def __signature__(self) -> Signature:
        """All options, for `help` and for the catalogue."""

        def option(name: str, annotation: str, default: Any) -> Parameter:
            return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)

        parameters = [option("metric", "str", self.metric)]
        groups: list[tuple[str, Any]] = [("", CommonOptions())]
        groups += [(prefix, values) for prefix, stage in STAGES.items() for values in (stage, stage.recipe)]
        for prefix, values in groups:
            for setting in fields(values):
                if setting.name != "recipe":
                    parameters.append(option(prefix + setting.name, str(setting.type), getattr(values, setting.name)))
        return Signature(parameters, return_annotation=DetectionTask)

    def __call__(self, metric: str | None = None, **options: Any) -> DetectionTask:
        """Make the task.

        Raises:
            RequestError: An unknown name, a value out of range, or data that is not there or cannot be used.
        """
        known = signature(self).parameters
        for name in options:
            if name not in known:
                raise unknown(f"option of the task {self.task}", name, known)
        common = CommonOptions(**{name: options[name] for name in _names(CommonOptions) if name in options})
        proxy, full = (_changed(stage, prefix, options) for prefix, stage in STAGES.items())
        everything, test = self._read(common)
        for note in (*everything.notes, *test.notes):
            _log.warning(note)
        rest, valid = everything.divided(self._held_out(common, len(everything)), common.seed)
        train = _part(rest.with_objects(), common)
        classes = len(everything.classes)
        return DetectionTask(
            functools.partial(proxy.network, classes),
            train=train,
            valid=valid,
            test=test,
            classes=classes,
            metric=metric or self.metric,
            recipe=proxy.recipe,
            full=Full(
                network=functools.partial(full.network, classes), recipe=full.recipe, train=everything.with_objects()
            ),
            frozen=frozen_losses(common.frozen),
            settings=BranchSettings(unit="target" if common.unit == "target" else "pixels"),
            flip=0.5,
            name=self.task,
            device=("cuda" if torch.cuda.is_available() else "cpu") if common.device == "auto" else common.device,
        )

    def _read(self, common: CommonOptions) -> tuple[BoxedImages, BoxedImages]:
        """Return the training images and those of final figures."""
        layout = coco_files.LAYOUT if self.task == "coco-det" else voc_files.LAYOUT
        if common.data is None:
            raise RequestError(f"{self.task} needs the folder of its data: give --data DIR, which holds\n{layout}")
        place = Path(common.data)
        if self.task == "coco-det":
            return coco_files.coco(place, "train2017"), coco_files.coco(place, "val2017")
        years = [voc_files.voc_boxes(place, year, "trainval") for year in (2007, 2012)]
        return voc_files.joined(years), voc_files.voc_boxes(place, 2007, "test")

    def _held_out(self, common: CommonOptions, count: int) -> int:
        held, of = PAPER_HELD_OUT[self.task]
        return common.held_out if common.held_out is not None else max(1, round(held * min(1.0, count / of)))


coco_det = BoxedFiles("coco-det", "map")
voc_det = BoxedFiles("voc-det", "voc07")


def _part(images: BoxedImages, common: CommonOptions) -> BoxedImages:
    """Return the share of the images that the proxy trains on."""
    count = max(1, round(common.share * len(images)))
    return images.chosen(sorted(Random(common.seed).sample(range(len(images)), count)), images.name)


def _changed(stage: Stage, prefix: str, options: dict[str, Any]) -> Stage:
    """Return a stage with some of its own and of its recipe's values changed."""

    def of(kind: type) -> dict[str, Any]:
        return {name: options[prefix + name] for name in _names(kind) if name != "recipe" and prefix + name in options}

    return dataclasses.replace(stage, recipe=dataclasses.replace(stage.recipe, **of(Recipe)), **of(Stage))


def _names(kind: type) -> list[str]:
    return [setting.name for setting in fields(kind)]
