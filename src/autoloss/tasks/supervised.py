"""A task made from a network, data, a metric and a recipe, for one prediction and one target (Section 4)."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.options import check_arguments
from autoloss.space.activated import ActivatedBranch, activate_for_metric, spatial
from autoloss.space.branch import Branch, Criterion, Sample
from autoloss.space.form import STANDARD, Activation
from autoloss.space.loss import MAIN
from autoloss.space.operators import upcast
from autoloss.space.pairs import PairBranch
from autoloss.tasks.checks import (
    build_network,
    check_repeats,
    convert_target,
    describe_sum,
    describe_unusable_samples,
    find_misfits,
    fingerprint,
    probe_splits,
)
from autoloss.tasks.constants import measure_best_constant
from autoloss.tasks.data import Data
from autoloss.tasks.doubts import find_doubts, find_obstacle
from autoloss.tasks.metric import Metric, SplitMetrics, check_metric, find_metric, measure_sample, name_metric, to_float
from autoloss.tasks.splits import Split, add_shares, describe_folds, describe_splits, read_splits
from autoloss.tasks.task import Picture, check_training
from autoloss.tasks.thresholds import Batches, has_threshold, measure_undecided, tune_threshold
from autoloss.tasks.trainer_task import (
    DRAWS_PER_SAMPLE,
    FULL_LENGTH,
    FullSchedule,
    Groups,
    Network,
    TrainerTask,
    describe_numbers,
    draw_batches,
)
from autoloss.training import distribution
from autoloss.training.loop import Execution, seed_generators
from autoloss.training.optimization import offer_step_rules
from autoloss.training.recipe import Recipe, name_function, shorten_steps
from autoloss.training.structures import Inputs, list_tensors
from autoloss.training.trainer import FitElsewhere, Trainer, fit_elsewhere, select_examples
from autoloss.training.training import THRESHOLD, Diverged, Scored, Training

LEAST_IMAGES, LEAST_ROWS = 64, 512
"""Least number of examples on which a short training is evaluated."""


@final
class SupervisedTask(TrainerTask):
    """A network with one output, trained on pairs of input and target.

    Args:
        network: A function without arguments that builds the network, so that its weights follow from the seed; or a module,
            which is copied with its weights. In training it may return a tuple: its prediction, and auxiliary predictions of
            the same target, whose losses are weighted by `Recipe.auxiliary`.
        train: Training data: a pair (inputs, targets) of tensors or arrays; a dictionary of them; a list or a torch `Dataset`
            whose items are pairs (input, target), possibly with further parts, or dictionaries; or a `DataLoader` of a
            `Dataset`, whose batches, `collate_fn` and number of workers are used. A dictionary of inputs is passed to the network
            as named arguments, a tuple as positional ones; of a dictionary that it returns, `logits` or `out` is the prediction.
        valid: Validation data, on which losses are compared. If None, parts of the training data are held out (`Data.folds`).
        activation: Activation between the network's output and the prediction: softmax, sigmoid or none; None with `branch`.
        metric: (activated prediction, target with the type of the data) → one number, higher is better, NaN if undefined.
            It is called once per sample in the rejection protocol and once on the whole split after training. An object with
            update, compute and reset, such as a `torchmetrics.Metric`, is updated batch by batch. The branch's metric if None.
        test: Test data, used for final figures only.
        recipe: Recipe of the proxy training; numbers that it leaves out follow from the number of training examples.
        full: Network, recipe and data of the schedule `full` where they differ from the proxy's.
        groups: Makes parameter groups of the network, each with a `factor` on the learning rate.
        branch: Definition of y and p in place of an activation, such as `ActivatedBranch(encoding="edge")` for boundary metrics;
            or your own, whose context holds the `target` of the data unchanged and whose metrics get raw predictions.
        data: Options for reading the data, and the part of the network's output that is the prediction.
        name: Name shown in tables; by default that of the variable and file where the task is read from a file, else of the metric.
        standard: Formula or zoo name of the loss in common use; by default that of the activation or of pairs.
        also: Further metrics by name, reported with the score.
        device: Device on which networks are trained.
        trainer: Called with (network, loss, training) to train a network in place with the trainer of another library, instead of
            by the recipe. `loss` is a module (raw prediction, target) → scalar; `training` has `seed`, `fidelity` (the share of
            the schedule) and `learning_rate` (a factor), which the function has to follow.

    Raises:
        RequestError: Network, data and metric do not fit together; the message names the necessary change.

    >>> inputs = torch.linspace(-1, 1, 64)[:, None]
    >>> pair = inputs, (inputs[:, 0] > 0).long()
    >>> def accuracy(prediction, target):
    ...     return (prediction.argmax(dim=1) == target).float().mean().item()
    >>> task = SupervisedTask(lambda: nn.Linear(1, 2), pair, pair, "softmax", accuracy, data=Data(rows_per_sample=16))
    >>> dict(task.standard), task.samples(2, seed=0)["main"][0].prediction.shape
    ({'main': 'baseline/ce'}, torch.Size([16, 2, 1, 1]))
    """

    def __init__(
        self,
        network: Network,
        train: Any,
        valid: Any = None,
        activation: Activation | None = None,
        metric: Metric = None,
        *,
        test: Any = None,
        recipe: Recipe = Recipe(),  # noqa: B008 - frozen
        full: FullSchedule = FullSchedule(),  # noqa: B008 - frozen
        groups: Groups | None = None,
        branch: Branch | None = None,
        data: Data = Data(),  # noqa: B008 - frozen
        name: str | None = None,
        standard: str | None = None,
        also: Mapping[str, Metric] | None = None,
        device: str = "cpu",
        trainer: FitElsewhere | None = None,
    ) -> None:
        given = {"recipe": recipe, "full": full, "data": data, "branch": branch, "name": name, "standard": standard}
        check_arguments(SupervisedTask.__init__, {**given, "also": also, "device": device})
        if branch is None:
            branch = ActivatedBranch(activation=cast(Activation, activation), ignore_index=data.ignore_index)
        elif activation is not None or data.ignore_index is not None:
            raise RequestError("The branch decides activation and ignore_index; leave both out, or leave out branch.")
        self.name, self._is_named = name or "task", name is not None
        self.execution = self._execution = self._make_execution(device)
        self._reading, self._full, self._fit, self._given = data, full, trainer, recipe
        self._networks = {"proxy": network, "full": full.network or network}
        self._groups = {"proxy": groups, "full": full.groups or groups}
        self._metric = check_metric(find_metric(branch) if metric is None else metric, "metric")
        self.suggest_name(name_metric(self._metric))
        self._also = {label: check_metric(further, label) for label, further in (also or {}).items()}
        self.also = tuple(self._also)
        self._shown: Sequence[str] = ()
        self._splits = read_splits({"train": train, "valid": valid, "test": test}, full.data, data)
        proxy, whole = (folds[0] for folds in self._splits.values())
        self.folds = len(self._splits["proxy"])
        self.recipes = {
            "proxy": proxy["train"].choose_numbers(recipe),
            "full": whole["train"].choose_numbers(full.recipe or recipe, FULL_LENGTH if full.recipe else 1.0),
        }
        self.chooses_length = trainer is None and recipe.epochs is None
        self.lengthens = self.replays_norms = trainer is None
        self.step_rules = offer_step_rules(self.recipes["proxy"]) if trainer is None else ("recipe",)
        self.splits = tuple(label for label in proxy if label != "train")
        if isinstance(branch, ActivatedBranch | PairBranch) and (kind := branch.form().kind):
            standard = standard or STANDARD[kind]
        self.standard = {} if standard is None else {MAIN: standard}
        self._shape = probe_splits(network, proxy, branch, self.recipes["proxy"])
        self.obstacle = find_obstacle(proxy["train"])
        self._has_space, self._dtype = self._shape[2:].numel() > 1, proxy["train"].first(1)[1].dtype
        self._branch = add_shares(self._set_measure(branch), proxy["train"])
        read = [describe_splits(proxy, self._branch, self._shape), *describe_folds(self._splits["proxy"], data)]
        if recipe.batch_size not in (None, size := self.recipes["proxy"].batch_size):
            unused = f"batch_size={recipe.batch_size} of the recipe is not used"
            read.append(f"{unused}: the DataLoader of the train data has {size}.")
        self._choices = [*read, *describe_sum(standard, self._shape[1]), *self._describe_numbers()]
        self.tunes_threshold = isinstance(branch, ActivatedBranch) and has_threshold(branch.activation, self._shape[1])

    @property
    def branches(self) -> Mapping[str, Branch]:
        return {MAIN: self._branch}

    def steps(self, training: Training) -> int | None:
        recipe = self.recipes[training.schedule].follow(training)
        train = self._splits[training.schedule][training.fold]["train"]
        return None if self._fit is not None else shorten_steps(train.count_batches(recipe), training.fidelity)

    def recipe(self, schedule: str) -> Mapping[str, Any]:
        return super().recipe(schedule) if self._fit is None else {"trainer": name_function(self._fit)}

    def samples(self, count: int, seed: int) -> Mapping[str, Sequence[Sample]]:
        found, drawn = list[Sample](), list[tuple[float, float]]()
        split = self._splits["proxy"][0]["train"]
        size = 1 if self._has_space else min(self._reading.rows_per_sample, len(split))
        with seed_generators(seed) as generator, torch.no_grad():
            network = build_network(self._networks["proxy"]).eval()
            drawn_rows = draw_batches(len(split), count * DRAWS_PER_SAMPLE, size, generator)
            for inputs, target in split.batches([split.indices[rows] for rows in drawn_rows], seed):
                prediction = self._reading.predict(network, inputs)
                sample = Sample(spatial(prediction), self._make_context(target, prediction))
                drawn.append(self._measure_ends(sample))
                if operator.lt(*drawn[-1]):
                    found.append(sample)
                if len(found) == count:
                    # The protocol compares samples of one size; a cropped sample may have nothing left to gain.
                    least = list(map(min, zip(*(one.prediction.shape[2:] for one in found), strict=True)))
                    cropped = [one.crop(least) for one in found]
                    found = [one for one in cropped if operator.lt(*self._measure_ends(one))]
                if len(found) == count:
                    check_repeats(*(self._measure_ends(found[0])[0] for _ in range(2)))
                    return {MAIN: found}
        raise describe_unusable_samples(drawn, count, None if self._has_space else self._reading.rows_per_sample)

    @torch.no_grad()
    def constant_score(self) -> float | None:
        if not isinstance(self._branch, ActivatedBranch):
            return None
        split, recipe = self._splits["proxy"][0]["valid"], self.recipes["proxy"]
        with seed_generators(0):
            network = self._execution.place(build_network(self._networks["proxy"])).eval()
            predicted = self._predict(network, split, split.evaluation_batch(recipe), self._execution, 1.0)
            return measure_best_constant(predicted, self._branch, self._measure_score)

    def fingerprints(self) -> Mapping[str, Sequence[float]]:
        return fingerprint(self._splits["proxy"][0], self._networks["proxy"])

    def diagnose(self) -> Sequence[str]:
        doubts = find_doubts(self._splits["proxy"][0], self._branch, self._shape)
        if self._full.network or self._full.data:
            doubts += find_misfits(self._networks["full"], self._splits["full"][0], self._branch, self.recipes["full"])
        return doubts

    def lengthen(self, factor: float) -> SupervisedTask:
        other, longer = copy.copy(self), Training(seed=0, length=factor)
        # Epochs that were given with the full schedule stay.
        kept = {"full": self.recipes["full"]} if self._full.recipe and self._full.recipe.epochs else {}
        other.recipes = {name: recipe.follow(longer) for name, recipe in self.recipes.items()} | kept
        other._choices = [*self._choices[:-1], *other._describe_numbers()]
        return other

    def _describe_numbers(self) -> list[str]:
        train, chosen = self._splits["proxy"][0]["train"], self.recipes["proxy"]
        given, steps = train.adopt_batches(self._given), train.count_batches(chosen)
        return [] if self._fit is not None else describe_numbers(given, chosen, len(train), steps)

    def measuring(self, names: Sequence[str]) -> SupervisedTask:
        other = copy.copy(self)
        other._shown = tuple(names)
        return other

    def with_metric(self, name: str, metric: Metric | None = None) -> SupervisedTask:
        """Return a copy of the task with another metric; the former one becomes a further metric.

        Args:
            metric: The metric; None for the further metric of this name.

        Raises:
            RequestError: The metric is neither a function nor an object with update, compute and reset.
        """
        other = copy.copy(self)
        metric = other._metric = check_metric(self._also.get(name) if metric is None else metric, name)
        others = {label: further for label, further in self._also.items() if label != name}
        other._also = others if self._metric is metric else {name_metric(self._metric): self._metric, **others}
        other.also = tuple(other._also)
        other._branch = other._set_measure(self._branch)
        if "measure" in getattr(reference := cast(Any, self.describe_reference), "keywords", ()):
            other.describe_reference = functools.partial(reference, measure=metric)
        return other

    def _set_measure(self, branch: Branch) -> Branch:
        """Return the branch with the task's metric and the network's channels; a branch of one's own is unchanged."""
        if not isinstance(branch, ActivatedBranch | PairBranch):
            return branch
        metric, dtype = self._metric, self._dtype

        def measure(prediction: Tensor, target: Tensor) -> float:
            return measure_sample(metric, prediction, target.to(dtype))

        others = {"channels": self._shape[1]} if isinstance(branch, ActivatedBranch) else {}
        return dataclasses.replace(branch, measure=measure, **others)

    def _make_context(self, target: Tensor, prediction: Tensor) -> Mapping[str, Tensor]:
        return self._branch.make_context(prediction, convert_target(target, prediction, self._branch))

    def _activate(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the prediction that metrics get: activated, the scores (N,) of pairs, or raw for a branch of one's own."""
        if isinstance(self._branch, ActivatedBranch):
            return activate_for_metric(prediction, target, self._branch.activation)
        return prediction.flatten() if isinstance(self._branch, PairBranch) else prediction

    def _measure_ends(self, sample: Sample) -> tuple[float, float]:
        """Return the metric of a sample's prediction, and that of the target used as prediction."""
        ends = sample.prediction, self._branch.ideal(sample.context)
        initial, best = (to_float(self._branch.metric(one, sample.context)) for one in ends)
        return initial, best

    def _trainer(self, criterion: Criterion, training: Training, execution: Execution | None) -> Trainer[Any, Any]:
        schedule, execution, fit = training.schedule, execution or self._execution, self._fit
        recipe = self.recipes[schedule].follow(training)
        train = self._splits[schedule][training.fold]["train"]
        return Trainer(
            build=lambda: build_network(self._networks[schedule]),
            recipe=recipe,
            execution=execution,
            examples=len(train),
            batches=lambda order, first: train.batches(order, training.seed, first=first),
            make_loss=lambda network: self._make_loss(network, criterion, recipe, execution),
            evaluate=lambda network, fidelity: self._evaluate(network, training, recipe, execution, fidelity),
            groups=self._groups[schedule],
            draw_order=train.draw_order,
            fit_elsewhere=fit and (lambda *given: fit_elsewhere(fit, self._bind(criterion), *given)),
        )

    def _bind(self, criterion: Criterion) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss as a function of prediction and target, in float32 at any precision of the network."""

        def compute(prediction: Tensor, target: Tensor) -> Tensor:
            return criterion[MAIN](raw := upcast(prediction), self._make_context(target, raw))

        return compute

    def pictures(self, criterion: Criterion, training: Training, count: int) -> list[Picture] | Diverged:
        """Train as `train` does, and return the first images of the split with the predicted classes.

        Raises:
            RequestError: The task does not predict a class for each pixel, or does not offer this training.
        """
        if not (self._has_space and isinstance(self._branch, ActivatedBranch) and self._branch.has_classes):
            raise RequestError(f"The task {self.name} has no pictures: only segmentation tasks have.")
        check_training(self, criterion, training, self._list_splits(training.schedule))
        data = self._splits[training.schedule][training.fold][training.split]
        trainer = self._trainer(criterion, training, None)
        return trainer.apply(training, lambda network: list(self._make_pictures(network, data, count)))

    @torch.no_grad()
    def _make_pictures(self, network: nn.Module, data: Split, count: int) -> Iterator[Picture]:
        for inputs, target in data.batches(data.indices[:count].split(1)):
            prediction = self._reading.predict(network, self._execution.move(inputs))
            probabilities = self._activate(prediction, target)[0].cpu()
            # With one channel, the prediction is the probability of the second of two classes.
            classes = probabilities.argmax(0) if probabilities.ndim > target[0].ndim else (probabilities > 0.5).long()
            yield Picture(list_tensors(inputs)[0][0].cpu(), target[0].reshape(classes.shape), classes)

    def _make_loss(
        self, network: nn.Module, criterion: Criterion, recipe: Recipe, execution: Execution
    ) -> Callable[[tuple[Inputs, Tensor]], Tensor | None]:
        """Return a function from a batch to its loss, in float32 at any precision of the network; None if the branch is empty."""
        loss = self._bind(criterion)

        def compute_loss(batch: tuple[Inputs, Tensor]) -> Tensor | None:
            inputs, target = batch
            with execution.autocast():
                prediction, *auxiliary = self._reading.call(network, execution.move(inputs))
            target, prediction = target.to(execution.torch_device), upcast(prediction)
            context = self._make_context(target, prediction)
            # Of several processes, which average their gradients at every step, none skips one.
            if self._branch.is_empty(context) and distribution.size() == 1:
                return None
            others = (recipe.auxiliary * loss(other, target) for other in auxiliary)
            return sum(others, criterion[MAIN](prediction, context))

        return compute_loss

    @torch.no_grad()
    def _evaluate(
        self, network: nn.Module, training: Training, recipe: Recipe, execution: Execution, fidelity: float
    ) -> Scored | str:
        splits = self._splits[training.schedule][training.fold]

        def predict(label: str) -> Iterator[tuple[Tensor, Tensor]]:
            return self._predict(network, splits[label], splits[label].evaluation_batch(recipe), execution, fidelity)

        # Short trainings compare losses by the score; further metrics may take longer than the training.
        also = {name: further for name, further in self._also.items() if fidelity == 1 or name in self._shown}
        if not training.tuned_threshold:
            return self._measure_figures(predict(training.split), also, training.resampled)
        valid = list(predict("valid"))
        evaluated = valid if training.split == "valid" else list(predict(training.split))
        activation = cast(ActivatedBranch, self._branch).activation
        threshold, decided = tune_threshold(valid, evaluated, activation, self._measure_score)
        figures = self._measure_figures(decided, also, training.resampled)
        if isinstance(figures, str):
            return figures
        further = {name: self.with_metric(name)._measure_score for name in also}
        others = measure_undecided(further, valid, evaluated, activation)
        return dataclasses.replace(figures, also={**figures.also, **others, THRESHOLD: threshold})

    def _measure_figures(
        self, batches: Iterable[tuple[Tensor, Tensor]], also: Mapping[str, Metric], resampled: bool = False
    ) -> Scored | str:
        """Return the score, on resamples too where that is asked for, and further metrics of raw predictions and targets."""
        group = self._branch.group if isinstance(self._branch, PairBranch) else None
        measured = SplitMetrics([self._metric, *also.values()], resampled, group)
        for prediction, target in batches:
            if not bool(torch.isfinite(prediction).all()):
                return "a prediction is not finite"
            measured.add(self._activate(prediction, target), target)
        score, *further = measured.values()
        return Scored(score, dict(zip(also, further, strict=True)), replicates=measured.replicates())

    def _measure_score(self, batches: Batches) -> float:
        figures = self._measure_figures(batches, {})
        return math.nan if isinstance(figures, str) else figures.score

    def _predict(
        self, network: nn.Module, split: Split, batch_size: int, execution: Execution, fidelity: float
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the raw predictions and targets of a split, or of as much of it as a short training is evaluated on."""
        examples = select_examples(len(split), fidelity, LEAST_IMAGES if self._has_space else LEAST_ROWS)
        for inputs, target in split.batches(split.indices[examples].split(batch_size)):
            yield self._reading.predict(network, execution.move(inputs)), target.to(execution.torch_device)
