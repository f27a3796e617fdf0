"""Metrics of a split and of its bootstrap resamples: functions of prediction and target, or objects that accumulate over batches.

Such an object has `update`, `compute` and `reset`, as a `torchmetrics.Metric`, which is never imported. A resample has as many
examples as the split, drawn with replacement. The draws follow from the number of examples alone: every training is measured on the
same resamples, and differences between losses are paired.

Source: Efron & Tibshirani, 1993, An Introduction to the Bootstrap, Chapter 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from autoloss.errors import FAILURES, RequestError, describe_user_error, name_kind, quote
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch
from autoloss.space.pair_lists import number_groups
from autoloss.space.pairs import PairBranch
from autoloss.training.training import THRESHOLD, Replicates

RESAMPLES = 64
"""Their number, where the metric is quick."""
LEAST_RESAMPLES = 16
"""With fewer of them, a spread tells too little: none is drawn."""
ELEMENTS = 20_000_000
"""Elements of predictions that all resamples hold together, at most: what bounds the time of measuring them."""


@runtime_checkable
class StreamedMetric(Protocol):
    """A metric that accumulates over batches."""

    def update(self, prediction: Tensor, target: Tensor) -> Any:
        """Add a batch of activated predictions and targets."""

    def compute(self) -> Any:
        """Return the value over all batches since the last reset: one number, higher is better."""

    def reset(self) -> Any:
        """Forget all batches."""


@runtime_checkable
class CountingMetric(Protocol):
    """A metric that is also a function of counts, which are added over batches: its resamples cost next to nothing."""

    def count(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Return the counts of a batch of activated predictions and targets."""
        ...

    def evaluate(self, counts: Tensor) -> Any:
        """Return the value of the counts of a split: one number, higher is better, NaN if undefined."""


@runtime_checkable
class ListMetric(Protocol):
    """A metric that is the mean over lists of rows, such as the items of a query; a resample draws lists, not rows."""

    def measure_lists(self, prediction: Tensor, target: Tensor) -> Tensor | None:
        """Return the metric of each list of a batch for which it is defined; None where the rows are no lists."""
        ...


Metric = Any
"""Callable[[Tensor, Tensor], float], or a StreamedMetric."""
Pair = tuple[Tensor, Tensor]


def check_metric(metric: Metric, name: str) -> Metric:
    """Return the metric unchanged if it has one of the two forms; a RequestError otherwise."""
    if name in (THRESHOLD, "score"):
        other = "tuned threshold" if name == THRESHOLD else "metric of the search"
        raise RequestError(f"A further metric is named {name}, as the {other} is. Give it another name.")
    if isinstance(metric, type):
        raise RequestError(f"{name} is the class {metric.__name__}; give an object of it: {metric.__name__}(…).")
    if not callable(metric) and not isinstance(metric, StreamedMetric):
        raise RequestError(
            f"{name} is {quote(metric)}; expected a function (prediction, target) → float, or an object with update, compute and "
            "reset, such as a torchmetrics.Metric."
        )
    return metric


def name_metric(metric: Metric) -> str:
    """Return the name of a metric, for people.

    >>> name_metric(lambda prediction, target: 1.0)
    'metric'
    """
    name = getattr(metric, "__name__", type(metric).__name__)
    return "metric" if name == "<lambda>" else name


def measure_sample(metric: Metric, prediction: Tensor, target: Tensor) -> float:
    """Measure one sample; NaN if the metric is undefined."""
    streamed = isinstance(metric, StreamedMetric)
    try:
        value = metric(*_copy(prediction, target)) if callable(metric) else _stream(metric, [(prediction, target)])
        if streamed:
            # Calling a torchmetrics.Metric also adds to its state.
            metric.reset()
        return to_float(value)
    except (RequestError, MemoryError, torch.OutOfMemoryError):
        raise
    except FAILURES as error:
        raise RequestError(
            f"The metric raises {describe_user_error(error)}. It was called with (prediction, target) of "
            f"the shapes {tuple(prediction.shape)} and {tuple(target.shape)}, types {prediction.dtype} and {target.dtype}; the "
            f"prediction is activated.{_describe_form(prediction, target)}"
        ) from error


def _describe_form(prediction: Tensor, target: Tensor) -> str:
    """Describe inputs that a metric may not expect: one-hot targets, or probabilities of each class."""
    if prediction.ndim < 2 or prediction.shape[1] < 2:
        return ""
    if target.shape == prediction.shape and bool(((target == 0) | (target == 1)).all() & (target.sum(1) == 1).all()):
        return " The targets are one-hot; give class indices instead: targets.argmax(dim=1)."
    advice = " For classes, the metric can begin with prediction.argmax(dim=1); prediction.log() gives logits."
    return advice if target.ndim < prediction.ndim else ""


def find_metric(branch: Branch) -> Metric:
    """Return the metric of a branch as a function of prediction and target."""
    if isinstance(branch, ActivatedBranch | PairBranch):
        return branch.measure
    return lambda prediction, target: branch.metric(prediction, {"target": target})


def draw_resamples(examples: int, count: int) -> Iterator[Tensor]:
    """Draw the indices of the examples of each resample, the same at every call.

    >>> [len(indices) for indices in draw_resamples(5, 2)]
    [5, 5]
    """
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(examples, (examples,), generator=generator) for _ in range(count))


def measure_resamples(examples: int, measure: Callable[[Tensor], Any], count: int = RESAMPLES) -> Replicates:
    """Measure `count` resamples of a split; `measure` maps indices of examples to the metric, NaN if undefined."""

    def measure_defined(indices: Tensor) -> float:
        try:
            return to_float(measure(indices))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except FAILURES:
            # The split itself is measured: some metrics raise where a resample lacks a class.
            return math.nan

    scores = [measure_defined(indices) for indices in draw_resamples(examples, count)]
    return Replicates(examples, tuple(None if math.isnan(score) else score for score in scores))


class SplitMetrics:
    """Computes several metrics of a split in one pass over its batches, and the first one on resamples of its examples.

    Functions are called with the predictions of the whole split, which are kept in memory; objects accumulate over batches. If
    examples differ in size, a function is called for each of them, and its value is the mean over those where it is defined. For
    resamples counts are kept of each example, or predictions where they are few enough to be measured `LEAST_RESAMPLES` times.

    Args:
        group: Column of the target with the number of the list of each row: lists are drawn, not rows.
    """

    def __init__(self, metrics: Sequence[Metric], resampled: bool = False, group: int | None = None) -> None:
        self._metrics, self._resampled, self._group = metrics, resampled, group
        # The score is often one of the further metrics; each object is updated once per batch.
        single = {id(metric): metric for metric in metrics}
        self._counting = {key: metric for key, metric in single.items() if isinstance(metric, CountingMetric)}
        self._streamed = [metric for metric in single.values() if isinstance(metric, StreamedMetric)]
        self._calls = not all(isinstance(metric, CountingMetric | StreamedMetric) for metric in metrics)
        self._totals: dict[int, Tensor] = {}
        self._counts: list[Tensor] = []
        self._lists: list[Tensor] = []
        self._kept: list[Pair] = []
        self._elements = 0
        for metric in self._streamed:
            metric.reset()

    def add(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch of activated predictions and targets."""
        for metric in self._streamed:
            metric.update(*_copy(prediction, target))
        for key, metric in self._counting.items():
            self._totals[key] = self._totals.get(key, 0) + metric.count(prediction, target)
        self._elements += prediction.numel()
        samples = self._resampled and not self._summarise(prediction, target) and self._resamples >= LEAST_RESAMPLES
        if self._calls or samples:
            self._kept.append((prediction, target))
        elif self._kept:
            self._kept.clear()

    def _summarise(self, prediction: Tensor, target: Tensor) -> bool:
        """Keep the counts of each example or the score of each list, if the first metric has them."""
        metric = self._metrics[0]
        if isinstance(metric, CountingMetric):
            self._counts += [metric.count(*one).cpu() for one in _split_examples((prediction, target))]
            return True
        lists = metric.measure_lists(prediction, target) if isinstance(metric, ListMetric) else None
        self._lists += [] if lists is None else [lists]
        return lists is not None

    def values(self) -> list[float]:
        """Return the value of each metric, in order; NaN if undefined."""
        found = [self._measure(metric) for metric in self._metrics]
        for metric in self._streamed:
            metric.reset()
        return found

    def replicates(self) -> Replicates | None:
        """Return the first metric on each resample; None where they were not asked for, or the split is too large for it."""
        metric = self._metrics[0]
        if self._counts:
            counts = torch.stack(self._counts)
            return measure_resamples(len(counts), lambda indices: metric.evaluate(counts[indices].sum(dim=0)))
        if self._lists:
            return _resample_scores(torch.cat(self._lists))
        if not self._resampled or not self._kept or self._resamples < LEAST_RESAMPLES:
            return None
        if self._has_one_size():
            prediction, target = self._join()
            lists = None if self._group is None else _Lists(target, self._group)
            lists = lists if lists and len(lists) > 1 else None

            def measure(indices: Tensor) -> Any:
                rows, drawn = (indices, target[indices.to(target.device)]) if lists is None else lists.draw(indices)
                chosen = prediction[rows.to(prediction.device)], drawn
                return _stream(metric, [chosen]) if isinstance(metric, StreamedMetric) else metric(*chosen)

            return measure_resamples(len(prediction if lists is None else lists), measure, self._resamples)
        examples = [one for batch in self._kept for one in _split_examples(batch)]
        if isinstance(metric, StreamedMetric):
            return measure_resamples(
                len(examples), lambda rows: _stream(metric, [examples[row] for row in rows]), self._resamples
            )
        scores = torch.tensor([to_float(metric(*_copy(*one))) for one in examples], dtype=torch.float64)
        return _resample_scores(scores)

    @property
    def _resamples(self) -> int:
        return min(RESAMPLES, ELEMENTS // max(1, self._elements))

    def _has_one_size(self) -> bool:
        return len({(prediction.shape[1:], target.shape[1:]) for prediction, target in self._kept}) == 1

    def _join(self) -> Pair:
        prediction, target = (torch.cat(parts) for parts in zip(*self._kept, strict=True))
        return prediction, target

    def _measure(self, metric: Metric) -> float:
        if id(metric) in self._totals:
            return to_float(metric.evaluate(self._totals[id(metric)]))
        if isinstance(metric, StreamedMetric):
            return to_float(metric.compute())
        if self._has_one_size():
            return to_float(metric(*self._join()))
        examples = [one for batch in self._kept for one in _split_examples(batch)]
        values = [value for one in examples if not math.isnan(value := to_float(metric(*_copy(*one))))]
        return sum(values) / len(values) if values else math.nan


class _Lists:
    """Rows of a target by their lists: a list is drawn whole, and one that is drawn twice counts as two."""

    def __init__(self, target: Tensor, group: int) -> None:
        self._target, self._group = target, group
        numbers, self._sizes = number_groups(target.flatten(1)[:, group].cpu())
        self._rows = numbers.argsort(stable=True).split(self._sizes.tolist())

    def __len__(self) -> int:
        return len(self._rows)

    def draw(self, lists: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of lists and their targets, whose lists are numbered in the order drawn."""
        rows = torch.cat([self._rows[number] for number in lists])
        target = self._target[rows.to(self._target.device)]
        target.flatten(1)[:, self._group] = torch.repeat_interleave(torch.arange(len(lists)), self._sizes[lists]).to(
            target
        )
        return rows, target


def _resample_scores(scores: Tensor) -> Replicates | None:
    return measure_resamples(len(scores), lambda indices: scores[indices].nanmean()) if len(scores) else None


def _stream(metric: StreamedMetric, batches: Sequence[Pair]) -> Any:
    metric.reset()
    for batch in batches:
        metric.update(*_copy(*batch))
    value = metric.compute()
    metric.reset()
    return value


def _copy(prediction: Tensor, target: Tensor) -> Pair:
    """Copy what a metric is given: it may change it, such as labels that are left out."""
    return prediction.clone(), target.clone()


def _split_examples(batch: Pair) -> Iterator[Pair]:
    return zip(*(part.split(1) for part in batch), strict=True)


def to_float(value: Any) -> float:
    """Convert the value of a metric to a float; infinities become NaN, which means undefined."""
    try:
        # float() drops the imaginary part of NumPy's numbers, and reads texts.
        number = complex(math.nan if value is np.ma.masked else value)
        if number.imag or isinstance(value, str):
            raise ValueError("no real number")
    except OverflowError:
        return math.nan
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        advice = "Does it end with a return?" if value is None else "Average over classes, or pick one of the values."
        raise RequestError(
            f"The metric returned {name_kind(value)}{shape}; expected one number, higher is better, or NaN where it "
            f"is undefined. {advice}"
        ) from error
    return number.real if math.isfinite(number.real) else math.nan
