"""Cost of `lag`: the busy share of workers, and the quality of the losses that a search finds (a bench figure).

python bench/cost/lag.py --out results/lag.json                      both parts, about half an hour on one idle core
python bench/cost/lag.py --part quality --work lag.jsonl             resumes: searches in the file are not repeated

Candidate k sees outcomes up to candidate k − lag. A large lag keeps many workers busy; a small one lets every candidate learn
from all before it. The first part is a simulation: the pipeline and its history are the real ones, trainings last as long as
measured ones did, and the clock is virtual. The second part runs real searches of a table; searches with one seed share their
first K candidates, so lags are compared pairwise over seeds. Where most candidates are trained shortly, those that are promoted
have a lag of their own (`search.promoted_lag`), and the first part tries several.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import json
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import autoloss
from autoloss.comparison.entrant import Entrant, Measurements, Row, sort_by_mean, training_seeds
from autoloss.comparison.record import Record
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.chance import derive_generator
from autoloss.proposing.history import History
from autoloss.proposing.records import Job, Train
from autoloss.run.loop import run_loop
from autoloss.settings import Configuration
from autoloss.workers.pool import InlineWorkers
from output import Figure, emit, make_parser, parse_arguments
from searches import tell
from synthetic import BRANCHES, DEFAULT, Answers, Nowhere
from virtual import VirtualWorkers

LAGS = (1, 4, 8, 32)
PROMOTED_LAGS = (0, 12, 32, 64)
WORKERS = (2, 4, 8, 32)
DIGITS = (
    *(3.39, 3.61, 3.71, 3.74, 3.82, 3.89, 3.91, 4.0, 4.1, 4.2, 4.33),
    *(4.43, 4.55, 4.73, 4.88, 5.28, 5.51, 6.0, 6.25, 6.76, 7.29),
)
"""Quantiles, in steps of 5 %, of the seconds of 100 proxy trainings of a search on digits-seg, two workers on two cores."""
TRAININGS: Mapping[str, Sequence[float]] = {"seconds": DIGITS, "minutes": tuple(60 * seconds for seconds in DIGITS)}
"""Measured seconds, and the same spread where a training takes minutes, as on photographs: testing takes no time beside it."""
TESTING_SECONDS = 1.2e-3
"""Time of one attempt, on average over all that are drawn (bench/rejection/rejection.py: 100,000 a minute on two cores)."""
START_SECONDS = 0.1
"""Overhead of a short training beyond its share of a whole one: on digits-seg an eighth of the steps took a seventh of the time."""
FIGURES = {
    **{
        f"busy share, {workers} workers, lag {lag}": Figure(
            ("utilisation", {"recipe": "paper", "trainings_last": "seconds", "workers": workers, "lag": lag}, "busy")
        )
        for workers in (2, 8)
        for lag in (1, 8)
    },
    **{
        f"busy share with short trainings, 2 workers, lag 4, for promoted candidates {lag or 4}": Figure(
            (
                "utilisation",
                {"recipe": "default", "trainings_last": "seconds", "workers": 2, "lag": 4, "promoted_lag": lag},
                "busy",
            )
        )
        for lag in (0, 12)
    },
    **{
        f"winner's test score, lag {lag}": Figure(("quality", "rows", {"lag": lag}, "test", "mean"), digits=3)
        for lag in (1, 8)
    },
}
CONFIRMED, CONFIRM_SEEDS, TEST_SEEDS = 5, 3, 5
"""Best losses of a search that are trained again, and the new training seeds on valid; those of the winner on test."""


class Remembered:
    """Does jobs, and a training that was done before not again: equal trainings have equal outcomes."""

    def __init__(self, evaluator: Evaluator, known: dict[Train, Any]) -> None:
        self._evaluator = evaluator
        self._known = known

    def __call__(self, job: Job) -> Any:
        if not isinstance(job, Train):
            return self._evaluator.perform(job)
        if job not in self._known:
            self._known[job] = self._evaluator.perform(job)
        return self._known[job]


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__)
    asked.add_argument("--part", choices=["utilisation", "quality"], help="only this")
    asked.add_argument("--evaluations", type=int, default=60, help="trainings of each real search")
    asked.add_argument("--seeds", type=int, default=5, help="real searches of each lag")
    asked.add_argument(
        "--trainings", type=int, default=150, help="of each simulated search; a fifth where most are short"
    )
    asked.add_argument("--work", type=Path, help="a file that keeps what each real search came to")
    asked.add_argument("--lags", type=int, nargs="+", default=LAGS)
    asked.add_argument("--promoted-lags", type=int, nargs="+", default=PROMOTED_LAGS, help="of the simulated searches")
    asked.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="of the simulated searches")
    asked.add_argument("--steps", type=int, help="of a real training; those of the task by default")
    quick = {
        "evaluations": 6,
        "seeds": 1,
        "trainings": 30,
        "lags": [1, 4, 8],
        "promoted_lags": [0, 12],
        "workers": [2, 8],
        "steps": 150,
    }
    arguments = parse_arguments(asked, argv, **quick)
    lags, workers = arguments.lags, arguments.workers
    options = {} if arguments.steps is None else {"steps": arguments.steps}
    result: dict[str, Any] = {}
    if arguments.part != "quality":
        result["utilisation"] = [
            simulated(recipe, name, count, lag, promoted_lag, trainings)
            for recipe, trainings, promoted_lags in (
                ("paper", arguments.trainings, [0]),
                ("default", arguments.trainings // 5, arguments.promoted_lags),
            )
            for name in TRAININGS
            for count in workers
            for lag in lags
            for promoted_lag in promoted_lags
            if promoted_lag == 0 or promoted_lag > lag
        ]
    if arguments.part != "utilisation":
        result["quality"] = quality(lags, arguments, options)
    emit(result, arguments, _print)


def simulated(recipe: str, name: str, workers: int, lag: int, promoted_lag: int, evaluations: int) -> dict[str, Any]:
    """Return how busy workers are in a whole search, in which every candidate is trained whole, or most are trained shortly."""
    usual = DEFAULT if recipe == "default" else {}
    lags = {"evolution.lag": lag, "search.promoted_lag": promoted_lag}
    settings = {**usual, **lags, "evaluations": evaluations, "seed": 1}
    configuration = Configuration().changed(settings)
    pool = VirtualWorkers(workers, Answers(configuration).perform, lambda job, found: _seconds(name, job, found))
    history = History(BRANCHES, configuration)
    run_loop(history, Nowhere(), Dispatcher(pool, configuration.limits))
    slots = workers * pool.clock
    tell(
        f"{recipe}, trainings of {name}, {workers} workers, lags {lag} and {promoted_lag}: {evaluations} in "
        f"{pool.clock:.0f} virtual seconds"
    )
    return {
        "recipe": recipe,
        "trainings_last": name,
        "workers": workers,
        "lag": lag,
        "promoted_lag": promoted_lag,
        "busy": (pool.training_seconds + pool.testing_seconds) / slots,
        "training": pool.training_seconds / slots,
        "speed_up": pool.training_seconds / pool.clock,
        "hours": pool.clock / 3600,
    }


def _seconds(name: str, job: Job, found: Any) -> float:
    """Return how long a job takes: a training as one of those that were measured, whichever its loss is given."""
    if not isinstance(job, Train):
        return TESTING_SECONDS * len(found)
    measured = TRAININGS[name]
    place = derive_generator(0, "duration", job.loss).uniform(0, len(measured) - 1)
    low = min(int(place), len(measured) - 2)
    whole = measured[low] + (place - low) * (measured[low + 1] - measured[low])
    return whole if job.training.fidelity == 1 else START_SECONDS + whole * job.training.fidelity


def quality(lags: Sequence[int], arguments: argparse.Namespace, options: Mapping[str, Any]) -> dict[str, Any]:
    """Search a table with each lag and seed; a winner is selected on new training seeds of valid and measured on test."""
    done = _kept(arguments.work)
    task = autoloss.tasks.get("tabular", metric="f1", data="breast_cancer_hard", **options)
    for seed in range(arguments.seeds):
        known: dict[Train, Any] = {}
        for lag in lags:
            key = f"{seed} {lag} {arguments.evaluations}"
            if key not in done:
                done[key] = _searched(task, seed, lag, arguments.evaluations, known)
                if arguments.work:
                    with arguments.work.open("a", encoding="utf-8") as file:
                        file.write(json.dumps({key: done[key]}) + "\n")
                tell(
                    f"seed {seed}, lag {lag}: {done[key]['confirmed']:.4f} on new training seeds, {done[key]['test']:.4f} on test"
                )
    found = {lag: [done[f"{seed} {lag} {arguments.evaluations}"] for seed in range(arguments.seeds)] for lag in lags}
    figures = ("best", "confirmed", "test")
    return {
        "task": "tabular breast_cancer_hard, f1",
        "evaluations": arguments.evaluations,
        "seeds": arguments.seeds,
        "rows": [
            {"lag": lag, **{name: _summary(found[lag], found[lags[0]], name) for name in figures}}
            | {"curve": [mean(values) for values in zip(*(one["curve"] for one in found[lag]), strict=True)]}
            for lag in lags
        ],
    }


def _kept(work: Path | None) -> dict[str, Any]:
    if work is None or not work.exists():
        return {}
    return {key: row for line in work.read_text(encoding="utf-8").splitlines() for key, row in json.loads(line).items()}


def _searched(task: autoloss.Task, seed: int, lag: int, evaluations: int, known: dict[Train, Any]) -> dict[str, Any]:
    usual = {"evolution.tournament": 0.25, "offspring.fresh": 0.25, "final.confirm": CONFIRMED}
    configuration = Configuration().changed({**usual, "evolution.lag": lag, "evaluations": evaluations, "seed": seed})
    drawn = draw_samples(task, configuration.rejection.samples, seed)
    history = History(task.branches, configuration)
    with InlineWorkers(Remembered(Evaluator(task, drawn, configuration), known)) as workers:
        dispatcher = Dispatcher(workers, configuration.limits)
        run_loop(history, Nowhere(), dispatcher)
        owned = [one for one in history.finished() if one.candidate.source is None]
        scored = [one for one in owned if one.outcome.score is not None]
        trained = [one.score for one in scored]
        ranked = sorted(scored, key=lambda one: one.rank, reverse=True)[: configuration.final.confirm]
        best = [Entrant(f"#{one.id}", one.formula, configuration.search.learning_rate) for one in ranked]
        winner = sort_by_mean(_trained(best, training_seeds(seed, "confirmation", CONFIRM_SEEDS), "valid", dispatcher))[
            0
        ]
        tested = _trained([winner.entrant], training_seeds(seed, "comparison", TEST_SEEDS), "test", dispatcher)[0]
    return {
        "best": max(trained),
        "confirmed": winner.mean,
        "test": tested.mean,
        "loss": winner.entrant.loss,
        "children": len(history.candidates),
        "curve": [max(trained[: count + 1]) for count in range(evaluations)],
    }


def _trained(entrants: Sequence[Entrant], fresh: Sequence[int], split: str, dispatcher: Dispatcher) -> list[Row]:
    return Record(dispatcher).compare_losses(entrants, fresh, split)


def _summary(found: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """Return mean and half the 95 % interval, of the figure and of its difference to that of the first lag, seed by seed."""
    scores = tuple(one[name] for one in found)
    row = Measurements(scores)
    less = Measurements(tuple(mine - other[name] for mine, other in zip(scores, first, strict=True)))
    return {
        "mean": row.mean,
        "interval": row.interval,
        "difference": less.mean,
        "difference_interval": less.interval,
        "scores": scores,
    }


def _print(result: dict[str, Any]) -> None:
    for row in result.get("utilisation", ()):
        print(
            f"{row['recipe']:>8}  {row['trainings_last']:>10}  {row['workers']:>2} workers  lag {row['lag']:>2}  "
            f"of promoted ones {row['promoted_lag'] or row['lag']:>2}  busy {row['busy']:.3f}  training {row['training']:.3f}  "
            f"{row['speed_up']:.2f}× one worker"
        )
    for row in result.get("quality", {}).get("rows", ()):
        print(f"lag {row['lag']:>2}  " + "  ".join(_figure(name, row[name]) for name in ("best", "confirmed", "test")))


def _figure(name: str, summary: Mapping[str, Any]) -> str:
    half, less = summary["interval"], summary["difference_interval"]
    around = "" if half is None else f" ± {half:.4f}"
    beside = "" if less is None else f" ± {less:.4f}"
    return f"{name} {summary['mean']:.4f}{around} ({summary['difference']:+.4f}{beside})"


if __name__ == "__main__":
    main()
