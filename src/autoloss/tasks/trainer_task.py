"""Base classes of tasks whose networks are trained by `Trainer`: any, and those on images with several objects each."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError, unknown
from autoloss.options import check_arguments
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.tasks.loading import load_batches
from autoloss.tasks.task import Task, check_training
from autoloss.training.loop import Execution
from autoloss.training.optimization import offer_step_rules
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import Trainer, select_examples
from autoloss.training.training import Diverged, Observe, Replicates, Scored, Training

Network = Callable[[], Any] | nn.Module
FULL_LENGTH = 10.0
"""Epochs of a recipe of the schedule `full` that leaves them to be chosen, in epochs of a proxy; as in the paper."""
SPLITS = ("train", "valid", "test")
Groups = Callable[[Any], Iterable[Mapping[str, Any]]]
"""Network → its parameter groups, each with a `factor` on the learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullSchedule:
    """Differences of the schedule `full` from the proxy.

    Args:
        network: Function without arguments that builds the network; the proxy's if None.
        recipe: Recipe; the proxy's if None.
        groups: Makes parameter groups of the network; the proxy's if None.
        data: Split → data, for the splits that differ; None for a split that the schedule trains on and so cannot evaluate.

    Raises:
        RequestError: An argument is of another type, or a split has another name.
    """

    network: Network | None = None
    recipe: Recipe | None = None
    groups: Groups | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_arguments(FullSchedule, {name: getattr(self, name) for name in ("network", "recipe", "groups", "data")})
        for split in self.data:
            if split not in SPLITS:
                raise unknown("split", split, SPLITS)


class TrainerTask(Task):
    """A task that sets up each training and runs it with a `Trainer`, by the recipe of the schedule."""

    tunes_learning_rate = True
    shortens = True
    lengthens = True
    replays_norms = True
    recipes: Mapping[str, Recipe]
    _full: FullSchedule
    _choices: Sequence[str] = ()
    _is_named = True

    @abstractmethod
    def _trainer(self, criterion: Criterion, training: Training, execution: Execution | None) -> Trainer[Any, Any]:
        """Return the trainer of a training that was checked by `check_training`."""

    @staticmethod
    def _make_execution(device: str) -> Execution:
        """Return the execution of a task that is made with a device, which this machine may not have."""
        try:
            return Execution(device=device)
        except RequestError as error:
            # Without `argument`: here the device is not an option of a command.
            raise RequestError(f"{error} It is the argument device of the task.") from None

    def train(
        self,
        criterion: Criterion,
        training: Training,
        execution: Execution | None = None,
        observe: Observe | None = None,
        pacing: Criterion | None = None,
    ) -> Scored | Diverged:
        check_training(self, criterion, training, self._list_splits(training.schedule))
        pace = None if pacing is None else self._trainer(pacing, training, execution).record_norms(training)
        if isinstance(pace, Diverged):
            return Diverged(pace.step, f"in the training whose norms are replayed, {pace.reason}")
        return self._trainer(criterion, training, execution).train(training, observe, pace)

    def _list_splits(self, schedule: str) -> Sequence[str]:
        """Return the splits that a schedule can evaluate."""
        others = self._full.data if schedule == "full" else {}
        labels = dict.fromkeys((*self.splits, *others))
        return [label for label in labels if label != "train" and others.get(label, label) is not None]

    def untrained(self, seed: int, split: str = "valid") -> float | None:
        return self._trainer({}, Training(seed=seed, split=split), None).untrained(seed)

    def suggest_name(self, name: str) -> None:
        """Take a name where none was given."""
        if not self._is_named:
            self.name = name

    def describe_data(self, text: str) -> None:
        """Add a sentence on what was read, for `choices`."""
        self._choices = [text, *self._choices]

    def choices(self) -> Sequence[str]:
        return self._choices

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        return self.recipes[schedule].as_values()


def describe_numbers(given: Recipe, chosen: Recipe, examples: int, steps: int) -> list[str]:
    """Say in a sentence which numbers of a recipe were chosen, in the form in which they can be given; nothing where all were.

    >>> recipe = Recipe(learning_rate=0.1)
    >>> describe_numbers(recipe, recipe.choose(200), 200, 204)
    ['Chosen for 200 training examples: epochs=17, batch_size=16 (204 steps).']
    """
    before, now = given.as_values(), chosen.as_values()
    numbers = [f"{name}={now[name]:g}" for name in ("epochs", "batch_size", "learning_rate") if before[name] is None]
    return [f"Chosen for {examples} training examples: {', '.join(numbers)} ({steps} steps)."] if numbers else []


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

    `network` builds the network without arguments, so that its weights follow from the seed; `data` maps train, valid and
    test to images, None for a split that does not exist, and `make_examples` training data to the data set of what the
    network trains on. `metric` is one of `metrics`; the others are reported with it. A short training, too, is evaluated on
    `least_images`.
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
        full: FullSchedule = FullSchedule(),
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
        self._full, self._load = full, partial(load_batches, loaders=loaders)
        self._data = {split: images for split, images in data.items() if images is not None}
        self.splits = tuple(split for split in self._data if split != "train")
        train = {"proxy": data["train"], "full": full.data.get("train", data["train"])}
        self._examples = {schedule: make_examples(images) for schedule, images in train.items()}
        count, whole = len(self._examples["proxy"]), len(self._examples["full"])
        longer = (full.recipe or recipe).choose(whole, length=FULL_LENGTH if full.recipe else 1.0)
        self.recipes = {"proxy": (chosen := recipe.choose(count)), "full": longer}
        self._choices = describe_numbers(recipe, chosen, count, chosen.steps(count))

    def steps(self, training: Training) -> int:
        recipe = self.recipes[training.schedule].follow(training)
        return recipe.steps(len(self._examples[training.schedule]), training.fidelity)

    def _trainer(self, criterion: Criterion, training: Training, execution: Execution | None) -> Trainer[Any, Any]:
        schedule, execution = training.schedule, execution or self._execution
        examples = self._examples[schedule]
        data = {**self._data, **(self._full.data if schedule == "full" else {})}[training.split]

        def evaluate(network: Any, fidelity: float) -> Scored | str:
            indices = select_examples(len(data), fidelity, self.least_images).tolist()
            return self._evaluate(network, data, indices, training, execution)

        return Trainer(
            build=self._networks[schedule],
            recipe=self.recipes[schedule].follow(training),
            execution=execution,
            examples=len(examples),
            batches=lambda order, first: self._load(examples, order, training.seed, first),
            make_loss=lambda network: lambda batch: self._compute_loss(network, batch, criterion, execution),
            evaluate=evaluate,
        )

    @abstractmethod
    def _compute_loss(self, network: Any, batch: Any, criterion: Criterion, execution: Execution) -> Tensor:
        """Return the loss of a batch of examples, in float32 whatever the precision of the network."""

    @abstractmethod
    def _evaluate(
        self, network: Any, data: Any, indices: Sequence[int], training: Training, execution: Execution
    ) -> Scored | str:
        """Return all metrics of the images with these indices, or the reason why there are none."""

    def _sort_figures(self, found: Mapping[str, float], replicates: Replicates | None = None) -> Scored:
        """Return all metrics as the score and the others."""
        also = {name: found[name] for name in found if name != self.metric}
        return Scored(found[self.metric], also, replicates=replicates)


def draw_batches(examples: int, count: int, size: int, generator: torch.Generator) -> list[Tensor]:
    """Draw the indices of batches of one size; no example is drawn twice before all were drawn once."""
    order: list[Tensor] = []
    while len(order) < count:
        order += torch.randperm(examples, generator=generator)[: examples // size * size].split(size)
    return order[:count]


def can_gain(branch: Branch, sample: Sample) -> bool:
    """Return True if the metric of a sample is below that of its ideal prediction; False where either is NaN."""
    ideal = branch.ideal(sample.context)
    return branch.metric(sample.prediction, sample.context) < branch.metric(ideal, sample.context)
