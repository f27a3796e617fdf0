"""Metrics of survival are those of lifelines and scikit-survival, on random and degenerate input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from autoloss.tasks.survival import SURVIVAL_METRICS, Censoring, measure_auc_at

lifelines = pytest.importorskip("lifelines.utils")
sksurv = pytest.importorskip("sksurv.metrics")


def draw(seed: int, rows: int, ties: bool, censored: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    scores, times = rng.normal(size=rows), rng.exponential(10, rows) + 0.01
    if ties:
        scores, times = np.round(scores, 1), np.ceil(times)
    return scores, times, rng.random(rows) >= censored


def measure(name: str, scores: np.ndarray, times: np.ndarray, events: np.ndarray) -> float:
    metric = SURVIVAL_METRICS[name].with_censoring(times, events)
    return metric(torch.tensor(scores), torch.tensor(np.stack([times, events], 1)))


def as_records(times: np.ndarray, events: np.ndarray) -> np.ndarray:
    return np.array(list(zip(events, times, strict=True)), dtype=[("event", bool), ("time", float)])


@pytest.mark.parametrize("name", ["c_index", "uno_c", "time_auc"])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float64])
def test_events_may_be_numbers(name: str, dtype: type):
    generator = np.random.default_rng(0)
    times, events = generator.exponential(size=60), generator.random(60) < 0.6
    target = torch.as_tensor(np.stack([times, events], axis=1))
    scores = torch.as_tensor(generator.normal(size=60) - times)
    by_flags, by_numbers = (
        SURVIVAL_METRICS[name].with_censoring(times, given)(scores, target) for given in (events, events.astype(dtype))
    )
    assert by_numbers == by_flags


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ties", [False, True])
def test_harrells_c_is_that_of_lifelines_and_scikit_survival(seed: int, ties: bool):
    scores, times, events = draw(seed, 60, ties, 0.4)
    found = measure("c_index", scores, times, events)
    assert found == pytest.approx(lifelines.concordance_index(times, -scores, events))
    assert found == pytest.approx(sksurv.concordance_index_censored(events, times, scores)[0])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ties", [False, True])
def test_unos_c_is_that_of_scikit_survival(seed: int, ties: bool):
    scores, times, events = draw(seed, 60, ties, 0.3)
    # There the last time has to be an event, so that each event has a weight.
    events[times == times.max()] = True
    records = as_records(times, events)
    expected = sksurv.concordance_index_ipcw(records, records, scores)[0]
    assert measure("uno_c", scores, times, events) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(4))
def test_the_auc_at_a_time_is_that_of_scikit_survival(seed: int):
    scores, times, events = draw(seed, 80, False, 0.3)
    records, wanted = as_records(times, events), np.quantile(times[events], (0.25, 0.5, 0.75))
    expected, _ = sksurv.cumulative_dynamic_auc(records, records, scores, wanted)
    censoring = Censoring.estimate(times, events)
    found = [measure_auc_at(time, scores, times, events, censoring) for time in wanted]
    assert found == pytest.approx(expected.tolist())
    assert measure("time_auc", scores, times, events) == pytest.approx(float(np.mean(expected)))


@pytest.mark.parametrize("name", SURVIVAL_METRICS)
def test_degenerate_input(name: str):
    scores, times, events = draw(0, 12, False, 0.3)
    assert math.isnan(measure(name, scores, times, np.zeros(12, dtype=bool)))
    assert math.isnan(measure(name, scores, np.ones(12), np.ones(12, dtype=bool)))
    assert math.isnan(measure(name, scores[:0], times[:0], events[:0]))
    assert math.isnan(measure(name, np.full(12, math.nan), times, events))
    assert measure(name, np.zeros(12), times, events) == pytest.approx(0.5)
    assert measure(name, -times, times, np.ones(12, dtype=bool)) == 1.0
    one = np.zeros(12, dtype=bool)
    one[times.argmin()] = True
    assert measure(name, -times, times, one) == 1.0


def test_events_before_censorings_of_the_same_time_are_compared():
    times, events = np.array([2.0, 2.0, 2.0]), np.array([True, False, True])
    assert measure("c_index", np.array([1.0, 0.0, 2.0]), times, events) == 1.0


def test_scores_may_have_a_channel():
    metric = SURVIVAL_METRICS["c_index"].with_censoring(np.array([1.0, 2]), np.array([True, True]))
    target: Tensor = torch.tensor([[1.0, 1], [2.0, 1]])
    assert metric(torch.tensor([[2.0], [1.0]]), target) == 1.0
