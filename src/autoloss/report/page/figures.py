"""Figures of the report: charts of scores, operators and training curves, and the numbers of the funnel."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heappush, heappushpop
from statistics import fmean, mean
from typing import Any

from autoloss.comparison.entrant import COMPARISON, TEST, training_seeds
from autoloss.numbers import counted, figure
from autoloss.numbers import share as percent
from autoloss.proposing.records import Outcome, Train
from autoloss.report.page.charts import SIZE, Axis, Chart, Layer, Point, axis, dots, line, steps
from autoloss.report.shares import at_share, count_trainings, list_charges, trains_short
from autoloss.report.summary import ListedLoss
from autoloss.run.results import Search
from autoloss.training.training import Training

BINS = 24
"""Stretches of a search over which operators are counted."""
BEST = 5
"""Number of best scores whose mean is drawn in addition to the best."""
SIZED = 2000
"""Number of best losses whose score is drawn against their size."""
CURVES = 3
"""Number of losses whose training curves are drawn: the best one found, and the best baselines."""
REACH = 4
"""Points on either side that a moving average includes."""
SCORE = "score on the valid split"


def over_time(search: Search, baseline: float | None) -> list[Chart]:
    """Draw the score of each training, the best so far, and the mean of the best five so far.

    Each share of the schedule has its own chart, the largest first, since their scores are not comparable.

    Args:
        baseline: Mean of the standard loss on the valid split, trained whole; None if unknown.
    """
    short, charts = trains_short(search), []
    for share in sorted({row["fidelity"] for row in search.reader.ended}, reverse=True):
        scored, end = list_scores(search, share)
        x = axis(0, end, "training equivalents" if short else "trainings with a score", widen=False)
        if scored:
            chart = _over_time(scored, end, x, baseline if share == 1 else None)
            title = f"Trained {at_share(share)}" + " of the schedule" * (share != 1)
            charts.append(replace(chart, title=title, description=f"{title}: {chart.description}") if short else chart)
    return charts


def list_scores(search: Search, share: float) -> tuple[list[Point], float]:
    """Return the (training equivalents so far, score) pairs at a share, and the total training equivalents."""
    spent = [0.0, *itertools.accumulate(list_charges(search))]
    ended = [(at, row) for at, row in zip(spent[1:], search.reader.ended, strict=True) if row["fidelity"] == share]
    return [(at, row["score"]) for at, row in ended if row["score"] is not None], spent[-1]


def _over_time(scored: Sequence[Point], end: float, x: Axis, baseline: float | None) -> Chart:
    """Draw trainings at one share; `scored` and `end` are those of `list_scores`."""
    scores = [score for _, score in scored]
    best, top = follow_best(scored, end)
    y = axis(min(_typical_low(scores), math.inf if baseline is None else baseline), max(scores), SCORE)
    layers = [Layer("line", steps(best, x, y), 1, "best so far")]
    description = f"Scores of {counted(len(scores))} training{'s' * (len(scores) != 1)} in their order. "
    description += f"The best rises from {figure(best[0][1])} to {figure(best[-1][1])}"
    # The mean of fewer than five would fall as others are added.
    if len(scores) >= BEST:
        layers.insert(0, Layer("line", steps(top[BEST - 1 :], x, y), 2, f"mean of the best {BEST} so far"))
        description += f", the mean of the best {BEST} to {figure(top[-1][1])}"
    if baseline is not None:
        name = f"standard loss, recipe as given ({figure(baseline)})"
        layers.append(Layer("line", line([(x.low, baseline), (x.high, baseline)], x, y), 3, name, dashed=True))
    return _draw_scores("Score over time", f"{description}.", scored, "one training", layers, x, y)


def score_by_size(search: Search, hall: Sequence[ListedLoss]) -> Chart | None:
    """Draw the score of each loss over its size, with the hall of fame as a line, at its share of the schedule.

    Args:
        hall: The best loss of each size, the smallest first.
    """
    if not hall:
        return None
    rows = search.reader.losses(search.reader.ranking[:SIZED])
    points = [(float(row["size"]), row["score"]) for row in rows if row["fidelity"] == hall[0].found.fidelity]
    best = [(float(one.found.size), one.found.score) for one in hall]
    (least, first), (most, last) = best[0], best[-1]
    x = axis(0, max(size for size, _ in [*points, *best]), "size, in operators")
    scores = [score for _, score in points or best]
    y = axis(min(_typical_low(scores), first), max(score for _, score in best), SCORE)
    layers = [Layer("line", steps([*best, (x.high, last)], x, y), 1, "best up to this size")]
    description = (
        f"Score against size of {counted(len(points))} losses. The best rises from {figure(first)} with {least:g} "
        f"operators to {figure(last)} with {most:g}."
    )
    return _draw_scores("Score against size", description, points, "a loss", layers, x, y)


def _draw_scores(
    title: str, description: str, points: Sequence[Point], name: str, layers: Sequence[Layer], x: Axis, y: Axis
) -> Chart:
    """Draw scores as dots below other layers, with a note on the number of scores below the axis."""
    below = sum(score < y.low for _, score in points)
    note = f"Scores below {y.low:.2g}, {counted(below)} of them, are drawn at the lower edge." if below else ""
    return Chart(title, description, x, y, (Layer("dots", dots(points, x, y), 4, name), *layers), note)


def follow_best(scored: Sequence[Point], end: float) -> tuple[list[Point], list[Point]]:
    """Return, after each training and at the end, the best score so far and the mean of the best five so far."""
    best: list[Point] = []
    top: list[Point] = []
    kept: list[float] = []
    for at, score in scored:
        (heappush if len(kept) < BEST else heappushpop)(kept, score)
        best.append((at, max(kept)))
        top.append((at, fmean(kept)))
    return [*best, (end, best[-1][1])], [*top, (end, top[-1][1])]


def _typical_low(scores: Sequence[float]) -> float:
    """Return the lower end of the axis; a few trainings that learned nothing do not compress the others."""
    ordered = sorted(scores)
    low, middle, most = ordered[len(ordered) // 20 if len(ordered) > 40 else 0], ordered[len(ordered) // 2], ordered[-1]
    # A score without a lower end, such as minus an error, may be far off.
    return max(low, middle - 5 * (most - middle)) if middle < most else low


def funnel(search: Search, running: int) -> list[dict[str, Any]]:
    """Count the losses that reached each stage, with their share of those drawn, as text.

    `width` is the length of its bar in units, on a logarithmic scale.
    """
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
        ("reused", "twins and copies, which share an outcome", len(reader.settled) - trained),
        ("trained", f"trainings{share} that ended" + f"; {running} more not finished" * bool(running), ended[first]),
        ("scored", f"trainings{share} with a score", len(reader.scores)),
        *(("promoted", f"trained {at_share(rung)} as well", ended[rung]) for rung in larger),
    )
    most = math.log10(1 + max(1, sampled))
    return [
        {
            "name": name,
            "meaning": meaning,
            "count": count,
            "share": percent(count, sampled),
            "width": round(SIZE * math.log10(1 + count) / most),
        }
        for name, meaning, count in stages
    ]


def operators(losses: Sequence[frozenset[str]]) -> list[dict[str, Any]]:
    """Return the frequency of each operator, ordered by its frequency at the end.

    `first` and `last` are the percentages of the losses in the first and the last quarter that contain it; `path` is its share
    over time, as a path.

    Args:
        losses: The operators of each loss, in order.
    """
    if not losses:
        return []
    names = sorted(set().union(*losses))
    bins = min(BINS, len(losses))
    # Counted by distinct sets: a long search has many losses, but few distinct sets.
    parts = [Counter(losses[len(losses) * at // bins : len(losses) * (at + 1) // bins]) for at in range(bins)]
    quarter = max(1, len(losses) // 4)
    first, last = Counter(losses[:quarter]), Counter(losses[-quarter:])
    x, y = Axis(0, max(1, bins - 1), "losses"), Axis(0, 1, "share")
    trends: list[dict[str, Any]] = []
    for name in names:
        early, late = (round(100 * _find_share(name, part)) for part in (first, last))
        path = line([(float(at), _find_share(name, part)) for at, part in enumerate(parts)], x, y)
        trends.append({"name": name, "first": early, "last": late, "path": path})
    return sorted(trends, key=lambda trend: (-trend["last"], trend["name"]))


def _find_share(name: str, losses: Counter[frozenset[str]]) -> float:
    return sum(count for loss, count in losses.items() if name in loss) / losses.total()


def training_curves(search: Search, trials: Mapping[Train, Outcome], best: int) -> list[Chart]:
    """Draw the training curves of the best found loss and the best baselines on the same seed, each on its own scale."""
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
    """Draw a training loss over the steps, with its moving average."""
    losses = [loss for _, loss in curve]
    x = axis(0, curve[-1][0], "step", count=4, widen=False)
    y = axis(min(losses), max(losses), "training loss", count=4)
    smooth = [(at, mean(losses[max(0, number - REACH) : number + REACH + 1])) for number, (at, _) in enumerate(curve)]
    layers = (
        Layer("line", line(curve, x, y), 4, "each point"),
        Layer("line", line(smooth, x, y), 1, "mean of nine"),
    )
    description = f"Training loss of {label} over {curve[-1][0]} steps, from {losses[0]:.4g} to {losses[-1]:.4g}."
    return Chart(f"{label}: score {score}", description, x, y, layers)


def baseline_on_valid(search: Search, trials: Mapping[Train, Outcome]) -> float | None:
    """Return the mean of the standard loss on the valid split at the recipe's learning rate; None if not trained."""
    # From the entrants in their original order: rows are sorted by their mean.
    entrants = search.settings.comparison.entrants
    standard = next((entrant["loss"] for entrant in entrants if entrant.get("baseline")), None)
    own = [outcome for job, outcome in trials.items() if job == Train(standard or "", Training(seed=job.training.seed))]
    scores = [outcome.score for outcome in own if outcome.score is not None]
    return mean(scores) if scores else None
