"""Figures of the report: scores, operators and training curves as charts, and the funnel as numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from statistics import mean

from autoloss.report.numbers import counted, figure, share
from autoloss.report.page.charts import SIZE, Axis, Chart, Layer, Point, axis, dots, line, steps
from autoloss.run.results import Search
from autoloss.search.jobs import Train
from autoloss.search.records import Outcome
from autoloss.store.read import Reader
from autoloss.tasks.task import Training
from autoloss.trainings.entrant import COMPARISON, TEST, training_seeds

BINS = 24
"""Stretches of a search over which operators are counted."""
BEST = 5
"""So many of the best make the mean that is drawn beside the best."""
CURVES = 3
"""So many losses have their training curves drawn: the best one found, and the best baselines'."""


def over_time(search: Search, baseline: float | None) -> Chart | None:
    """Draw the score of each training, the best so far, and the mean of the best five so far.

    Args:
        baseline: Mean of the standard loss on the valid split, where it is known.
    """
    scores = search.reader.scores
    if not scores:
        return None
    best, top = _running(scores)
    x = axis(0, len(scores), "trainings with a score", widen=False)
    low = min(_typical_low(scores), baseline if baseline is not None else math.inf)
    y = axis(low, max(scores), "score on the valid split")
    numbered = [(float(at), score) for at, score in enumerate(scores, start=1)]
    ordered = list(enumerate(zip(best, top, strict=True), start=1))
    # The mean of fewer than five would fall as the others join.
    means = [(float(at), mean_of_best) for at, (_, mean_of_best) in ordered[BEST - 1 :]]
    layers = [
        Layer("dots", dots(numbered, x, y), 4, "one training"),
        *([Layer("line", steps(means, x, y), 2, f"mean of the best {BEST} so far")] if means else []),
        Layer("line", steps([(float(at), score) for at, (score, _) in ordered], x, y), 1, "best so far"),
    ]
    if baseline is not None:
        name = f"standard loss ({figure(baseline)})"
        layers.append(Layer("line", line([(x.low, baseline), (x.high, baseline)], x, y), 3, name, dashed=True))
    below = sum(score < y.low for score in scores)
    note = f"{counted(below)} trainings below {y.low:.2g} are drawn at the lower edge." if below else ""
    description = (
        f"Scores of {counted(len(scores))} trainings in their order. The best rises from {figure(best[0])} to "
        f"{figure(best[-1])}" + (f", the mean of the best {BEST} to {figure(top[-1])}." if means else ".")
    )
    return Chart("Score over time", description, x, y, tuple(layers), note)


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


def funnel(reader: Reader, running: int) -> list[Stage]:
    """Count what was drawn and how far it came."""
    totals, trained = Counter(reader.totals), reader.trained()
    sampled = totals["sampled"]
    stages = (
        ("sampled", "trees drawn", sampled),
        ("simulated", "tested by the rejection protocol", totals["simulated"]),
        ("known", "decided by a stored verdict on equal gradients", totals["reused"]),
        ("passed", "accepted for a branch", totals["passed"]),
        ("reused", "twins and copies, which share an outcome", reader.count - trained),
        ("trained", "trainings that ended" + (f"; {running} more not finished" if running else ""), trained),
        ("scored", "trainings with a score", len(reader.scores)),
    )
    most = math.log10(1 + max(1, sampled))
    return [
        Stage(name, meaning, count, share(count, sampled), round(SIZE * math.log10(1 + count) / most))
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
            charts.append(training_curve(row.entrant.label, outcome.curve, outcome.score))
    return charts


def training_curve(label: str, curve: Sequence[Point], score: float | None) -> Chart:
    losses = [loss for _, loss in curve]
    x = axis(0, curve[-1][0], "step", count=4, widen=False)
    y = axis(min(losses), max(losses), "training loss", count=4)
    smooth = list(zip((at for at, _ in curve), _smoothed(losses), strict=True))
    layers = (
        Layer("line", line(curve, x, y), 4, "each point"),
        Layer("line", line(smooth, x, y), 1, "mean of nine"),
    )
    description = f"Training loss of {label} over {curve[-1][0]} steps, from {losses[0]:.4g} to {losses[-1]:.4g}."
    return Chart(f"{label}: score {figure(score)}", description, x, y, layers)


def _smoothed(values: Sequence[float], reach: int = 4) -> list[float]:
    return [mean(values[max(0, at - reach) : at + reach + 1]) for at in range(len(values))]


def baseline_on_valid(search: Search, trials: Mapping[Train, Outcome]) -> float | None:
    """Return the mean of the standard loss on the valid split at the recipe's own learning rate, where it was trained."""
    standard = next((row.entrant.loss for row in search.comparison if row.entrant.baseline), None)
    scores = [
        outcome.score
        for job, outcome in trials.items()
        if job == Train(standard or "", Training(seed=job.training.seed))
    ]
    finite = [score for score in scores if score is not None]
    return mean(finite) if finite else None
