"""Searches compared with random search and the baselines, all measured on the test split.

python bench/finding/audit.py --out results/audit.json

For each task: searches with several seeds, with the settings of small tasks and with the paper's, and as many random searches,
which train the same number of losses. The winner of each, selected by new training seeds on the valid split, and every baseline
that fits, at its tuned learning rate, are trained with new seeds and measured on the test split. What is finished is kept in a
work folder: the same command continues where it was interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import csv
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import autoloss
from autoloss.comparison.baselines import baselines, tune_learning_rates
from autoloss.comparison.entrant import TEST, Entrant, training_seeds
from autoloss.comparison.record import Record, compare_losses
from autoloss.comparison.table import Measurements, Row
from autoloss.errors import RequestError
from autoloss.evaluation.dispatch import Dispatcher
from autoloss.evaluation.evaluator import Evaluator
from autoloss.evaluation.machines import Machines, start_workers
from autoloss.proposing.jobs import Train
from autoloss.proposing.records import Outcome
from autoloss.settings import Configuration
from autoloss.store.lock import Ownership
from autoloss.store.store import Store
from digits import FEW
from output import Figure, emit, parse_arguments
from searches import ARMS, EVOLUTION, make_search_parser, searched, tell

FRESH_SEEDS = 5
"""Trainings of each winner and of each baseline on the test split."""
QUICK: Mapping[str, Mapping[str, Any]] = {"digits-seg": FEW, "tabular": {"steps": 20}}
QUICK_SEARCH = {"final.confirm": 2, "final.confirm_seeds": 1, "evolution.initial": 2, "evolution.lag": 1}
TASKS = "digits-seg:miou,tabular:f1:data=breast_cancer_hard"
FIGURES = {
    "digits-seg: evolution": Figure(("rows", {"method": "evolution, over searches"}, "mean"), digits=3),
    "digits-seg: random search": Figure(("rows", {"method": "random search, over searches"}, "mean"), digits=3),
    "digits-seg: Auto-Seg-Loss": Figure(("rows", {"loss": "baseline/asl_miou"}, "mean"), digits=3),
    "digits-seg: Dice": Figure(("rows", {"loss": "baseline/dice"}, "mean"), digits=3),
}
COLUMNS = ("task", "method", "search_seed", "loss", "mean", "interval", "n", "scores", "reasons")


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _arguments(argv)
    with tempfile.TemporaryDirectory() as folder:
        # A quick run starts anew: it shall say whether the script works now.
        work = arguments.work or (Path(folder) if arguments.quick else Path("runs") / "audit")
        rows = [row for spec in arguments.tasks.split(",") for row in _audited(spec.strip(), work, arguments)]
    sizes = {name: vars(arguments)[name] for name in ("evaluations", "seeds", "test_seeds")}
    result = {**sizes, "rows": rows}
    if arguments.out and arguments.out.suffix == ".csv":
        arguments.out.write_text(_table(rows))
        arguments.out = None
    emit(result, arguments, _print)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    asked = make_search_parser(__doc__, evaluations=100, seeds=3)
    asked.add_argument("--tasks", default=TASKS, help="name:metric[:option=value…], with commas between tasks")
    asked.add_argument("--test-seeds", type=int, default=FRESH_SEEDS, help="trainings of each loss on the test split")
    asked.add_argument("--work", type=Path, help="the folder that keeps what is finished; runs/audit by default")
    # Without workers: starting them would take most of the time.
    return parse_arguments(asked, argv, evaluations=4, seeds=1, test_seeds=2, workers=0)


def _audited(spec: str, work: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    task, metric = _task(spec, arguments.quick)
    folder = work / spec.replace(":", "-")
    settings = {"final.compare": 0, **(QUICK_SEARCH if arguments.quick else {})}
    winners = []
    for seed in range(arguments.seeds):
        for arm in (EVOLUTION, *ARMS):
            directory = folder / f"{arm.replace(' ', '-')}-seed{seed}"
            found = searched(task, arm, seed, directory, arguments, settings=settings)
            winners.append((arm, seed, Entrant(f"{arm}, seed {seed}", found.best.formula)))
    rivals, tested = _tested(task, metric, [entrant for *_, entrant in winners], folder / "test", arguments)
    by_entrant = {row.entrant: row for row in tested}
    rows = [_row(spec, arm, seed, *_loss_and_scores(by_entrant[entrant])) for arm, seed, entrant in winners]
    for arm in (EVOLUTION, *ARMS):
        means = Measurements(tuple(row["mean"] for row in rows if row["method"] == arm))
        rows.append(_row(spec, f"{arm}, over searches", None, "", means))
    return rows + [_row(spec, entrant.label, None, *_loss_and_scores(by_entrant[entrant])) for entrant in rivals]


def _task(spec: str, quick: bool) -> tuple[autoloss.Task, str]:
    name, *rest = spec.split(":")
    if not rest or any("=" not in option for option in rest[1:]):
        raise RequestError(f"--tasks takes name:metric[:option=value…], like digits-seg:miou; found {spec!r}.")
    options = dict(option.split("=", 1) for option in rest[1:])
    return autoloss.tasks.get(name, metric=rest[0], **{**(QUICK.get(name, {}) if quick else {}), **options}), rest[0]


class Told(Record):
    """A record whose trainings are printed as they end."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store)
        self._name = name

    def add(self, job: Train, outcome: Outcome) -> None:
        super().add(job, outcome)
        result = outcome.state.value if outcome.score is None else f"{outcome.score:.4f}"
        tell(f"{self._name}, {job.training.split}, {job.loss} × {job.training.learning_rate:g}: {result}")


def _tested(
    task: autoloss.Task, metric: str, winners: Sequence[Entrant], folder: Path, arguments: argparse.Namespace
) -> tuple[list[Entrant], list[Row]]:
    """Tune the baselines, then train all on the same new training seeds and measure them on the test split."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = Ownership(folder)
    configuration = Configuration()
    try:
        with (
            Store(folder, write=True) as store,
            start_workers(Evaluator(task, {}, configuration), Machines(workers=arguments.workers)) as pool,
        ):
            dispatcher, record = Dispatcher(pool, configuration.limits), Told(store, task.name)
            tuned = tune_learning_rates(baselines(task, every=True), task, 0, dispatcher, record)
            rivals = [row.entrant for row in tuned]
            seeds = training_seeds(0, "audit", arguments.test_seeds)
            return rivals, compare_losses([*winners, *rivals], seeds, TEST, dispatcher, record)
    finally:
        owner.close()


def _loss_and_scores(row: Row) -> tuple[str, Measurements, tuple[str, ...]]:
    return row.entrant.loss, row.score, row.reasons


def _row(
    task: str, method: str, seed: int | None, loss: str, scores: Measurements, reasons: tuple[str, ...] = ()
) -> dict[str, Any]:
    values = (task, method, seed, loss, scores.mean, scores.interval, len(scores.values), scores.values, reasons)
    return dict(zip(COLUMNS, values, strict=True))


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    writer.writerows(_cells(row) for row in rows)
    return text.getvalue()


def _cells(row: Mapping[str, Any]) -> Iterator[Any]:
    for name in COLUMNS:
        value = row[name]
        yield "; ".join(map(str, value)) if isinstance(value, tuple) else value


def _print(result: dict[str, Any]) -> None:
    task = None
    for row in result["rows"]:
        if row["task"] != task:
            task = row["task"]
            print(f"{task}: test split, mean and half of its 95 % interval")
        seed = "" if row["search_seed"] is None else f", seed {row['search_seed']}"
        mean, interval = ("–" if value is None else f"{value:.4f}" for value in (row["mean"], row["interval"]))
        print(f"  {row['method'] + seed:<34} {mean:>7} ± {interval:<7} n = {row['n']}  {row['loss']}")


if __name__ == "__main__":
    main()
