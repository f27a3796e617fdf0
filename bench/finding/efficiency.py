"""Efficiency of ways to search: trainings until the level of random search and of the best hand-made loss.

python bench/finding/efficiency.py --work /tmp/efficiency.sqlite --minutes 60    keeps each training and search; goes on
python bench/finding/efficiency.py --work /tmp/efficiency.sqlite --minutes 0       figures of what is kept, without training
python bench/finding/efficiency.py --work /tmp/efficiency.sqlite --arms plain +shelf +memory all         each part alone
python bench/finding/efficiency.py --tasks digits-det --earlier bench/results/efficiency.json    one task more

All searches with one seed share samples, training seed and the trainings themselves: a loss that two of them propose is trained
once. All train alike: each step has a gradient of norm 1 (where the optimizer does not see to that already), at the rate that the
ladder finds best for the standard loss. The memory of a search is learnt without its task. A search's best is the loss with the
highest score of a whole training so far; it counts with its mean over two new training seeds of the valid split. Two levels are to
be reached: (a) what random search has after `--level-budget` training equivalents, the median over its searches, and (b) the best
of the hand-made losses, each at its best learning rate. A search that does not reach a level counts with its whole budget (the
restricted mean). All arms have the same budget, so this moves ratios towards 1 where the slower arm is cut off, and a row says how
many of its searches reached the level. Where trainings are long, a task has fewer searches (`SEARCHES`). Minutes are those of one
worker: what was looked up counts with the time that it took when it was trained. Intervals are 95 %, from resampling search seeds
within each task (percentiles).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import autoloss
from autoloss import recipes
from autoloss.comparison.baselines import baselines
from autoloss.comparison.record import Record, tune_learning_rates
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.memory import read_prior, write_prior
from autoloss.settings import Configuration
from autoloss.workers.pool import InlineWorkers
from awaytasks import BY_NAME
from lossbench import find_rate, find_rule, make_task
from losstable import TABLE, read_rows
from output import Figure, emit, make_parser, make_pool, parse_arguments
from problems import PROBLEMS
from reaching import compare_arms, summarise_task
from searches import tell
from sharing import Cache, OutOfTime, SharedRunner, Trace, run_search

Settings = Mapping[str, Any]


PLAIN: Settings = {"evolution.start": (), "search.prior": "none"}
ARMS: Mapping[str, Callable[[str], Settings]] = {
    "random": lambda prior: {"search.proposer": "random"},
    "paper": lambda prior: {},
    "plain": lambda prior: {**recipes.DEFAULT, **PLAIN},
    "+shelf": lambda prior: {**recipes.DEFAULT, "search.prior": "none"},
    "+memory": lambda prior: {**recipes.DEFAULT, **PLAIN, "search.prior": prior},
    "all": lambda prior: {**recipes.DEFAULT, "search.prior": prior},
}
"""Arm → the settings of its searches, given the prior that was learnt without their task: the paper's settings; the default ones
without known losses and memory, with each of the two, and with both."""
FIRST = ("random", "paper", "all")
"""Arms that are measured by default."""
LEVELS = ("random", "tuned")
SEARCHES: Mapping[str, tuple[int, int]] = {
    "digits-seg-miou": (5, 3),
    "digits-seg-bf1": (5, 2),
    "tabular-f1": (10, 10),
    "worst-digit": (10, 10),
    "digits-det": (2, 1),
    **{name: (10, 3) for name, task in BY_NAME.items() if task.part == "known"},
}
"""Task → searches of each arm and of random search, which has the budget of its level. A training of digits-seg lasts fifteen to
forty times as long as one of the two cheap tasks, and one of digits-det six times as long as that."""
FIGURES = {
    **{
        f"paper / {arm}, equivalents to the level of {level}": Figure(
            ("ratios", {"arm": arm, "level": level, "unit": "equivalents"}, "ratio"), digits=1
        )
        for arm in ("random", "all")
        for level in LEVELS
    },
    **{
        f"{arm}, worst-digit: {name}": Figure(
            ("tasks", {"task": "worst-digit"}, "arms", {"arm": arm}, *path), digits=digits
        )
        for arm in FIRST
        for name, path, digits in (
            ("equivalents to the level of random search", ("to", {"level": "random"}, "equivalents", "mean"), 0),
            ("interquartile mean found", ("found", "mean"), 3),
        )
    },
}


@dataclass(frozen=True, slots=True)
class Work:
    """One search, or the tuning of the hand-made losses (`arm` None)."""

    task: str
    arm: str | None
    seed: int
    budget: int
    quick: bool
    path: Path
    end: float


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, budget=60, level_budget=200, processes=1)
    asked.add_argument("--seeds", type=int, help="searches of each arm; by default 3 to 10, by task (`SEARCHES`)")
    asked.add_argument("--tasks", nargs="+", choices=SEARCHES, default=list(PROBLEMS))
    asked.add_argument("--arms", nargs="+", choices=ARMS, default=FIRST)
    asked.add_argument(
        "--minutes", type=float, help="begin no training after this time; by default all that is asked for is done"
    )
    asked.add_argument(
        "--work", type=Path, help="the SQLite file that keeps trainings and searches; without it nothing is kept"
    )
    asked.add_argument(
        "--earlier", type=Path, help="a document that --out wrote: its tasks that are not measured now count as well"
    )
    quick = {
        "seeds": 2,
        "budget": 6,
        "level_budget": 6,
        "tasks": ["worst-digit"],
        "arms": ["random", "paper", "plain", "all"],
    }
    arguments = parse_arguments(asked, argv, **quick, processes=0)
    end = time.time() + 60 * (1e6 if arguments.minutes is None else arguments.minutes)
    with TemporaryDirectory() as folder:
        traces, tuned = _run(arguments, arguments.work or Path(folder) / "trainings.sqlite", end)
    found = [
        summarise_task(task, traces[task], tuned[task], arguments.budget, arguments.level_budget)
        for task in arguments.tasks
        if task in tuned and traces[task].get("random")
    ]
    if arguments.earlier:
        found = add_earlier(json.loads(arguments.earlier.read_text(encoding="utf-8")), found)
    ratios = [
        compare_arms(found, "paper", arm, level, unit)
        for arm, level, unit in itertools.product(arguments.arms, LEVELS, ("equivalents", "minutes"))
        if arm != "paper"
    ]
    result = {"budget": arguments.budget, "level_budget": arguments.level_budget, "ratios": ratios, "tasks": found}
    emit(result, arguments, _print)


def add_earlier(earlier: Mapping[str, Any], found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tasks of an earlier document that this run did not measure, whatever their budget, and those that it did."""
    measured = {one["task"] for one in found}
    others = [{"budget": earlier["budget"], **one} for one in earlier["tasks"] if one["task"] not in measured]
    return [*others, *found]


def _run(
    arguments: Any, path: Path, end: float
) -> tuple[dict[str, dict[str, dict[int, Trace]]], dict[str, dict[str, Any]]]:
    """Do all that is asked for, as far as time allows.

    Returns:
        Task → arm → seed → search, and task → the best hand-made loss.
    """
    traces: dict[str, dict[str, dict[int, Trace]]] = {task: {} for task in arguments.tasks}
    tuned: dict[str, dict[str, Any]] = {}
    with make_pool(arguments.processes) as pool:
        running = {pool.submit(_perform, work): work for work in _list_work(arguments, path, end)}
        for future in as_completed(running):
            work, found = running[future], future.result()
            if found is None:
                continue
            if isinstance(found, Trace):
                traces[work.task].setdefault(str(work.arm), {})[work.seed] = found
                tell(f"{work.task}, {work.arm}, seed {work.seed}: {_describe(found)}")
            else:
                tuned[work.task] = found
                tell(f"{work.task}: the best hand-made loss is {found['loss']}, {found['score']}")
    return traces, tuned


def _list_work(arguments: Any, path: Path, end: float) -> Iterator[Work]:
    """Return all work, one seed of all tasks and arms after the other: what is done when time is up is paired."""
    searches = {task: _count_searches(task, arguments.seeds) for task in arguments.tasks}
    for seed, (task, (arms, random)) in itertools.product(range(max(map(max, searches.values()))), searches.items()):
        if seed == 0:
            yield Work(task, None, seed, 0, arguments.quick, path, end)
        if seed < random:
            budget = max(arguments.budget, arguments.level_budget)
            yield Work(task, "random", seed, budget, arguments.quick, path, end)
        for arm in dict.fromkeys(arguments.arms):
            if arm != "random" and seed < arms:
                yield Work(task, arm, seed, arguments.budget, arguments.quick, path, end)


def _count_searches(task: str, seeds: int | None) -> tuple[int, int]:
    """Return how many searches of each arm and of random search are made.

    Args:
        seeds: What the command line says of the arms; random search has no more of them.
    """
    arms, random = SEARCHES[task]
    return (arms, random) if seeds is None else (seeds, min(seeds, random))


def _perform(work: Work) -> Trace | dict[str, Any] | None:
    """Return the result of the work; None if the time was up before its end."""
    task = make_task(work.task, work.quick)
    cache = Cache(work.path, f"{work.task}, few" if work.quick else work.task)
    try:
        if work.arm is None:
            return tune_handmade(task, cache, work.end)
        prior = write_prior_without(work.task, work.path.parent / f"prior-{work.task}.npz")
        training = choose_training(work.task, work.quick)
        settings = {**ARMS[work.arm](str(prior)), **training, "evaluations": work.budget}
        return run_search(task, settings, work.seed, cache, work.end)
    except OutOfTime:
        return None


def write_prior_without(task: str, path: Path) -> Path:
    """Write the prior of the package, less what it learnt from a task."""
    write_prior([forest for forest in read_prior("default")[0] if forest.source != task], path)
    return path


@cache
def choose_training(task: str, quick: bool) -> Settings:
    """Return the settings of the trainings of a task: the rate is that of the table of losses, or the ladder is climbed for it."""
    rule = find_rule(make_task(task, quick))
    rates = (row.learning_rate for row in read_rows(TABLE) if row.task == task)
    rate = next(rates, None) or find_rate(task, quick)
    norm = rule == "one_norm"
    return {"search.step_rule": rule, "search.learning_rate": rate, "search.direction": norm}


def tune_handmade(task: autoloss.Task, cache: Cache, end: float) -> dict[str, Any]:
    """Return the hand-made loss with the highest mean over the new training seeds, each at its best learning rate of the grid."""
    configuration = Configuration()
    samples = draw_samples(task, configuration.rejection.samples, 0)
    shared = SharedRunner(Evaluator(task, samples, configuration), cache, end)
    with InlineWorkers(shared) as workers:
        dispatcher = Dispatcher(workers, configuration.limits)
        tuned = tune_learning_rates(baselines(task, every=True), task, 0, Record(dispatcher))
    entrants = [row.entrant for row in tuned]
    rows = [
        {
            "loss": entrant.label,
            "learning_rate": entrant.learning_rate,
            "score": shared.confirm(entrant.loss, entrant.job(0, "valid").training),
        }
        for entrant in entrants
    ]
    untrained = task.untrained(derive_seed(0, "training"))
    best = max(rows, key=lambda row: -1.0 if row["score"] is None else row["score"])
    return {**best, "every": rows, "untrained": untrained}


def _describe(trace: Trace) -> str:
    last = trace.improvements[-1] if trace.improvements else None
    found = "nothing" if last is None else f"{last.score:.4f}, confirmed {_format(last.confirmed, 4)}: {last.loss}"
    return f"{trace.equivalents:.1f} equivalents, {trace.minutes:.1f} minutes, {trace.candidates} candidates; found {found}"


def _print(result: dict[str, Any]) -> None:
    for one in result["tasks"]:
        levels = "  ".join(f"{name} {_format(value, 4)}" for name, value in one["levels"].items())
        print(f"{one['task']}, budget {one['budget']:g}: levels {levels} ({one['handmade']['loss']})")
        for row in one["arms"]:
            to = "  ".join(
                f"to {each['level']}: {_interval(each['equivalents'], 1)} equivalents, {_format(each['minutes']['mean'], 1)} min, "
                f"{each['reached']} of {row['searches']}"
                for each in row["to"]
            )
            print(f"  {row['arm']:<15} found {_interval(row['found'], 4)}  {to}")
    for row in result["ratios"]:
        print(f"paper / {row['arm']}, {row['unit']} to {row['level']}: {_interval({**row, 'mean': row['ratio']}, 2)}")


def _interval(row: Mapping[str, Any], digits: int) -> str:
    return f"{_format(row['mean'], digits)} [{_format(row['low'], digits)}, {_format(row['high'], digits)}]"


def _format(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    main()
