"""Figures of the report: scores, operators and training curves as charts, and the funnel as numbers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from statistics import mean
from typing import Any

from autoloss.comparison.entrant import COMPARISON, TEST, training_seeds
from autoloss.numbers import counted, figure
from autoloss.numbers import share as percent
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome
from autoloss.report.page.charts import SIZE, Axis, Chart, Layer, Point, axis, dots, line, steps
from autoloss.report.shares import at_share, count_trainings, list_charges, trains_short
from autoloss.run.results import Search
from autoloss.training.training import Training

BINS = 24
"""Stretches of a search over which operators are counted."""
BEST = 5
"""So many of the best make the mean that is drawn beside the best."""
SIZED = 2000
"""Losses, the best ones, whose score is drawn against their size."""
CURVES = 3
"""So many losses have their training curves drawn: the best one found, and the best baselines'."""


def over_time(search: Search, baseline: float | None) -> list[Chart]:
    """Draw the score of each training, the best so far, and the mean of the best five so far.

    Each share of the schedule has a chart of its own, the largest first: their scores are not comparable.

    Args:
        baseline: Mean of the standard loss on the valid split, trained whole, where it is known.
    """
    ended, short = search.reader.ended, trains_short(search)
    spent = [0.0, *itertools.accumulate(list_charges(search))]
    unit = "training equivalents" if short else "trainings with a score"
    x = axis(0, spent[-1], unit, widen=False)
    charts = []
    for share in sorted({row["fidelity"] for row in ended}, reverse=True):
        scores = [(at, row["score"]) for at, row in zip(spent[1:], ended, strict=True) if row["fidelity"] == share]
        scored = [(at, score) for at, score in scores if score is not None]
        if scored:
            chart = _over_time(scored, spent[-1], x, baseline if share == 1 else None)
            title = f"Trained {at_share(share)}" + " of the schedule" * (share != 1)
            charts.append(replace(chart, title=title, description=f"{title}: {chart.description}") if short else chart)
    return charts


def _over_time(scored: Sequence[Point], end: float, x: Axis, baseline: float | None) -> Chart:
    """Draw trainings that are alike.

    Args:
        scored: (Training equivalents so far, score) of each.
        end: Training equivalents in all.
    """
    scores = [score for _, score in scored]
    best, top = _running(scores)
    low = min(_typical_low(scores), baseline if baseline is not None else math.inf)
    y = axis(low, max(scores), "score on the valid split")
    places = [at for at, _ in scored]
    so_far = [*zip(places, best, strict=True), (end, best[-1])]
    # The mean of fewer than five would fall as the others join.
    means = [*zip(places, top, strict=True), (end, top[-1])][BEST - 1 :] if len(top) >= BEST else []
    layers = [
        Layer("dots", dots(scored, x, y), 4, "one training"),
        *([Layer("line", steps(means, x, y), 2, f"mean of the best {BEST} so far")] if means else []),
        Layer("line", steps(so_far, x, y), 1, "best so far"),
    ]
    if baseline is not None:
        name = f"standard loss ({figure(baseline)})"
        layers.append(Layer("line", line([(x.low, baseline), (x.high, baseline)], x, y), 3, name, dashed=True))
    below = sum(score < y.low for score in scores)
    note = f"{counted(below)} trainings below {y.low:.2g} are drawn at the lower edge." if below else ""
    description = (
        f"Scores of {counted(len(scores))} training{'s' * (len(scores) != 1)} in their order. "
        f"The best rises from {figure(best[0])} to {figure(best[-1])}"
        + (f", the mean of the best {BEST} to {figure(top[-1])}." if means else ".")
    )
    return Chart("Score over time", description, x, y, tuple(layers), note)


def score_by_size(search: Search, hall: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Draw the score of each loss over its size, at the share of the schedule of the hall of fame, which is the line.

    Args:
        hall: The best loss of each size, the smallest first.
    """
    if not hall:
        return None
    share = hall[0]["fidelity"]
    rows = [row for row in search.reader.losses(search.reader.ranking[:SIZED]) if row["fidelity"] == share]
    points = [(float(row["loss"].count("(")), row["score"]) for row in rows]
    best = [(float(row["size"]), row["score"]) for row in hall]
    x = axis(0, max(size for size, _ in [*points, *best]), "size, in operators")
    scores = [score for _, score in points] or [score for _, score in best]
    y = axis(min(_typical_low(scores), best[0][1]), max(score for _, score in best), "score on the valid split")
    line_of_best = steps([*best, (x.high, best[-1][1])], x, y)
    layers = (Layer("dots", dots(points, x, y), 4, "a loss"), Layer("line", line_of_best, 1, "best up to this size"))
    below = sum(score < y.low for score in scores)
    note = f"{counted(below)} losses below {y.low:.2g} are drawn at the lower edge." if below else ""
    description = (
        f"Score against size of {counted(len(points))} losses. The best rises from {figure(best[0][1])} with {best[0][0]:g} "
        f"operators to {figure(best[-1][1])} with {best[-1][0]:g}."
    )
    return Chart("Score against size", description, x, y, layers, note)


def _running(scores: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return, after each score, the best so far and the mean of the best five so far."""
    best: list[float] = []
    top: list[float] = []
    kept: list[float] = []
    mean_of_kept = 0.0
    for score in scores:
        # Most scores are below the best five.
        if len(kept) < BEST or score > kept[-1]:
            kept = nlargest(BEST, [*kept, score])
            mean_of_kept = math.fsum(kept) / len(kept)
        best.append(kept[0])
        top.append(mean_of_kept)
    return best, top


def _typical_low(scores: Sequence[float]) -> float:
    """Return where the axis begins: a few trainings that come to nothing shall not press the others together."""
    ordered = sorted(scores)
    return ordered[len(ordered) // 20] if len(ordered) > 40 else ordered[0]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the funnel.

    Args:
        share: Of what was drawn.
        width: Of its bar in units, on a logarithmic scale.
    """

    name: str
    meaning: str
    count: int
    share: str
    width: int


def funnel(search: Search, running: int) -> list[Stage]:
    """Count what was drawn and how far it came."""
    reader, ended = search.reader, count_trainings(search)
    totals, trained = Counter(reader.totals), reader.trained()
    sampled = totals["sampled"]
    first, *larger = search.configuration.search.rungs
    share = f" {at_share(first)} of the schedule" if larger else ""
    stages = (
        ("drawn", "random and mutated trees", sampled),
        ("tested", "put through the rejection protocol", totals["simulated"]),
        ("known", "decided by a stored verdict on equal gradients", totals["reused"]),
        ("accepted", "passed the protocol on a branch", totals["passed"]),
        ("reused", "twins and copies, which share an outcome", reader.count - trained),
        (
            "trained",
            f"trainings{share} that ended" + (f"; {running} more not finished" if running else ""),
            ended[first],
        ),
        ("scored", f"trainings{share} with a score", len(reader.scores)),
        *(("promoted", f"trained {at_share(rung)} as well", ended[rung]) for rung in larger),
    )
    most = math.log10(1 + max(1, sampled))
    return [
        Stage(name, meaning, count, percent(count, sampled), round(SIZE * math.log10(1 + count) / most))
        for name, meaning, count in stages
    ]


@dataclass(frozen=True, slots=True)
class Trend:
    """How often an operator occurs.

    Args:
        first: Share of the losses of the first quarter that hold it, in percent; likewise `last`.
        path: The same over time.
    """

    name: str
    first: int
    last: int
    path: str


def operators(losses: Sequence[frozenset[str]]) -> list[Trend]:
    """Follow how many losses hold each operator, the most frequent at the end first.

    Args:
        losses: The operators of each, in order.
    """
    if not losses:
        return []
    names = sorted(set().union(*losses))
    bins = min(BINS, len(losses))
    # Equal sets are counted once: a long search has many losses, and few different sets.
    parts = [Counter(losses[len(losses) * at // bins : len(losses) * (at + 1) // bins]) for at in range(bins)]
    quarter = max(1, len(losses) // 4)
    first, last = Counter(losses[:quarter]), Counter(losses[-quarter:])
    x, y = Axis(0, max(1, bins - 1), "losses"), Axis(0, 1, "share")
    trends = [
        Trend(
            name,
            round(100 * _holding(name, first)),
            round(100 * _holding(name, last)),
            line([(float(at), _holding(name, part)) for at, part in enumerate(parts)], x, y),
        )
        for name in names
    ]
    return sorted(trends, key=lambda trend: (-trend.last, trend.name))


def _holding(name: str, losses: Counter[frozenset[str]]) -> float:
    return sum(count for loss, count in losses.items() if name in loss) / losses.total()


def training_curves(search: Search, trials: Mapping[Train, Outcome], best: int) -> list[Chart]:
    """Draw the training losses of the best loss found and of the best baselines, same seed, each on its own scale."""
    chosen = [row for row in search.comparison if row.entrant.number == best]
    chosen += [row for row in search.comparison if row.entrant.baseline][: CURVES - len(chosen)]
    fresh = training_seeds(search.configuration.seed, COMPARISON, 1)
    charts = []
    for row in chosen:
        outcome = trials.get(row.entrant.job(fresh[0], TEST))
        if outcome is not None and outcome.curve:
            charts.append(training_curve(row.entrant.label, outcome.curve, figure(outcome.score)))
    return charts


def training_curve(label: str, curve: Sequence[Point], score: str) -> Chart:
    losses = [loss for _, loss in curve]
    x = axis(0, curve[-1][0], "step", count=4, widen=False)
    y = axis(min(losses), max(losses), "training loss", count=4)
    smooth = list(zip((at for at, _ in curve), _smoothed(losses), strict=True))
    layers = (
        Layer("line", line(curve, x, y), 4, "each point"),
        Layer("line", line(smooth, x, y), 1, "mean of nine"),
    )
    description = f"Training loss of {label} over {curve[-1][0]} steps, from {losses[0]:.4g} to {losses[-1]:.4g}."
    return Chart(f"{label}: score {score}", description, x, y, layers)


def _smoothed(values: Sequence[float], reach: int = 4) -> list[float]:
    return [mean(values[max(0, at - reach) : at + reach + 1]) for at in range(len(values))]


def baseline_on_valid(search: Search, trials: Mapping[Train, Outcome]) -> float | None:
    """Return the mean of the standard loss on the valid split at the recipe's own learning rate, where it was trained."""
    # Of the entrants as they were listed: the rows are sorted by their mean.
    entrants = search.settings.comparison.entrants
    standard = next((entrant["loss"] for entrant in entrants if entrant.get("baseline")), None)
    scores = [
        outcome.score
        for job, outcome in trials.items()
        if job == Train(standard or "", Training(seed=job.training.seed))
    ]
    finite = [score for score in scores if score is not None]
    return mean(finite) if finite else None
