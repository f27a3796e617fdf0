"""Short searches on digits-seg, for several seeds: the winner and tuned baselines on the test split.

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

import autoloss
from autoloss.report.summary import comparison_rows
from autoloss.run.results import Search, open_run
from output import Figure, emit, parse_arguments
from problems import FEW
from searches import EVOLUTION, make_search_parser, searched

"""Options of digits-seg that make a training take a fraction of a second."""
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
    asked.add_argument(
        "--runs", type=Path, nargs="*", default=[], help="folders of finished runs, in place of searching"
    )
    arguments = parse_arguments(asked, argv, evaluations=3, seeds=1)
    with tempfile.TemporaryDirectory() as folder:
        found = [open_run(run) for run in arguments.runs] or [
            _searched(seed, Path(folder) / str(seed), arguments) for seed in range(arguments.seeds)
        ]
    result = {"task": "digits-seg", "searches": [_summary(one) for one in found]}
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
    trained = [one for one in found.history if one.candidate.source is None]
    return {
        "seed": found.configuration.seed,
        "losses": len(found.history),
        "drawn": sum(one.candidate.counts.get("sampled", 0) for one in found.history),
        "simulated": sum(one.candidate.counts.get("simulated", 0) for one in found.history),
        "trained": len(trained),
        "training_seconds": sum(one.outcome.seconds for one in trained),
        "winner": found.best.formula,
        "winner_id": found.best.id,
        "comparison": comparison_rows(found.comparison),
    }


if __name__ == "__main__":
    main()
