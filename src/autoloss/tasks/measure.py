"""A metric in either of its forms: a function of prediction and target, or an object that is streamed over batches.

The second is anything with `update`, `compute` and `reset`, such as a `torchmetrics.Metric`; torchmetrics itself is never
imported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from autoloss.errors import RequestError

Metric = Any
"""Callable[[Tensor, Tensor], float], or an object with update, compute and reset."""


def check_metric(metric: Metric, name: str) -> Metric:
    """Return the metric.

    Raises:
        RequestError: It can be neither called nor streamed.
    """
    if not callable(metric) and not streams(metric):
        raise RequestError(
            f"The metric {name!r} is a {type(metric).__name__}; expected a function (prediction, target) → float, or an "
            "object with update, compute and reset."
        )
    return metric


def streams(metric: Metric) -> bool:
    return all(callable(getattr(metric, method, None)) for method in ("update", "compute", "reset"))


def measure_sample(metric: Metric, prediction: Tensor, target: Tensor) -> float:
    """Measure one sample; NaN where the metric is undefined."""
    if not streams(metric):
        return to_float(metric(prediction, target))
    update, compute, reset = metric.update, metric.compute, metric.reset
    if callable(metric):
        value = metric(prediction, target)
    else:
        update(prediction, target)
        value = compute()
    # Calling a torchmetrics.Metric also adds to its state.
    reset()
    return to_float(value)


class MetricTotals:
    """Several metrics over the batches of a split, in one pass.

    Functions see the predictions of the whole split at once, so these are kept; objects are streamed.
    """

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        # The score is often among the further metrics; one object is fed once.
        self._streamed = list({id(metric): metric for metric in metrics if streams(metric)}.values())
        self._kept: list[tuple[Tensor, Tensor]] = []
        for metric in self._streamed:
            metric.reset()

    def add(self, prediction: Tensor, target: Tensor) -> None:
        for metric in self._streamed:
            metric.update(prediction, target)
        if not all(map(streams, self._metrics)):
            self._kept.append((prediction, target))

    def values(self) -> list[float]:
        """Return each metric of all that was added, in order; NaN where undefined."""
        whole = [torch.cat(parts) for parts in zip(*self._kept, strict=True)]
        found = [to_float(metric.compute() if streams(metric) else metric(*whole)) for metric in self._metrics]
        for metric in self._streamed:
            metric.reset()
        return found


def to_float(value: Any) -> float:
    """Return what a metric gave as a float; infinities, like NaN, mean undefined.

    Raises:
        RequestError: It is no single number.
    """
    try:
        found = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = f" of shape {tuple(value.shape)}" if isinstance(value, Tensor) else ""
        raise RequestError(
            f"The metric returned a {type(value).__name__}{shape}; expected one number, higher is better, or NaN where it "
            "is undefined. Average over classes, or pick one of the values."
        ) from error
    return found if math.isfinite(found) else math.nan
