"""Pose estimation (Section 4.4): heatmaps of a person's joints in a box; the task coco-pose.

The defaults are the paper's: those of the proxy in `PROXY`, those of retraining in `FULL`. All of them are options of the task,
those of retraining with the prefix `full_`.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Unpack, final

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.options import Positive, declare
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.space.loss import MAIN
from autoloss.space.operators import upcast
from autoloss.tasks.detection.data.boxed import BoxedImages
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.files import AnnotatedOptions, NetworkOptions, count_held_out
from autoloss.tasks.loading import load_batches
from autoloss.tasks.metric import measure_resamples
from autoloss.tasks.pose.data.coco import LAYOUT, load_detections, load_keypoints, to_people
from autoloss.tasks.pose.data.crops import Augmentation, BoxCrops, CropSettings, Example, Side, TrainingCrops, to_image
from autoloss.tasks.pose.heatmaps import HeatmapBranch, decode_heatmaps, simple_baseline
from autoloss.tasks.pose.metrics import METRICS, Poses, evaluate_poses, share_of_thresholds, suppress
from autoloss.tasks.pose.people import MIRRORED, PeopleImages
from autoloss.tasks.trainer_task import (
    DRAWS_PER_SAMPLE,
    FullSchedule,
    ImageTask,
    ImageTaskOptions,
    can_gain,
    draw_batches,
)
from autoloss.training.loop import Execution, seed_generators
from autoloss.training.recipe import Recipe, require
from autoloss.training.training import Scored, Training

SUPPRESSION = 0.9
"""OKS above which the pose with the lower score is dropped (SimpleBaseline)."""


@final
class PoseTask(ImageTask):
    """A network that predicts heatmaps of 17 joints for a person in a box.

    Args:
        network: Function without arguments that builds the network, crops (N, 3, H, W) → raw heatmaps (N, 17, h, w).
        train: Training data; groups and persons without a labelled joint are left out.
        valid: Validation data, on which losses are compared.
        test: Test data, used for final figures only.
        metric: One of `METRICS`; the others are reported with it.
        crops: Sizes of crops and heatmaps.
        augmentation: Random changes of each training example; none when None.
        flip_test: Average the heatmaps of a crop and of its mirror image in evaluation.
        least_value: Maximum of a heatmap above which it counts in the score of a pose, the score of its box times the mean of the
            maxima. As in SimpleBaseline, likewise `flip_test`.
        name: Shown in tables.
        options: Recipe, schedule `full`, device and loaders; see `ImageTaskOptions`.
    """

    standard, baselines = {MAIN: "baseline/mse"}, ({MAIN: "pose/oks"},)
    least_images = 64

    def __init__(
        self,
        network: Callable[[], nn.Module],
        train: PeopleImages,
        valid: PeopleImages,
        *,
        test: PeopleImages | None = None,
        metric: str = "map",
        crops: CropSettings = CropSettings(),  # noqa: B008 - frozen
        augmentation: Augmentation | None = Augmentation(),  # noqa: B008 - frozen
        flip_test: bool = True,
        least_value: float = 0.2,
        name: str = "pose",
        **options: Unpack[ImageTaskOptions],
    ) -> None:
        self.crops, self._flip_test, self._least_value = crops, flip_test, least_value
        make_examples = functools.partial(TrainingCrops, settings=crops, augmentation=augmentation)
        data = {"train": train, "valid": valid, "test": test}
        super().__init__(name, network, data, make_examples, metric=metric, metrics=METRICS, kind="pose", **options)
        for split in self.splits:
            self._data[split].persons()

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {MAIN: HeatmapBranch(measure=share_of_thresholds)}

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        data, branch = self._examples["proxy"], self.branches[MAIN]
        found: list[Sample] = []
        with seed_generators(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().eval()
            order = draw_batches(len(data), count * DRAWS_PER_SAMPLE, 1, generator)
            for example in load_batches(data, order, seed):
                crops, context = _stack(example)
                sample = Sample(upcast(network(crops)), context)
                # Without a labelled joint in the crop the metric is undefined.
                if can_gain(branch, sample):
                    found.append(sample)
                if len(found) == count:
                    return {MAIN: found}
        raise RequestError(
            f"Of {len(order)} drawn persons only {len(found)} of {count} can be used as samples. A sample needs a joint in its "
            "crop, and a metric below what the target reaches. Check that joints and areas are in pixels of the image."
        )

    def _compute_loss(
        self, network: nn.Module, batch: Sequence[Example], criterion: Criterion, execution: Execution
    ) -> Tensor:
        crops, context = _stack(batch)
        with execution.autocast():
            heatmaps = network(execution.move(crops))
        moved = {name: part.to(execution.torch_device) for name, part in context.items()}
        return criterion[MAIN](upcast(heatmaps), moved)

    def _evaluate(
        self, network: nn.Module, data: PeopleImages, indices: Sequence[int], training: Training, execution: Execution
    ) -> Scored | str:
        recipe = self.recipes[training.schedule]
        batch_size = recipe.evaluation_batch or require(recipe.batch_size)
        poses = list(self.predict(network, data, indices, execution, batch_size))
        if not all(np.isfinite(image.scores).all() for image in poses):
            return "a prediction is not finite"
        people = [data.people[index] for index in indices]

        def measure(images: Tensor) -> float:
            rows = images.tolist()
            return evaluate_poses([poses[row] for row in rows], [people[row] for row in rows])[self.metric]

        replicates = measure_resamples(len(people), measure) if training.resampled else None
        return self._sort_figures(evaluate_poses(poses, people), replicates)

    @torch.no_grad()
    def predict(
        self, network: nn.Module, images: PeopleImages, indices: Sequence[int], execution: Execution, batch_size: int
    ) -> Iterator[Poses]:
        """Yield the poses that a network in evaluation mode predicts in the boxes of each of some images."""
        data = BoxCrops(images, indices, self.crops)
        order = [part for part in torch.arange(len(data)).split(batch_size) if len(part)]
        joints, maxima = [np.zeros((0, len(MIRRORED), 2))], [np.zeros((0, len(MIRRORED)))]
        areas: list[float] = []
        for batch in self._load(data, order, 0):
            crops = execution.move(torch.stack([crop for crop, _ in batch]))
            heatmaps = upcast(network(crops))
            if self._flip_test:
                heatmaps = (heatmaps + upcast(network(crops.flip(-1))).flip(-1)[:, MIRRORED]) / 2
            positions, values = decode_heatmaps(heatmaps)
            cells = (positions * self.crops.stride).cpu().double().numpy()
            joints.append(np.stack([to_image(one, matrix) for one, (_, matrix) in zip(cells, batch, strict=True)]))
            maxima.append(values.cpu().double().numpy())
            areas += [abs(float(np.linalg.det(matrix[:, :2]))) * math.prod(self.crops.size) for _, matrix in batch]
        places, values = np.concatenate(joints), np.concatenate(maxima)
        first = 0
        for index in indices:
            boxes, scores = images.boxes(index)
            own = slice(first, first + len(boxes))
            first = own.stop
            # The mean of the values above the least, 0 where none is; NaN stays NaN.
            counts = (values[own] > self._least_value) | np.isnan(values[own])
            means = np.where(counts, values[own], 0).sum(axis=1) / np.maximum(counts.sum(axis=1), 1)
            yield suppress(Poses(places[own], scores * means, np.array(areas[own])), SUPPRESSION)


def _stack(batch: Sequence[Example]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the crops and the contexts of some persons, stacked."""
    crops, contexts = zip(*batch, strict=True)
    return torch.stack(crops), {name: torch.stack([each[name] for each in contexts]) for name in contexts[0]}


NAME = "coco-pose"
PAPER_HELD_OUT = (5000, 64115)
"""Images held out for validation, of how many with persons; the same share of a smaller data set."""

_log = logging.getLogger(__name__)


PROXY = NetworkOptions(
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
FULL = NetworkOptions(
    recipe=replace(
        PROXY.recipe,
        epochs=210,
        batch_size=512,
        learning_rate=5e-4,
        schedule="steps",
        milestones=(170 / 210, 200 / 210),
        warmup_steps=500,
    )
)
"""MMPose's default settings at the time of the paper."""


@declare()
class PoseOptions(AnnotatedOptions):
    """Options that the proxy and retraining share."""

    detections: str | None = None
    """File of detected persons, in which poses of val2017 are predicted; without it in the boxes of the ground truth."""
    height: Side = 256
    """Height of a crop in pixels; a heatmap has a quarter of it."""
    width: Side = 192
    """Width of a crop in pixels."""
    sigma: Positive = 2.0
    """Standard deviation of a target in cells of the heatmap."""
    augmentation: Augmentation = Augmentation()
    flip_test: bool = True
    """Average the heatmaps of a crop and of its mirror image in evaluation."""
    least_value: float = 0.2
    """Maximum of a heatmap above which it counts in the score of a pose."""


def build_task(metric: str, options: PoseOptions, proxy: NetworkOptions, full: NetworkOptions) -> PoseTask:
    """Build the task."""
    crops = CropSettings(size=(options.height, options.width), sigma=options.sigma)
    train, _, test, notes = _read(options)
    for note in notes:
        _log.warning(note)
    everyone = to_people(train)
    # Nothing is learned or measured elsewhere.
    annotated = train.select(sorted({image for image, _ in everyone.persons()}), train.name)
    count = count_held_out(options.held_out, annotated, PAPER_HELD_OUT)
    rest, valid = annotated.hold_out(count, options.seed)
    # A retraining trains on what the search holds out.
    data = {"train": to_people(annotated), "valid": None}
    return PoseTask(
        functools.partial(simple_baseline, proxy.backbone, proxy.weights),
        train=to_people(rest.draw(options.share, options.seed)),
        valid=to_people(valid),
        test=test,
        metric=metric,
        recipe=proxy.recipe,
        full=FullSchedule(
            network=functools.partial(simple_baseline, full.backbone, full.weights), recipe=full.recipe, data=data
        ),
        crops=crops,
        augmentation=options.augmentation,
        flip_test=options.flip_test,
        least_value=options.least_value,
        name=NAME,
        device=options.find_device(),
        loaders=options.loaders,
    )


coco_pose = TaskFactory(
    name=NAME,
    options=PoseOptions,
    schedules={"proxy": PROXY, "full": FULL},
    build=build_task,
    find_images=lambda options: _read(options)[:2],
)


def _read(options: PoseOptions) -> tuple[BoxedImages, BoxedImages, PeopleImages, tuple[str, ...]]:
    """Return train2017, val2017, the latter with its detections, and notes on what is unusual."""
    place = options.find_data(f"the data of {NAME}", LAYOUT)
    (train, _), (val, persons) = (load_keypoints(place, split) for split in ("train2017", "val2017"))
    notes = (*train.notes, *val.notes)
    if options.detections is None:
        return train, val, to_people(val), notes
    detected, further = load_detections(options.detections, val, persons)
    return train, val, replace(to_people(val), detected=detected), (*notes, *further)
