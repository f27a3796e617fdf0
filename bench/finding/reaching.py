"""Progress of searches over their spending: levels, restricted means, interquartile means and their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, trim_mean

from sharing import Improvement, Trace

RESAMPLES = 2_000
CONFIDENCE = 0.95
GRID = (1, 2, 3, 5, 10, 20, 30, 40, 60, 80, 100, 150, 200)
"""Training equivalents at which the mean of the best so far is given."""
Statistic = Callable[..., Any]


def summarise_task(
    task: str,
    traces: Mapping[str, Mapping[int, Trace]],
    handmade: Mapping[str, Any],
    budget: float,
    level_budget: float,
) -> dict[str, Any]:
    """Return the levels of a task and how each arm gets there.

    The level of random search is the median over its searches: half of them reach it. A mean would be set by the few whose loss
    fails on the new seeds.

    Args:
        traces: Arm → seed → search; `random` is among them.
        handmade: The best hand-made loss, with its `score` and the score of the `untrained` network.
    """
    floor = handmade["untrained"] or 0.0
    random = [find_score(trace, level_budget, floor) for trace in traces["random"].values()]
    levels = {"random": median(random), "tuned": handmade["score"]}
    arms = [_summarise_arm(arm, found, levels, budget, floor) for arm, found in traces.items()]
    return {"task": task, "budget": budget, "levels": levels, "handmade": dict(handmade), "arms": arms}


def _summarise_arm(
    arm: str, traces: Mapping[int, Trace], levels: Mapping[str, float | None], budget: float, floor: float
) -> dict[str, Any]:
    seeds = sorted(traces)
    found = [find_score(traces[seed], budget, floor) for seed in seeds]
    return {
        "arm": arm,
        "searches": len(seeds),
        "seeds": seeds,
        "found": {**summarise(found, _interquartile_mean), "values": found},
        "curve": {
            str(spent): fmean(find_score(traces[seed], spent, floor) for seed in seeds)
            for spent in GRID
            if spent <= budget
        },
        "minutes": fmean(traces[seed].minutes for seed in seeds),
        "candidates": fmean(traces[seed].candidates for seed in seeds),
        "to": [
            {"level": name, **_summarise_way([traces[seed] for seed in seeds], level, budget)}
            for name, level in levels.items()
            if level is not None
        ],
    }


def _summarise_way(traces: Sequence[Trace], level: float, budget: float) -> dict[str, Any]:
    """Return the spending of searches until a loss reaches the level; those that find none count with all they spent."""
    reached = [find_reaching(trace, level, budget) for trace in traces]
    spent = {
        "equivalents": [budget if each is None else each.equivalents for each in reached],
        "minutes": [
            _minutes_of(trace, budget) if each is None else each.minutes
            for trace, each in zip(traces, reached, strict=True)
        ],
    }
    summaries = {unit: {**summarise(values, np.mean), "values": values} for unit, values in spent.items()}
    return {"reached": sum(each is not None for each in reached), **summaries}


def find_reaching(trace: Trace, level: float, budget: float) -> Improvement | None:
    """Return the first improvement within the budget that is confirmed at the level."""
    for each in trace.improvements:
        if each.equivalents <= budget and each.confirmed is not None and each.confirmed >= level:
            return each
    return None


def find_score(trace: Trace, spent: float, floor: float) -> float:
    """Return the confirmed score of the best loss found within so many equivalents.

    Args:
        floor: The score while nothing is found, and of a loss that fails on the new seeds: that of the untrained network.
    """
    within = [each for each in trace.improvements if each.equivalents <= spent]
    return floor if not within or within[-1].confirmed is None else within[-1].confirmed


def _minutes_of(trace: Trace, budget: float) -> float:
    """Return the minutes that a budget takes; of a search with a larger one, in proportion."""
    return trace.minutes * min(1.0, budget / trace.equivalents) if trace.equivalents else trace.minutes


def compare_arms(tasks: Sequence[Mapping[str, Any]], base: str, arm: str, level: str, unit: str) -> dict[str, Any]:
    """Return how many times as much one arm spends as another until a level, over the seeds that both have.

    The ratio of a task is that of the means over searches, and the whole the geometric mean over tasks.
    """
    pairs: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    for one in tasks:
        spent = [_find_spent(one, name, level, unit) for name in (base, arm)]
        shared = sorted(spent[0].keys() & spent[1].keys())
        if shared:
            first, second = (np.array([each[seed] for seed in shared]) for each in spent)
            pairs[one["task"]] = first, second
    rows = [{"task": task, **_summarise_ratio([pair])} for task, pair in pairs.items()]
    return {
        "base": base,
        "arm": arm,
        "level": level,
        "unit": unit,
        **_summarise_ratio(list(pairs.values())),
        "tasks": rows,
    }


def _find_spent(one: Mapping[str, Any], arm: str, level: str, unit: str) -> dict[int, float]:
    for row in one["arms"]:
        for way in row["to"]:
            if (row["arm"], way["level"]) == (arm, level):
                return dict(zip(row["seeds"], way[unit]["values"], strict=True))
    return {}


def _summarise_ratio(pairs: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]]) -> dict[str, Any]:
    """Resample the searches of each task by their places, so that they stay paired."""
    if not pairs:
        return {"ratio": None, "low": None, "high": None}

    def ratio(*places: NDArray[np.int64], axis: int = -1) -> Any:
        logs = [
            np.log(first[place].mean(axis=axis)) - np.log(second[place].mean(axis=axis))
            for place, (first, second) in zip(places, pairs, strict=True)
        ]
        return np.exp(np.mean(logs, axis=0))

    places = [np.arange(len(first)) for first, _ in pairs]
    low, high = _find_interval(places, ratio)
    return {"ratio": float(ratio(*places)), "low": low, "high": high}


def summarise(values: Sequence[float], statistic: Statistic) -> dict[str, float | None]:
    """Return a statistic with its interval."""
    low, high = _find_interval([np.array(values)], statistic)
    return {"mean": float(statistic(np.array(values), axis=-1)), "low": low, "high": high}


def _interquartile_mean(values: NDArray[np.float64], axis: int = -1) -> Any:
    return trim_mean(values, 0.25, axis=axis)


def _find_interval(samples: Sequence[NDArray[Any]], statistic: Statistic) -> tuple[float | None, float | None]:
    """Return the interval between percentiles of resampled statistics; None where a sample has one value only."""
    if min(map(len, samples)) < 2:
        return None, None
    found = bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else (None, None)
