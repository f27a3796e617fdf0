"""The task coco-pose: poses on COCO's original files (Section 4.4 and Appendix A).

The defaults are the paper's: those of the proxy in `Stage`, those of retraining in `FULL`. All of them are options of the task,
those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import Signature, signature
from pathlib import Path
from random import Random
from typing import Any, final

from autoloss.errors import RequestError
from autoloss.tasks import stages
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.files.faults import report_faults
from autoloss.tasks.files.inspection import inspect_boxes
from autoloss.tasks.pose.data.coco import LAYOUT, KeypointFiles, load_detections, load_keypoints
from autoloss.tasks.pose.data.crops import Augmentation, CropSettings
from autoloss.tasks.pose.data.people import PeopleImages
from autoloss.tasks.pose.networks.simple_baseline import SimpleBaseline, simple_baseline
from autoloss.tasks.pose.task import FullSchedule, Inference, PoseTask
from autoloss.training.recipe import Recipe

NAME = "coco-pose"
PAPER_HELD_OUT = (5000, 64115)
"""Images held out for validation, of how many with persons; the same share of a smaller data set."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Network and recipe of a schedule; the defaults, with those of `RECIPE`, are the paper's proxy."""

    backbone: str = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    weights: str = "none"
    """Weights of the backbone: none, imagenet, or the path of a state dict."""
    recipe: Recipe = field(default_factory=lambda: RECIPE)

    def network(self) -> SimpleBaseline:
        """Build the network."""
        return simple_baseline(self.backbone, self.weights)


RECIPE = Recipe(
    epochs=4,
    batch_size=256,
    optimizer="adam",
    learning_rate=2.5e-4,
    weight_decay=0.0,
    schedule="cosine",
    minimum_learning_rate=0.0,
    warmup_steps=250,
)
"""The proxy of pose estimation (Appendix A)."""
FULL = Stage(
    recipe=Recipe(
        epochs=210,
        batch_size=512,
        optimizer="adam",
        learning_rate=5e-4,
        weight_decay=0.0,
        schedule="steps",
        milestones=(170 / 210, 200 / 210),
        minimum_learning_rate=0.0,
        warmup_steps=500,
    )
)
"""MMPose's default settings at the time of the paper."""
STAGES = {"proxy": Stage(), "full": FULL}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonOptions:
    """Options that the proxy and retraining share.

    Args:
        data: Folder of the data set.
        detections: File of detected persons, in which poses of val2017 are predicted; without it in the boxes of the ground truth.
        held_out: Number of training images held out for validation.
        share: Share of the other training images that the proxy trains on.
        seed: Seed of both draws.
        height: Height of a crop in pixels; a heatmap has a quarter of it.
        width: Width of a crop in pixels.
        sigma: Standard deviation of a target in cells of the heatmap.
        flip: Probability that a training example is mirrored.
        rotation: Largest angle by which it is turned, in degrees.
        scale: Smallest and largest factor on its size.
        flip_test: Average the heatmaps of a crop and of its mirror image in evaluation.
        least_value: Maximum of a heatmap above which it counts in the score of a pose.
        device: Device on which networks are trained; auto is a GPU if there is one.
        loaders: Worker processes that read images ahead; without them a GPU waits for its data.
    """

    data: str | None = None
    detections: str | None = None
    held_out: int | None = None
    share: float = 1.0
    seed: int = 0
    height: int = 256
    width: int = 192
    sigma: float = 2.0
    flip: float = 0.5
    rotation: float = 40.0
    scale: tuple[float, ...] = (0.5, 1.5)
    flip_test: bool = True
    least_value: float = 0.2
    device: str = "auto"
    loaders: int = 0

    def __post_init__(self) -> None:
        for name, value, holds, expected in (
            ("share", self.share, 0 < self.share <= 1, "above 0 and at most 1"),
            ("loaders", self.loaders, self.loaders >= 0, "at least 0"),
            ("scale", self.scale, len(self.scale) == 2, "two numbers"),
        ):
            if not holds:
                raise RequestError(f"The option {name} is {value}; it needs to be {expected}.")


@final
class CocoPose:
    """Builds the task; its signature lists the options."""

    @property
    def __signature__(self) -> Signature:
        """All options, for `help` and for the catalogue."""
        listed = [stages.make_parameter("metric", "str", "map"), *stages.list_parameters(CommonOptions(), STAGES)]
        return Signature(listed, return_annotation=PoseTask)

    def __call__(self, metric: str = "map", **options: Any) -> PoseTask:
        """Build the task.

        Raises:
            RequestError: An unknown name, a value out of range, or data that is missing or faulty.
        """
        common = self._common(options)
        crops = CropSettings(size=(common.height, common.width), sigma=common.sigma)
        augmentation = Augmentation(
            flip=common.flip, rotation=common.rotation, scale=(common.scale[0], common.scale[1])
        )
        proxy, full = stages.apply_options(STAGES, options)
        train, _, test, notes = self._read(common)
        for note in notes:
            _log.warning(note)
        annotated = train.with_persons()
        rest, valid = annotated.hold_out(_count_held_out(common, len(annotated)), common.seed)
        return PoseTask(
            proxy.network,
            train=train.to_people(_draw_share(rest, common)),
            valid=train.to_people(valid),
            test=test,
            metric=metric,
            recipe=proxy.recipe,
            full=FullSchedule(network=full.network, recipe=full.recipe, train=train.to_people(annotated)),
            crops=crops,
            augmentation=augmentation,
            inference=Inference(flip=common.flip_test, least_value=common.least_value),
            name=NAME,
            device=stages.resolve_device(common.device),
            loaders=common.loaders,
        )

    def inspect(self, **options: Any) -> None:
        """Inspect the files of the data.

        Raises:
            RequestError: Files are missing, or annotations, detections or images are faulty; up to twenty are listed.
        """
        train, val, _, _ = self._read(self._common(options))
        inspections = [inspect_boxes(split.images) for split in (train, val)]
        if faults := [fault for inspection in inspections for fault in inspection.faults]:
            raise report_faults(f"The data of {NAME}", faults, "\n".join(map(str, inspections)))

    def _common(self, options: Mapping[str, Any]) -> CommonOptions:
        stages.check_options(NAME, options, signature(self))
        return CommonOptions(**stages.select_fields(CommonOptions, options))

    def _read(self, common: CommonOptions) -> tuple[KeypointFiles, KeypointFiles, PeopleImages, tuple[str, ...]]:
        """Return train2017, val2017, the latter with its detections, and notes on what is unusual."""
        if common.data is None:
            raise RequestError(
                f"The option data is missing: the folder of the data of {NAME}, which holds\n{LAYOUT}", argument="data"
            )
        train, val = (load_keypoints(common.data, split) for split in ("train2017", "val2017"))
        notes = (*train.notes, *val.notes)
        if common.detections is None:
            return train, val, val.to_people(), notes
        detected, further = load_detections(Path(common.detections), val)
        return train, val, val.to_people().with_detections(detected), (*notes, *further)


coco_pose = CocoPose()


def _count_held_out(common: CommonOptions, count: int) -> int:
    held, of = PAPER_HELD_OUT
    return common.held_out if common.held_out is not None else max(1, round(held * min(1.0, count / of)))


def _draw_share(images: BoxedImages, common: CommonOptions) -> BoxedImages:
    """Draw the share of the images that the proxy trains on."""
    count = max(1, round(common.share * len(images)))
    return images.select(sorted(Random(common.seed).sample(range(len(images)), count)), images.name)
