"""The task coco-pose: poses on COCO's original files (Section 4.4 and Appendix A).

The defaults are the paper's: those of the proxy in `ScheduleOptions` and `PROXY`, those of retraining in `FULL`. All of them are
options of the task, those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import logging
from typing import Annotated

from pydantic import Field

from autoloss.options import Count, Positive, Share, declare
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.files.inspection import Inspection, inspect_boxes
from autoloss.tasks.files.options import AnnotatedOptions, count_held_out
from autoloss.tasks.pose.data.coco import LAYOUT, KeypointFiles, load_detections, load_keypoints
from autoloss.tasks.pose.data.crops import Augmentation, CropSettings
from autoloss.tasks.pose.data.people import PeopleImages
from autoloss.tasks.pose.networks.simple_baseline import SimpleBaseline, simple_baseline
from autoloss.tasks.pose.task import Inference, PoseTask
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.recipe import Recipe

NAME = "coco-pose"
PAPER_HELD_OUT = (5000, 64115)
"""Images held out for validation, of how many with persons; the same share of a smaller data set."""

_log = logging.getLogger(__name__)


@declare()
class ScheduleOptions:
    """Network and recipe of a schedule."""

    backbone: str = "resnet50"
    """ResNet of the network, such as resnet18, resnet50 or resnet101."""
    weights: str = "none"
    """Weights of the backbone: none, imagenet, or the path of a state dict."""
    recipe: Recipe

    def network(self) -> SimpleBaseline:
        """Build the network."""
        return simple_baseline(self.backbone, self.weights)


PROXY = ScheduleOptions(
    recipe=Recipe(
        epochs=4,
        batch_size=256,
        optimizer="adam",
        learning_rate=2.5e-4,
        weight_decay=0.0,
        schedule="cosine",
        minimum_learning_rate=0.0,
        warmup_steps=250,
    )
)
"""The proxy of pose estimation (Appendix A)."""
FULL = ScheduleOptions(
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


@declare()
class PoseOptions(AnnotatedOptions):
    """Options that the proxy and retraining share."""

    detections: str | None = None
    """File of detected persons, in which poses of val2017 are predicted; without it in the boxes of the ground truth."""
    height: Count = 256
    """Height of a crop in pixels; a heatmap has a quarter of it."""
    width: Count = 192
    """Width of a crop in pixels."""
    sigma: Positive = 2.0
    """Standard deviation of a target in cells of the heatmap."""
    flip: Share = 0.5
    """Probability that a training example is mirrored."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 40.0
    """Largest angle by which it is turned, in degrees."""
    scale: tuple[float, float] = (0.5, 1.5)
    """Smallest and largest factor on its size."""
    flip_test: bool = True
    """Average the heatmaps of a crop and of its mirror image in evaluation."""
    least_value: float = 0.2
    """Maximum of a heatmap above which it counts in the score of a pose."""


def build_task(metric: str, options: PoseOptions, proxy: ScheduleOptions, full: ScheduleOptions) -> PoseTask:
    """Build the task."""
    crops = CropSettings(size=(options.height, options.width), sigma=options.sigma)
    augmentation = Augmentation(flip=options.flip, rotation=options.rotation, scale=options.scale)
    train, _, test, notes = _read(options)
    for note in notes:
        _log.warning(note)
    annotated = train.with_persons()
    count = count_held_out(options.held_out, len(annotated), PAPER_HELD_OUT)
    rest, valid = annotated.hold_out(count, options.seed)
    return PoseTask(
        proxy.network,
        train=train.to_people(rest.draw(options.share, options.seed)),
        valid=train.to_people(valid),
        test=test,
        metric=metric,
        recipe=proxy.recipe,
        # It trains on what the search holds out.
        full=FullSchedule(
            network=full.network, recipe=full.recipe, data={"train": train.to_people(annotated), "valid": None}
        ),
        crops=crops,
        augmentation=augmentation,
        inference=Inference(flip=options.flip_test, least_value=options.least_value),
        name=NAME,
        device=options.find_device(),
        loaders=options.loaders,
    )


def inspect_splits(options: PoseOptions) -> list[Inspection]:
    """Inspect the files of train2017 and val2017."""
    train, val, *_ = _read(options)
    return [inspect_boxes(split.images) for split in (train, val)]


coco_pose = TaskFactory(
    name=NAME,
    options=PoseOptions,
    schedules={"proxy": PROXY, "full": FULL},
    build=build_task,
    inspect_data=inspect_splits,
)


def _read(options: PoseOptions) -> tuple[KeypointFiles, KeypointFiles, PeopleImages, tuple[str, ...]]:
    """Return train2017, val2017, the latter with its detections, and notes on what is unusual."""
    place = options.find_data(f"the data of {NAME}", LAYOUT)
    train, val = (load_keypoints(place, split) for split in ("train2017", "val2017"))
    notes = (*train.notes, *val.notes)
    if options.detections is None:
        return train, val, val.to_people(), notes
    detected, further = load_detections(options.detections, val)
    return train, val, val.to_people().with_detections(detected), (*notes, *further)
