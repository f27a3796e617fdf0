"""What a search finds where the standard loss misses the threshold of the rejection protocol, lowered for it and not.

python bench/admitting.py --work /tmp/trainings.sqlite --processes 2      about half an hour; the same command goes on

The g of cross entropy for border scores (BF1) on digits-seg depends on the samples, and so on the seed of a search; that of the
absolute error depends on the unit of the targets. Of the seeds of a task (`TASKS`), those in which g is below η and at least half
of it are searched twice with the default recipe: with η lowered to 0.9 of that g, which `rejection.admit_standard` does for a
softmax, and with η as it is. What was found counts with its mean over two new training seeds of the valid split; both searches
of a seed share trainings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import autoloss
from autoloss import recipes
from autoloss.evaluation.evaluator import Evaluator
from autoloss.run.adapting import NEAR, lower_to
from autoloss.settings import Configuration
from autoloss.store import samples as sample_files
from output import Figure, emit, make_parser, make_pool, parse_arguments
from problems import PROBLEMS
from searches import tell
from sharing import Cache, run_search


def make_regression(divisor: float, few: bool = False) -> autoloss.Task:
    """Return a regression of the progress of diabetes, scored by the mean absolute error beside that of the median.

    Args:
        divisor: Of the targets, which are 25 to 346.
    """
    table = load_diabetes()
    inputs = torch.tensor(table.data * 20, dtype=torch.float32)
    targets = torch.tensor(table.target / divisor, dtype=torch.float32)[:, None]
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(0))
    train, valid, test = ((inputs[rows], targets[rows]) for rows in order.split([250, 90, 102]))
    return autoloss.SupervisedTask(
        lambda: nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)),
        train=train,
        valid=valid,
        test=test,
        activation="none",
        metric=_measure_relative_error,
        standard="abs(p - y)",
        recipe=autoloss.Recipe(epochs=10 if few else 60, batch_size=16, learning_rate=0.03),
        name="regression",
    )


def _measure_relative_error(prediction: Tensor, target: Tensor) -> float:
    return 1 - ((prediction - target).abs().mean() / (target - target.median()).abs().mean()).item()


TASKS: Mapping[str, tuple[Callable[[bool], autoloss.Task], int, float]] = {
    "digits-seg-bf1": (PROBLEMS["digits-seg-bf1"], 25, 60),
    "regression / 12": (lambda few: make_regression(12.0, few), 4, 20),
    "regression / 16": (lambda few: make_regression(16.0, few), 4, 20),
}
"""Name → task, with few steps if told so, number of search seeds, and budget. A training of the regression takes half a second."""
THRESHOLD = Configuration().rejection.threshold
_FIRST = {"task": "regression / 16", "seed": 0}
FIGURES = {
    "g of the standard loss, targets / 16": Figure(("rows", _FIRST, "g")),
    "found with η lowered": Figure(("rows", {**_FIRST, "admits": True}, "found"), digits=3),
    "found with η as it is": Figure(("rows", {**_FIRST, "admits": False}, "found"), digits=3),
}


@dataclass(frozen=True, slots=True)
class Work:
    """One search."""

    task: str
    seed: int
    g: float
    admits: bool
    budget: float
    quick: bool
    path: Path


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, processes=1)
    asked.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    asked.add_argument("--work", type=Path, help="the SQLite file that keeps trainings and searches")
    arguments = parse_arguments(asked, argv, tasks=["regression / 16"], processes=0)
    with TemporaryDirectory() as folder, make_pool(arguments.processes) as pool:
        path = arguments.work or Path(folder) / "trainings.sqlite"
        standard = {task: measure_seeds(task, arguments.quick) for task in arguments.tasks}
        rows = list(pool.map(search, _list_work(standard, arguments.quick, path)))
    emit({"threshold": THRESHOLD, "standard": standard, "rows": rows}, arguments, _print)


def measure_seeds(task: str, quick: bool) -> list[float]:
    """Return g of the standard loss for each search seed of a task."""
    return [measure_standard(task, seed) for seed in range(1 if quick else TASKS[task][1])]


def _list_work(standard: Mapping[str, Sequence[float]], quick: bool, path: Path) -> Iterator[Work]:
    """Return both searches of each seed in which the standard loss misses η by a little."""
    for task, values in standard.items():
        for seed, g in enumerate(values):
            if NEAR * THRESHOLD <= g < THRESHOLD:
                for admits in (True, False):
                    yield Work(task, seed, g, admits, 3 if quick else TASKS[task][2], quick, path)


def measure_standard(name: str, seed: int) -> float:
    """Return g of the standard loss on the samples of a search with a seed."""
    task = TASKS[name][0](False)
    configuration = Configuration().changed({"seed": seed})
    samples = sample_files.draw_samples(task, configuration.rejection.samples, seed)
    verdict = Evaluator(task, samples, configuration).judge_standard("main")
    assert verdict is not None
    assert verdict.score is not None
    return verdict.score


def search(work: Work) -> dict[str, Any]:
    task = TASKS[work.task][0](work.quick)
    settings = {
        **recipes.get_search_settings(task.name),
        "evaluations": work.budget,
        "rejection.admit_standard": False,
    }
    if work.admits:
        settings["rejection.threshold"] = lower_to(work.g)
    trace = run_search(task, settings, work.seed, Cache(work.path, f"{work.task}, few" if work.quick else work.task))
    last = trace.improvements[-1] if trace.improvements else None
    row = {
        "task": work.task,
        "seed": work.seed,
        "g": work.g,
        "admits": work.admits,
        "found": None if last is None else last.confirmed,
        "loss": None if last is None else last.loss,
        "equivalents": None if last is None else last.equivalents,
        "candidates": trace.candidates,
        "minutes": trace.minutes,
    }
    tell(_describe(row))
    return row


def _describe(row: dict[str, Any]) -> str:
    found = "nothing" if row["found"] is None else f"{row['found']:.3f} after {row['equivalents']:.0f} equivalents"
    how = "admitted" if row["admits"] else "rejected"
    return f"{row['task']}, seed {row['seed']}, g {row['g']:.3f}, {how}: {found}  {row['loss']}"


def _print(result: dict[str, Any]) -> None:
    print(f"Searches in which the standard loss misses η = {result['threshold']:g} by a little")
    for row in result["rows"]:
        print(f"  {_describe(row)}")


if __name__ == "__main__":
    main()
