"""Metrics in two forms: a function of prediction and target, or an object that accumulates over batches.

Such an object has `update`, `compute` and `reset`, as a `torchmetrics.Metric` does; torchmetrics itself is never imported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from autoloss.errors import FAILURES, RequestError, describe_user_error
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch


@runtime_checkable
class StreamedMetric(Protocol):
    """A metric that accumulates over batches."""

    def update(self, prediction: Tensor, target: Tensor) -> Any:
        """Add a batch of activated predictions and targets."""

    def compute(self) -> Any:
        """Return the value over all batches since the last reset: one number, higher is better."""

    def reset(self) -> Any:
        """Forget all batches."""


Metric = Any
"""Callable[[Tensor, Tensor], float], or a StreamedMetric."""


def check_metric(metric: Metric, name: str) -> Metric:
    """Return the metric unchanged if it has one of the two forms.

    Raises:
        RequestError: The metric has neither form.
    """
    if not callable(metric) and not isinstance(metric, StreamedMetric):
        raise RequestError(
            f"The metric {name!r} is a {type(metric).__name__}; expected a function (prediction, target) → float, or an "
            "object with update, compute and reset."
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
    """Measure one sample; NaN if the metric is undefined.

    Raises:
        RequestError: The metric raised an exception, or did not return a number.
    """
    streamed = isinstance(metric, StreamedMetric)
    try:
        if streamed and not callable(metric):
            metric.update(prediction, target)
            value = metric.compute()
        else:
            value = metric(prediction, target)
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
            "prediction is activated."
        ) from error


def measure_typed(metric: Metric, dtype: torch.dtype, prediction: Tensor, target: Tensor) -> float:
    """Measure one sample, with the target in the type of the data set."""
    return measure_sample(metric, prediction, target.to(dtype))


def find_metric(branch: Branch) -> Metric:
    """Return the metric of a branch as a function of prediction and target."""
    if isinstance(branch, ActivatedBranch):
        return branch.measure
    return lambda prediction, target: branch.metric(prediction, {"target": target})


class MetricTotals:
    """Computes several metrics of a split in one pass over its batches.

    Functions are called with the predictions of the whole split, which are kept in memory; objects accumulate over batches. If
    examples differ in size, a function is called for each of them, and its value is the mean over those where it is defined.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        # The score is often one of the further metrics; each object is updated once per batch.
        self._streamed = list({id(metric): metric for metric in metrics if isinstance(metric, StreamedMetric)}.values())
        self._kept: list[tuple[Tensor, Tensor]] = []
        for metric in self._streamed:
            metric.reset()

    def add(self, prediction: Tensor, target: Tensor) -> None:
        """Add a batch of activated predictions and targets."""
        for metric in self._streamed:
            metric.update(prediction, target)
        if not all(isinstance(metric, StreamedMetric) for metric in self._metrics):
            self._kept.append((prediction, target))

    def values(self) -> list[float]:
        """Return the value of each metric, in order; NaN if undefined."""
        found = [
            to_float(metric.compute()) if isinstance(metric, StreamedMetric) else self._measure(metric)
            for metric in self._metrics
        ]
        for metric in self._streamed:
            metric.reset()
        return found

    def _measure(self, metric: Metric) -> float:
        if len({(prediction.shape[1:], target.shape[1:]) for prediction, target in self._kept}) == 1:
            return to_float(metric(*(torch.cat(parts) for parts in zip(*self._kept, strict=True))))
        examples = [one for batch in self._kept for one in zip(*(part.split(1) for part in batch), strict=True)]
        values = [value for one in examples if not math.isnan(value := to_float(metric(*one)))]
        return sum(values) / len(values) if values else math.nan


def to_float(value: Any) -> float:
    """Convert the value of a metric to a float; infinities become NaN, which means undefined.

    Raises:
        RequestError: The value is not a single number.
    """
    try:
        # float() drops the imaginary part of NumPy's numbers.
        number = complex(value)
        if number.imag:
            raise ValueError("a complex number")
    except OverflowError:
        return math.nan
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise RequestError(
            f"The metric returned a {type(value).__name__}{shape}; expected one number, higher is better, or NaN where it "
            "is undefined. Average over classes, or pick one of the values."
        ) from error
    return number.real if math.isfinite(number.real) else math.nan
