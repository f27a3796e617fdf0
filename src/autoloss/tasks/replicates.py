"""The metric on bootstrap resamples of a split: how much of a score is owed to the examples on which it was measured.

A resample has as many examples as the split, drawn with replacement. The draws follow from the number of examples alone, so every
training that is evaluated on a split is measured on the same resamples, and differences between losses are paired.

Source: Efron & Tibshirani, 1993, An Introduction to the Bootstrap, Chapter 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from autoloss.tasks.metric import Metric, StreamedMetric, to_float
from autoloss.training.training import Replicates

RESAMPLES = 64
"""Their number, where the metric is quick."""
LEAST_RESAMPLES = 16
"""With fewer of them, a spread tells too little: none is drawn."""
ELEMENTS = 20_000_000
"""Elements of predictions that all resamples hold together, at most: what bounds the time of measuring them."""


@runtime_checkable
class CountingMetric(Protocol):
    """A metric that is a function of counts, which are added over examples; its resamples cost next to nothing."""

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


def draw_resamples(examples: int, count: int) -> Iterator[Tensor]:
    """Draw the indices of the examples of each resample, the same at every call.

    >>> [len(indices) for indices in draw_resamples(5, 2)]
    [5, 5]
    """
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(examples, (examples,), generator=generator) for _ in range(count))


def measure_resamples(examples: int, measure: Callable[[Tensor], Any], count: int = RESAMPLES) -> Replicates:
    """Measure each resample of a split.

    Args:
        measure: Indices of the examples → the metric, NaN if undefined.
        count: Number of resamples.
    """
    scores = [to_float(measure(indices)) for indices in draw_resamples(examples, count)]
    return Replicates(examples, tuple(None if math.isnan(score) else score for score in scores))


class Replicator:
    """Measures a metric on resamples of a split whose batches it is given.

    Counts are kept of each example, and scores of each list; for other metrics predictions and targets are, as long as they are
    few enough to be measured `LEAST_RESAMPLES` times.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._examples: list[tuple[Tensor, Tensor]] = []
        self._counts: list[Tensor] = []
        self._lists: list[Tensor] = []
        self._elements = 0

    def add(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch of activated predictions and targets."""
        if isinstance(self._metric, CountingMetric):
            self._counts += [self._metric.count(*one).cpu() for one in _split_examples(prediction, target)]
            return
        if isinstance(self._metric, ListMetric):
            lists = self._metric.measure_lists(prediction, target)
            if lists is not None:
                self._lists.append(lists)
                return
        self._elements += prediction.numel()
        if self._count_resamples() < LEAST_RESAMPLES:
            self._examples.clear()
        else:
            self._examples.append((prediction, target))

    def measure(self) -> Replicates | None:
        """Return the metric on each resample; None where the split is too large for a metric like this one."""
        if isinstance(self._metric, CountingMetric):
            return self._measure_counts(self._metric)
        if self._lists:
            return _resample_scores(torch.cat(self._lists))
        if not self._examples:
            return None
        if len({(prediction.shape[1:], target.shape[1:]) for prediction, target in self._examples}) > 1:
            return self._measure_single()
        prediction, target = (torch.cat(parts) for parts in zip(*self._examples, strict=True))

        def measure(indices: Tensor) -> Any:
            indices = indices.to(prediction.device)
            return measure_whole(self._metric, prediction[indices], target[indices])

        return measure_resamples(len(prediction), measure, self._count_resamples())

    def _count_resamples(self) -> int:
        return min(RESAMPLES, ELEMENTS // max(1, self._elements))

    def _measure_counts(self, metric: CountingMetric) -> Replicates | None:
        if not self._counts:
            return None
        counts = torch.stack(self._counts)
        return measure_resamples(len(counts), lambda indices: metric.evaluate(counts[indices].sum(dim=0)))

    def _measure_single(self) -> Replicates | None:
        """Measure examples of several sizes: each for itself, as `MetricTotals` does; an object over each resample."""
        examples = [one for batch in self._examples for one in _split_examples(*batch)]
        if isinstance(self._metric, StreamedMetric):
            metric = self._metric
            return measure_resamples(
                len(examples),
                lambda indices: _stream(metric, [examples[at] for at in indices]),
                self._count_resamples(),
            )
        scores = torch.tensor([to_float(self._metric(*one)) for one in examples], dtype=torch.float64)
        return _resample_scores(scores)


def _resample_scores(scores: Tensor) -> Replicates | None:
    return measure_resamples(len(scores), lambda indices: scores[indices].nanmean()) if len(scores) else None


def measure_whole(metric: Metric, prediction: Tensor, target: Tensor) -> Any:
    """Return a metric of either form, of activated predictions and targets."""
    return _stream(metric, [(prediction, target)]) if isinstance(metric, StreamedMetric) else metric(prediction, target)


def _stream(metric: StreamedMetric, batches: Sequence[tuple[Tensor, Tensor]]) -> Any:
    metric.reset()
    for batch in batches:
        metric.update(*batch)
    value = metric.compute()
    metric.reset()
    return value


def _split_examples(prediction: Tensor, target: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(prediction.split(1), target.split(1), strict=True)
