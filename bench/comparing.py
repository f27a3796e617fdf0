"""How often a comparison with the baselines sees that the loss found is better, by its number of training seeds.

python bench/comparing.py --work FOLDER --processes 2      about an hour and a half; the same command goes on

Each search (the default recipe) ends with its best loss on new seeds of the valid split. That loss and the baselines, each at its
best learning rate, are then trained with 16 new seeds and measured on the test split. From random subsets of these seeds follows
how often a comparison of so many seeds says that the loss beats the best baseline, or is worse (p < 0.05); and how often it says
so in vain: of the best baseline and itself on other seeds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import autoloss
from autoloss.comparison.judgement import SIGNIFICANT, Standing, judge_comparison
from autoloss.comparison.table import Row, compare_paired, sort_by_mean
from autoloss.run.check import count_final_trainings
from autoloss.run.results import Search
from autoloss.run.scoring import compare
from autoloss.settings import FinalSettings
from autoloss.store import store
from output import Figure, emit, make_parser, make_pool, parse_arguments
from problems import PROBLEMS, make_segmentation
from searches import tell

TASKS: Mapping[str, tuple[Callable[[bool], autoloss.Task], int]] = {
    **{f"digits-seg-{metric}": (make_segmentation(metric), 1) for metric in ("biou", "macc", "fwiou", "gacc")},
    "digits-seg-miou": (PROBLEMS["digits-seg-miou"], 2),
    "tabular-f1": (PROBLEMS["tabular-f1"], 5),
    "worst-digit": (PROBLEMS["worst-digit"], 5),
}
"""Name → what makes the task, with few steps if told so, and the number of searches."""
SIZES = (3, 5, 8)
"""Numbers of training seeds that are tried; twice the largest are trained."""
BEFORE = FinalSettings(compare=3, compare_seeds=3)
"""What ended a search before."""
SUBSETS = 500
FIGURES = {
    **{
        f"{count} seeds: {name}": Figure(("sizes", {"seeds": count}, key), digits=0, percent=True)
        for count in SIZES
        for name, key in (("seen where it is better", "beats"), ("said in vain", "vain"))
    },
    "trainings of the finale now": Figure(("trainings", "now")),
    "trainings of the finale before": Figure(("trainings", "before")),
}


@dataclass(frozen=True, slots=True)
class Work:
    """One search and its comparison."""

    task: str
    seed: int
    budget: int
    quick: bool
    folder: Path


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, budget=50, processes=1)
    asked.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    asked.add_argument("--work", type=Path, help="the folder that keeps the runs; without it nothing is kept")
    arguments = parse_arguments(asked, argv, tasks=["worst-digit"], budget=4, processes=0)
    with TemporaryDirectory() as folder, make_pool(arguments.processes) as pool:
        rows = list(pool.map(search_and_compare, _list_work(arguments, arguments.work or Path(folder))))
    trainings = {"before": count_final_trainings(BEFORE), "now": count_final_trainings(FinalSettings())}
    emit({"trainings": trainings, "sizes": summarise(rows), "rows": rows}, arguments, _print)


def _list_work(arguments: Any, folder: Path) -> Iterator[Work]:
    for task in arguments.tasks:
        for seed in range(1 if arguments.quick else TASKS[task][1]):
            yield Work(task, seed, arguments.budget, arguments.quick, folder)


def search_and_compare(work: Work) -> dict[str, Any]:
    """Return what the search found, and how often comparisons of each size see it."""
    task = TASKS[work.task][0](work.quick)
    directory = work.folder / f"{work.task}-seed{work.seed}"
    if store.exists(directory):
        found = autoloss.resume(directory, task, workers=0)
    else:
        found = autoloss.search(
            task,
            evaluations=work.budget,
            seed=work.seed,
            workers=0,
            directory=directory,
            settings={"final.compare": 0},
        )
    rows = compare(directory, task=task, top=1, seeds=2 * max(SIZES), workers=0)
    row = {"task": work.task, "seed": work.seed, **describe_comparison(rows, found)}
    tell(f"{work.task}, seed {work.seed}: {_sign(row['difference'])} from {row['baseline']}, {row['standing']}")
    return row


def describe_comparison(rows: Sequence[Row], found: Search) -> dict[str, Any]:
    """Judge the whole comparison, and subsets of its seeds."""
    number = found.best.id
    whole = judge_comparison(rows, number)
    rival = next(row for row in sort_by_mean(rows) if row.entrant.baseline)
    mine = next(row for row in rows if row.entrant.number == number)
    return {
        "loss": found.best.formula,
        "baseline": rival.entrant.label,
        "found": mine.mean,
        "best_baseline": rival.mean,
        "difference": None if whole.paired is None else whole.paired.difference,
        "p_value": whole.p_value,
        "standing": whole.standing.value,
        "sizes": [{"seeds": count, **_try_size(rows, number, rival, count)} for count in SIZES],
    }


def _try_size(rows: Sequence[Row], number: int, rival: Row, count: int) -> dict[str, float]:
    chance = random.Random(count)
    drawn = [chance.sample(range(len(rival.outcomes)), 2 * count) for _ in range(SUBSETS)]
    said = [judge_comparison([_take(row, seeds[:count]) for row in rows], number).standing for seeds in drawn]
    vain = [compare_paired(_take(rival, seeds[:count]).scores, _take(rival, seeds[count:]).scores) for seeds in drawn]
    wrong = [pair is not None and pair.p_value is not None and pair.p_value < SIGNIFICANT for pair in vain]
    return {
        "beats": fmean(one is Standing.BEATS for one in said),
        "worse": fmean(one is Standing.WORSE for one in said),
        "vain": fmean(wrong),
    }


def _take(row: Row, places: Sequence[int]) -> Row:
    return dataclasses.replace(row, outcomes=tuple(row.outcomes[place] for place in places))


def summarise(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for each number of seeds how often it is said that a loss is better, where all seeds say so, and where it is not."""
    better = [row for row in rows if row["standing"] == Standing.BEATS.value]
    sizes = []
    for place, count in enumerate(SIZES):
        of_better = [row["sizes"][place]["beats"] for row in better]
        vain = fmean(row["sizes"][place]["vain"] for row in rows)
        sizes.append(
            {"seeds": count, "better": len(better), "beats": fmean(of_better) if of_better else None, "vain": vain}
        )
    return sizes


def _sign(difference: float | None) -> str:
    return "–" if difference is None else f"{difference:+.4f}"


def _print(result: Mapping[str, Any]) -> None:
    for row in result["rows"]:
        shares = "  ".join(f"{one['seeds']}: {one['beats']:.0%}" for one in row["sizes"])
        print(
            f"{row['task']}, seed {row['seed']}: {_sign(row['difference'])} from {row['baseline']} ({row['standing']})  {shares}"
        )
    for one in result["sizes"]:
        beats = "–" if one["beats"] is None else f"{one['beats']:.0%}"
        print(
            f"{one['seeds']} seeds: seen in {beats} of {one['better']} that are better, said in vain in {one['vain']:.0%}"
        )
    print(f"trainings of the finale: {result['trainings']['before']} before, {result['trainings']['now']} now")


if __name__ == "__main__":
    main()
