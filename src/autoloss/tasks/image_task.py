"""The parts that tasks on images with several objects each have in common: detection and pose estimation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from torch import Tensor, nn

from autoloss.errors import unknown
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.loading import Loading, load_batches
from autoloss.tasks.trainer_task import FULL_LENGTH, FullSchedule, TrainerTask, describe_numbers
from autoloss.training.execution import Execution
from autoloss.training.optimization import offer_step_rules
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import Figures, Trainer, select_examples
from autoloss.training.training import Replicates, Training

DRAWS_PER_SAMPLE = 50
"""Examples that are tried for each requested sample, at most."""


class ImageTaskOptions(TypedDict, total=False):
    """Arguments that every `ImageTask` passes on.

    Args:
        recipe: Recipe of the proxy training.
        full: Network, recipe and data of the schedule `full` where they differ from the proxy's.
        device: Device on which networks are trained.
        loaders: Worker processes that read images ahead; 0 reads each batch when it is needed.
    """

    recipe: Recipe
    full: FullSchedule
    device: str
    loaders: int


class ImageTask(TrainerTask):
    """A task whose training reads examples by index, and whose metrics are those of whole images.

    Args:
        network: Function without arguments that builds the network, so that its weights follow from the seed.
        data: Split → data, of train, valid and test; None for a split that does not exist.
        make_examples: Training data → data set of the examples that the network trains on.
        metric: One of `metrics`; the others are reported with it.
        kind: Kind of the metric, for messages.

    Attributes:
        least_images: Images that also a short training is evaluated on.

    Raises:
        RequestError: An unknown metric.
    """

    least_images: int

    def __init__(
        self,
        name: str,
        network: Callable[[], nn.Module],
        data: Mapping[str, Any],
        make_examples: Callable[[Any], Any],
        *,
        metric: str,
        metrics: Iterable[str],
        kind: str,
        recipe: Recipe = Recipe(),  # noqa: B008 - frozen
        full: FullSchedule = FullSchedule(),  # noqa: B008 - frozen
        device: str = "cpu",
        loaders: int = 0,
    ) -> None:
        if metric not in metrics:
            raise unknown(f"{kind} metric", metric, metrics)
        self.name, self.metric = name, metric
        self.also = tuple(other for other in metrics if other != metric)
        self.step_rules = offer_step_rules(recipe)
        self.execution = self._execution = Execution(device=device)
        self._networks: Mapping[str, Callable[[], Any]] = {"proxy": network, "full": full.network or network}
        self._full, self._loading = full, Loading(loaders=loaders)
        self._data = {split: images for split, images in data.items() if images is not None}
        self.splits = tuple(split for split in self._data if split != "train")
        train = {"proxy": data["train"], "full": full.data.get("train", data["train"])}
        self._examples = {schedule: make_examples(images) for schedule, images in train.items()}
        count, whole = len(self._examples["proxy"]), len(self._examples["full"])
        longer = (full.recipe or recipe).choose(whole, length=FULL_LENGTH if full.recipe else 1.0)
        self.recipes = {"proxy": (chosen := recipe.choose(count)), "full": longer}
        self._choices = describe_numbers(recipe, chosen, count, chosen.steps(count))

    def steps(self, training: Training) -> int:
        return (
            self.recipes[training.schedule]
            .follow(training)
            .steps(len(self._examples[training.schedule]), training.fidelity)
        )

    def _trainer(
        self, criterion: Criterion, training: Training, execution: Execution | None = None
    ) -> Trainer[Any, Any]:
        schedule, execution = training.schedule, execution or self._execution
        examples = self._examples[schedule]
        data = {**self._data, **(self._full.data if schedule == "full" else {})}[training.split]

        def evaluate(network: Any, fidelity: float) -> Figures | str:
            indices = select_examples(len(data), fidelity, self.least_images).tolist()
            return self._evaluate(network, data, indices, training, execution)

        return Trainer(
            build=self._networks[schedule],
            recipe=self.recipes[schedule].follow(training),
            execution=execution,
            examples=len(examples),
            batches=lambda order, first: load_batches(examples, order, training.seed, first, self._loading),
            make_loss=lambda network: lambda batch: self._compute_loss(network, batch, criterion, execution),
            evaluate=evaluate,
        )

    @abstractmethod
    def _compute_loss(self, network: Any, batch: Any, criterion: Criterion, execution: Execution) -> Tensor:
        """Return the loss of a batch of examples, in float32 whatever the precision of the network."""

    @abstractmethod
    def _evaluate(
        self, network: Any, data: Any, indices: Sequence[int], training: Training, execution: Execution
    ) -> Figures | str:
        """Return all metrics of the images with these indices, or the reason why there are none."""

    def _sort_figures(self, found: Mapping[str, float], replicates: Replicates | None = None) -> Figures:
        """Return all metrics as the score and the others."""
        return Figures(found[self.metric], {name: found[name] for name in found if name != self.metric}, replicates)


def can_gain(branch: Branch, sample: Sample) -> bool:
    """Return True if the metric of a sample is below that of its ideal prediction; False where either is NaN."""
    ideal = branch.ideal(sample.context)
    return branch.metric(sample.prediction, sample.context) < branch.metric(ideal, sample.context)
