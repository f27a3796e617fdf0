"""What a short search on digits-seg finds, over seeds: the winner beside tuned baselines on the test split.

python bench/digits.py --seeds 2 --out results/digits.json      searches and compares
python bench/digits.py --runs DIR DIR                           reads runs that are there already
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import autoloss
from autoloss.report.leaderboard import comparison_rows
from autoloss.run.results import Search, open_run
from machine import machine
from output import emit
from searches import EVOLUTION, parser, searched

FEW = {"train": 64, "valid": 16, "test": 16, "epochs": 1}
"""Options of digits-seg that make a training take a fraction of a second."""


def main() -> None:
    asked = parser(__doc__, evaluations=60, seeds=2, quick="one seed of 3 trainings on few scenes")
    asked.add_argument("--metric", default="miou")
    asked.add_argument(
        "--runs", type=Path, nargs="*", default=[], help="folders of finished runs, in place of searching"
    )
    arguments = asked.parse_args()
    if arguments.quick:
        arguments.evaluations, arguments.seeds = 3, 1
    with tempfile.TemporaryDirectory() as folder:
        found = [open_run(run) for run in arguments.runs] or [
            _searched(seed, Path(folder) / str(seed), arguments) for seed in range(arguments.seeds)
        ]
    result = {"machine": machine(), "task": "digits-seg", "searches": [_summary(one) for one in found]}
    emit(result, arguments, _print)


def _print(result: dict) -> None:
    for one in result["searches"]:
        print(f"seed {one['seed']}: winner {one['winner']}")
        for row in one["comparison"]:
            print(
                f"  {row['label']:<24} {row['mean'] or float('nan'):.4f} ± {row['sd'] or float('nan'):.4f}  {row['loss']}"
            )


def _searched(seed: int, directory: Path, arguments: argparse.Namespace) -> Search:
    few = FEW if arguments.quick else {}
    task = autoloss.tasks.get("digits-seg", metric=arguments.metric, **few)
    settings = {"final.confirm": 2, "final.compare_seeds": 2} if arguments.quick else {}
    return searched(task, EVOLUTION, seed, directory, arguments, settings=settings)


def _summary(found: Search) -> dict:
    trained = [one for one in found.history if one.child.source is None]
    return {
        "seed": found.configuration.seed,
        "losses": len(found.history),
        "drawn": sum(one.child.counts.get("sampled", 0) for one in found.history),
        "simulated": sum(one.child.counts.get("simulated", 0) for one in found.history),
        "trained": len(trained),
        "training_seconds": sum(one.outcome.seconds for one in trained),
        "winner": found.best.formula,
        "winner_id": found.best.id,
        "comparison": comparison_rows(found.comparison),
    }


if __name__ == "__main__":
    main()
