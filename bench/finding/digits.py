"""Searches on digits-seg, for several seeds: the ladder, the recommendation, and the comparison on the test split.

python bench/finding/digits.py --seeds 2 --out results/digits.json      searches and compares
python bench/finding/digits.py --runs DIR DIR                           reads finished runs
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict

import autoloss
from autoloss.comparison.entrant import COMPARISON, TEST, training_seeds
from autoloss.report.summary import comparison_rows
from autoloss.run.request import make_request, prepare
from autoloss.run.results import Search, open_run
from output import Figure, emit, parse_arguments
from problems import FEW
from searches import EVOLUTION, make_search_parser, searched

SCENES = 3
SHORT = {"baseline/ce": "cross entropy", "baseline/dice": "Dice", "baseline/lovasz": "Lovász"}
_SEED_0 = ("searches", {"seed": 0}, "comparison")
FIGURES = {
    "trained": Figure(("searches", {"seed": 0}, "trained")),
    "Dice": Figure((*_SEED_0, {"loss": "baseline/dice"}, "mean"), digits=4),
    "the best found loss": Figure((*_SEED_0, {"baseline": False}, "mean"), digits=4),
    "cross entropy": Figure((*_SEED_0, {"loss": "baseline/ce"}, "mean"), digits=4),
}


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_search_parser(__doc__, evaluations=60, seeds=2)
    asked.add_argument("--metric", default="miou")
    asked.add_argument("--first", type=int, default=0, help="seed of the first search")
    asked.add_argument(
        "--runs", type=Path, nargs="*", default=[], help="folders of finished runs, in place of searching"
    )
    asked.add_argument("--scenes", type=int, default=SCENES, help="test images that are kept with their predictions")
    arguments = parse_arguments(asked, argv, evaluations=3, seeds=1)
    with tempfile.TemporaryDirectory() as folder:
        found = [open_run(run) for run in arguments.runs] or [
            _searched(seed, Path(folder) / str(seed), arguments)
            for seed in range(arguments.first, arguments.first + arguments.seeds)
        ]
        result = {
            "task": "digits-seg",
            "metric": arguments.metric,
            "searches": [_summary(one) for one in found],
            "scenes": _draw_scenes(found[0], _make_task(arguments), arguments.scenes) if arguments.scenes else [],
        }
    emit(result, arguments, _print)


def _print(result: dict) -> None:
    for one in result["searches"]:
        print(f"seed {one['seed']}: {one['recommendation']['loss']} ({one['recommendation']['origin']})")
        for row in one["comparison"]:
            print(
                f"  {row['label']:<24} {row['mean'] or float('nan'):.4f} ± {row['sd'] or float('nan'):.4f}  {row['loss']}"
            )


def _make_task(arguments: argparse.Namespace) -> autoloss.Task:
    return autoloss.tasks.get("digits-seg", metric=arguments.metric, **(FEW if arguments.quick else {}))


def _searched(seed: int, directory: Path, arguments: argparse.Namespace) -> Search:
    settings = {"final.confirm": 2, "final.compare_seeds": 2} if arguments.quick else {}
    return searched(_make_task(arguments), EVOLUTION, seed, directory, arguments, settings=settings)


def _summary(found: Search) -> dict:
    trained = [one for one in found.history if one.candidate.source is None]
    return {
        "seed": found.configuration.seed,
        "losses": len(found.history),
        "drawn": sum(one.candidate.counts.get("sampled", 0) for one in found.history),
        "simulated": sum(one.candidate.counts.get("simulated", 0) for one in found.history),
        "trained": len(trained),
        "training_seconds": sum(one.outcome.seconds for one in trained),
        "recommendation": asdict(found.recommendation),
        "ladder": found.ladder and found.ladder.to_dict(),
        "course": _follow_course(found),
        "winner": found.best.formula,
        "winner_id": found.best.id,
        "comparison": comparison_rows(found.comparison),
    }


def _follow_course(found: Search) -> list[tuple[float, float]]:
    """Return (training equivalents so far, score) of every whole training of the search."""
    spent, course = 0.0, []
    for one in found.history:
        if one.candidate.source is None:
            spent += one.candidate.fidelity
            if one.outcome.fidelity == 1 and one.outcome.score is not None:
                course.append((spent, one.outcome.score))
    return course


def _draw_scenes(found: Search, task: autoloss.Task, count: int) -> list[dict]:
    """Return test images as lists of pixels, with the targets and the classes that networks predict after each loss."""
    evaluator = prepare(make_request(task), samples=False)
    entrants = {row.entrant.loss: row.entrant for row in reversed(found.comparison)}
    recommended = found.recommendation.loss
    names = {"cross entropy": "baseline/ce", SHORT.get(recommended, recommended): recommended}
    names["the loss found"] = found.best.formula
    seed = training_seeds(found.configuration.seed, COMPARISON, 1)[0]
    drawn = {
        name: evaluator.draw_pictures(loss, entrants[loss].job(seed, TEST).training, count)
        for name, loss in names.items()
        if loss in entrants
    }
    (first, *_) = drawn.values()
    return [
        {
            "image": (255 * picture.image.clamp(0, 1)).round().int().tolist(),
            "target": picture.target.tolist(),
            "predictions": {name: pictures[place].prediction.tolist() for name, pictures in drawn.items()},
        }
        for place, picture in enumerate(first)
    ]


if __name__ == "__main__":
    main()
