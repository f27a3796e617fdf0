"""Pose estimation as a task (Section 4.4): heatmaps of a person's joints in a box, and COCO's AP of object keypoint similarity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, unknown
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.space.loss import MAIN
from autoloss.space.operators import upcast
from autoloss.tasks.loading import Loading, load_batches
from autoloss.tasks.pose.data.crops import Augmentation, BoxCrops, CropSettings, Example, TrainingCrops, to_image
from autoloss.tasks.pose.data.people import PeopleImages
from autoloss.tasks.pose.heatmaps import HeatmapBranch, decode_heatmaps
from autoloss.tasks.pose.metrics import METRICS, Poses, evaluate_poses, share_of_thresholds, suppress
from autoloss.tasks.pose.skeleton import MIRRORED
from autoloss.tasks.trainer_task import FullSchedule, TrainerTask
from autoloss.training.execution import Execution
from autoloss.training.loop import seed_generators
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import Figures, Trainer, select_examples
from autoloss.training.training import Training

LEAST_IMAGES = 64
"""Images that also a short training is evaluated on."""
DRAWS_PER_SAMPLE = 50
"""Persons that are tried for each requested sample, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inference:
    """How poses are predicted from heatmaps; the defaults are those of SimpleBaseline.

    Args:
        flip: Average the heatmaps of a crop and of its mirror image.
        suppression: OKS above which the pose with the lower score is dropped.
        least_value: Maximum of a heatmap above which it counts in the score, the score of the box times the mean of the maxima.
    """

    flip: bool = True
    suppression: float = 0.9
    least_value: float = 0.2


@final
class PoseTask(TrainerTask):
    """A network that predicts heatmaps of 17 joints for a person in a box.

    Args:
        network: Function without arguments that builds the network, crops (N, 3, H, W) → raw heatmaps (N, 17, h, w).
        train: Training data; groups and persons without a labelled joint are left out.
        valid: Validation data, on which losses are compared.
        test: Test data, used for final figures only.
        metric: One of `METRICS`; the others are reported with it.
        recipe: Recipe of the proxy training.
        full: Network, recipe and data of the schedule `full` where they differ from the proxy's.
        crops: Sizes of crops and heatmaps.
        augmentation: What is drawn for each training example; nothing when None.
        inference: How poses are predicted.
        name: Shown in tables.
        device: Device on which networks are trained.
        loaders: Worker processes that read images ahead; 0 reads each batch when it is needed.

    Raises:
        RequestError: An unknown metric, or a split without persons.
    """

    standard = {MAIN: "baseline/mse"}

    def __init__(
        self,
        network: Callable[[], nn.Module],
        train: PeopleImages,
        valid: PeopleImages,
        *,
        test: PeopleImages | None = None,
        metric: str = "map",
        recipe: Recipe = Recipe(),  # noqa: B008 - frozen
        full: FullSchedule = FullSchedule(),  # noqa: B008 - frozen
        crops: CropSettings = CropSettings(),  # noqa: B008 - frozen
        augmentation: Augmentation | None = Augmentation(),  # noqa: B008 - frozen
        inference: Inference = Inference(),
        name: str = "pose",
        device: str = "cpu",
        loaders: int = 0,
    ) -> None:
        if metric not in METRICS:
            raise unknown("pose metric", metric, METRICS)
        self.name = name
        self.metric = metric
        self.crops = crops
        self.recipes = {"proxy": recipe, "full": full.recipe or recipe}
        self.also = tuple(other for other in METRICS if other != metric)
        self.execution = self._execution = Execution(device=device)
        self._inference = inference
        self._loaders = loaders
        self._networks = {"proxy": network, "full": full.network or network}
        self._full = full
        self._training = {
            schedule: TrainingCrops(images, crops, augmentation)
            for schedule, images in {"proxy": train, "full": full.data.get("train", train)}.items()
        }
        self._data = {split: images for split, images in {"valid": valid, "test": test}.items() if images is not None}
        for images in self._data.values():
            images.persons()
        self.splits = tuple(self._data)

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {MAIN: HeatmapBranch(measure=share_of_thresholds)}

    def steps(self, training: Training) -> int:
        return self.recipes[training.schedule].steps(len(self._training[training.schedule]), training.fidelity)

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        data, branch = self._training["proxy"], self.branches[MAIN]
        found: list[Sample] = []
        with seed_generators(seed) as generator, torch.no_grad():
            network = self._networks["proxy"]().eval()
            order: list[Tensor] = []
            while len(order) < count * DRAWS_PER_SAMPLE:
                order += torch.randperm(len(data), generator=generator).split(1)
            for example in load_batches(data, order, seed):
                crops, context = _stack(example)
                sample = Sample(upcast(network(crops)), context)
                initial = branch.metric(sample.prediction, context)
                # Comparisons with NaN are false: without a labelled joint in the crop nothing is defined.
                if initial < branch.metric(branch.ideal(context), context):
                    found.append(sample)
                if len(found) == count:
                    return {MAIN: found}
        raise RequestError(
            f"Of {len(order)} drawn persons only {len(found)} of {count} can be used as samples. A sample needs a joint in its "
            "crop, and a metric below what the target reaches. Check that joints and areas are in pixels of the image."
        )

    def _trainer(
        self, criterion: Criterion, training: Training, execution: Execution | None = None
    ) -> Trainer[nn.Module, Sequence[Example]]:
        schedule, execution = training.schedule, execution or self._execution
        recipe = self.recipes[schedule].scale_learning_rate(training.learning_rate)
        data, evaluated = self._training[schedule], self._data[training.split]
        size = recipe.evaluation_batch or recipe.batch_size

        def batches(order: Sequence[Tensor], first: int) -> Iterable[Sequence[Example]]:
            return load_batches(data, order, training.seed, first, Loading(loaders=self._loaders))

        def make_loss(network: nn.Module) -> Callable[[Sequence[Example]], Tensor]:
            return lambda batch: _compute_loss(network, batch, criterion, execution)

        def evaluate(network: nn.Module, fidelity: float) -> Figures | str:
            chosen = select_examples(len(evaluated), fidelity, LEAST_IMAGES).tolist()
            poses = list(self.predict(network, evaluated, chosen, execution, size))
            if not all(np.isfinite(image.scores).all() for image in poses):
                return "a prediction is not finite"
            figures = evaluate_poses(poses, [evaluated.people[index] for index in chosen])
            return figures.pop(self.metric), figures

        return Trainer(
            build=self._networks[schedule],
            recipe=recipe,
            execution=execution,
            examples=len(data),
            batches=batches,
            make_loss=make_loss,
            evaluate=evaluate,
        )

    @torch.no_grad()
    def predict(
        self, network: nn.Module, images: PeopleImages, indices: Sequence[int], execution: Execution, batch_size: int
    ) -> Iterator[Poses]:
        """Yield the poses that a network in evaluation mode predicts in the boxes of each of some images."""
        data = BoxCrops(images, indices, self.crops)
        order = [part for part in torch.arange(len(data)).split(batch_size) if len(part)]
        joints, maxima = [np.zeros((0, len(MIRRORED), 2))], [np.zeros((0, len(MIRRORED)))]
        areas: list[float] = []
        for batch in load_batches(data, order, 0, loading=Loading(loaders=self._loaders)):
            crops = execution.move(torch.stack([crop for crop, _ in batch]))
            positions, values = decode_heatmaps(self._predict_heatmaps(network, crops))
            cells = (positions * self.crops.stride).cpu().double().numpy()
            joints.append(np.stack([to_image(one, matrix) for one, (_, matrix) in zip(cells, batch, strict=True)]))
            maxima.append(values.cpu().double().numpy())
            areas += [abs(float(np.linalg.det(matrix[:, :2]))) * math.prod(self.crops.size) for _, matrix in batch]
        places, values = np.concatenate(joints), np.concatenate(maxima)
        first = 0
        for index in indices:
            boxes = images.boxes(index)
            own = slice(first, first + len(boxes.boxes))
            first = own.stop
            scores = boxes.scores * _average_above(values[own], self._inference.least_value)
            yield suppress(Poses(places[own], scores, np.array(areas[own])), self._inference.suppression)

    def _predict_heatmaps(self, network: nn.Module, crops: Tensor) -> Tensor:
        heatmaps = upcast(network(crops))
        if not self._inference.flip:
            return heatmaps
        mirrored = upcast(network(crops.flip(-1)))
        return (heatmaps + mirrored.flip(-1)[:, MIRRORED]) / 2


def _stack(batch: Sequence[Example]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the crops and the contexts of some persons, stacked."""
    crops, contexts = zip(*batch, strict=True)
    return torch.stack(crops), {name: torch.stack([each[name] for each in contexts]) for name in contexts[0]}


def _compute_loss(network: nn.Module, batch: Sequence[Example], criterion: Criterion, execution: Execution) -> Tensor:
    crops, context = _stack(batch)
    with execution.autocast():
        heatmaps = network(execution.move(crops))
    moved = {name: part.to(execution.torch_device) for name, part in context.items()}
    return criterion[MAIN](upcast(heatmaps), moved)


def _average_above(values: np.ndarray, least: float) -> np.ndarray:
    """Return the mean of the values of each row that are above the least, 0 where none is; NaN stays NaN."""
    above = (values > least) | np.isnan(values)
    return np.where(above, values, 0).sum(axis=1) / np.maximum(above.sum(axis=1), 1)
