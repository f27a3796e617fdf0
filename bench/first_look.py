"""Whether evolution finds better losses than random search under the same rejection protocol (Figure: ablation).

Both have the same budget of trainings; random search draws every candidate without a parent. Printed are the best score so far on
the valid split, averaged over seeds, and the test scores of the winners with new training seeds, with those of the baselines at
their tuned learning rate.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import autoloss
from autoloss.comparison.baselines import baselines, tune_learning_rates
from autoloss.comparison.compare import compare_losses
from autoloss.comparison.entrant import Entrant, training_seeds
from autoloss.comparison.record import Memory
from autoloss.comparison.table import sort_by_mean
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.machines import Machines, start_workers
from autoloss.proposing.records import Individual
from autoloss.run.results import Search, rank_history
from autoloss.settings import Configuration
from autoloss.workers.dispatch import Dispatcher
from output import Figure, emit, parse_arguments
from searches import ARMS, AS_PRINTED, RANDOM, make_search_parser, searched

CONTESTANTS = 3
"""A search's top losses are trained with new seeds on the valid split; the best of them is its winner."""
FRESH_SEEDS = 5
FIGURES = {
    f"{arm}: {label}": Figure((key, arm), digits=4)
    for arm in (AS_PRINTED, RANDOM)
    for key, label in (("best_valid", "best on valid"), ("top5_valid", "top five on valid"), ("test", "winner on test"))
}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _arguments(argv)
    began = time.monotonic()
    steps = {} if arguments.steps is None else {"steps": arguments.steps}
    task = autoloss.tasks.get("tabular", metric=arguments.metric, data=arguments.data, **steps)
    searches = {arm: [_searched(task, arm, seed, arguments) for seed in range(arguments.seeds)] for arm in ARMS}
    result = {
        "task": f"tabular {arguments.data}",
        "metric": arguments.metric,
        "evaluations": arguments.evaluations,
        "seeds": arguments.seeds,
        "curve": {arm: _curve(found, arguments.evaluations) for arm, found in searches.items()},
        "best_valid": {arm: [found.top(1)[0].score for found in runs] for arm, runs in searches.items()},
        "top5_valid": {
            arm: [mean(best.score for best in found.top(5)) for found in runs] for arm, runs in searches.items()
        },
        **_tested(task, searches, arguments.workers),
        "seconds": time.monotonic() - began,
    }
    emit(result, arguments, _print)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    asked = make_search_parser(__doc__, evaluations=200, seeds=10)
    asked.add_argument("--data", default="breast_cancer_hard", help="a data set of the task tabular")
    asked.add_argument("--metric", default="f1")
    asked.add_argument("--steps", type=int, help="steps of a training; those of the task by default")
    return parse_arguments(asked, argv, evaluations=8, seeds=2, workers=0)


def _searched(task: autoloss.Task, arm: str, seed: int, arguments: argparse.Namespace) -> Search:
    with tempfile.TemporaryDirectory() as folder:
        return searched(task, arm, seed, Path(folder) / "run", arguments, final=False)


def _curve(runs: Sequence[Search], evaluations: int) -> list[float]:
    """Return the best score after each training, averaged over the runs."""
    curves = [_best_so_far(found.history) for found in runs]
    return [mean(curve[min(step, len(curve) - 1)] for curve in curves) for step in range(evaluations)]


def _best_so_far(history: Sequence[Individual]) -> list[float]:
    best: list[float] = []
    trained = {individual.id for individual in rank_history(history)}
    for individual in history:
        if individual.id in trained:
            best.append(max(individual.score, best[-1] if best else individual.score))
    return best


def _tested(task: autoloss.Task, searches: dict[str, list[Search]], workers: int) -> dict[str, object]:
    """Select each search's winner on new training seeds of valid, then measure winners and baselines on test."""
    configuration = Configuration()
    known = Memory()
    with start_workers(Evaluator(task, {}, configuration), Machines(workers=workers)) as pool:
        dispatcher = Dispatcher(pool, configuration.limits)

        def rows(entrants: Sequence[Entrant], purpose: str, split: str) -> list:
            fresh = training_seeds(0, purpose, FRESH_SEEDS)
            return compare_losses(entrants, fresh, split, dispatcher, known)

        winners = {}
        for arm, runs in searches.items():
            winners[arm] = []
            for found in runs:
                entrants = [Entrant(arm, best.formula) for best in found.top(CONTESTANTS)]
                winners[arm].append(sort_by_mean(rows(entrants, "first look: valid", "valid"))[0].entrant)
        test = {arm: [row.mean for row in rows(chosen, "first look: test", "test")] for arm, chosen in winners.items()}
        rivals = tune_learning_rates(baselines(task), task, 0, dispatcher, known)
        return {
            "winners": {arm: [entrant.loss for entrant in chosen] for arm, chosen in winners.items()},
            "test": test,
            "baselines": {row.entrant.label: row.scores for row in rows(rivals, "first look: test", "test")},
        }


def _print(result: dict) -> None:
    print(f"{result['task']} {result['metric']}, {result['seeds']} seeds × {result['evaluations']} trainings")
    print("best so far on valid, mean over seeds, after n trainings")
    steps = [step for step in (1, 5, 10, 20, 50, 100, 200, 500) if step <= result["evaluations"]]
    print("  n            ", *(f"{step:>7}" for step in steps))
    for arm, curve in result["curve"].items():
        print(f"  {arm:<14}", *(f"{curve[step - 1]:>7.4f}" for step in steps))
    print("mean ± sd over searches")
    for arm in result["curve"]:
        test = [value for value in result["test"][arm] if value is not None]
        print(
            f"  {arm:<14} best valid {_spread(result['best_valid'][arm])}  top-5 valid {_spread(result['top5_valid'][arm])}"
            f"  winner on test {_spread(test)}"
        )
    for label, scores in result["baselines"].items():
        print(f"  {label:<24} test {_spread([score for score in scores if score is not None])} over training seeds")


def _spread(values: Sequence[float]) -> str:
    deviation = stdev(values) if len(values) > 1 else 0.0
    return f"{mean(values):.4f} ± {deviation:.4f}" if values else "–"


if __name__ == "__main__":
    main()
