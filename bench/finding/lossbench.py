"""A table of trained losses: each with its scores at an eighth, a quarter and the whole of a training, and what it says.

python bench/finding/lossbench.py --work DIR/rows.csv --processes 2            appends a row for each loss; the same command goes on
python bench/finding/lossbench.py --work DIR/rows.csv --count 0 --pack         writes them to results/lossbench.csv.gz
python bench/finding/lossbench.py --simulate --out results/lossbench.json      tries proposers and rungs on that table, in seconds

The losses pass the rejection protocol and are drawn as a search draws them: the first at random, later ones half at random and half
as mutations of earlier ones that score well at an eighth of the training. Each is trained at the scale of the standard loss, with
two training seeds; no two have the same gradients. Loss k of a task depends on the losses before it alone, not on the number of
processes or on interruptions. docs/lossbench.md describes the columns and how to use the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache
from typing import Any

from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.chance import derive_generator
from autoloss.proposing.jobs import Attempt, RejectionBatch, Train
from autoloss.proposing.mutation import Kind
from autoloss.proposing.records import Outcome
from autoloss.settings import Configuration
from autoloss.space.loss_text import MAIN, add_factor
from autoloss.training.training import Training
from losschoices import OBSERVED, simulate_task
from losstable import TABLE, LossRow, append_row, read_rows, write_table
from output import Figure, emit, make_parser, make_pool, parse_arguments
from problems import PROBLEMS
from searches import tell

TASKS = ("digits-seg-miou", "tabular-f1", "worst-digit")
SEED = 0
"""Seed of the samples and of everything that is drawn."""
TRAINING_SEEDS = (1, 2)
SHARES = {"eighth": 0.125, "quarter": 0.25, "whole": 1.0}
INITIAL, MUTATED, TOURNAMENT = 20, 0.5, 0.25
"""Losses drawn at random first; share of mutations later; share of the earlier losses among which a parent is found."""
LAG = 4
"""Loss k is drawn from the scores of losses up to k − LAG."""
BATCH = 256
QUICK_TASKS = ["tabular-f1", "worst-digit"]
FIGURES = {
    f"{label}, {task}": Figure(("tasks", {"task": task}, *path))
    for task in QUICK_TASKS
    for label, path in {
        "losses": ("losses",),
        "rank correlation of 1/8 with the whole": ("rank", "eighth"),
        "rank correlation of 1/4 with the whole": ("rank", "quarter"),
        "rank correlation of two training seeds": ("rank", "seeds"),
        f"rank correlation of the model with 1/8, {OBSERVED[0]} observed": (
            "model",
            {"observed": OBSERVED[0]},
            "eighth",
        ),
    }.items()
}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A loss that is to be trained."""

    number: int
    kind: Kind
    parent: int | None
    attempt: Attempt


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__, count=1500, processes=1)
    asked.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="in this order")
    asked.add_argument("--minutes", type=float, help="begin no further loss after this time")
    asked.add_argument("--work", type=Path, help="the file that rows are appended to; without it nothing is kept")
    asked.add_argument("--pack", action="store_true", help=f"write all rows of --work to {TABLE.name} as well")
    asked.add_argument(
        "--simulate", action="store_true", help=f"train nothing, and read {TABLE.name}, or --work if given"
    )
    asked.add_argument(
        "--repeats", type=int, default=20, help="random orders of the losses that simulations average over"
    )
    quick = {"count": OBSERVED[0] + 6, "repeats": 5, "processes": 0, "tasks": QUICK_TASKS}
    arguments = parse_arguments(asked, argv, **quick)
    if arguments.pack and not arguments.work:
        asked.error("--pack needs --work, the file that holds the rows")
    if arguments.simulate:
        rows = read_rows(arguments.work or TABLE)
    else:
        rows = build_table(arguments)
    if arguments.pack:
        write_table(TABLE, rows)
    names = [name for name in arguments.tasks if any(row.task == name for row in rows)]
    found = [simulate_task(name, [row for row in rows if row.task == name], arguments.repeats) for name in names]
    emit({"training_seeds": TRAINING_SEEDS, "shares": SHARES, "tasks": found}, arguments, _print)


def build_table(arguments: Any) -> list[LossRow]:
    """Train the losses that are missing, task after task, and return all rows."""
    end = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    rows = read_rows(arguments.work) if arguments.work else []
    with make_pool(arguments.processes) as pool:
        for task in arguments.tasks:
            table = {row.number: row for row in rows if row.task == task}
            for row in extend_table(task, table, arguments.count, arguments.quick, pool, arguments.processes, end):
                rows.append(row)
                if arguments.work:
                    append_row(arguments.work, row)
                tell(f"{task} {row.number}: {row.eighth_1} {row.quarter_1} {row.whole_1}  {row.formula}")
    return sorted(rows, key=lambda row: (row.task, row.number))


def extend_table(
    task: str, table: dict[int, LossRow], count: int, quick: bool, pool: Any, processes: int, end: float | None
) -> Iterator[LossRow]:
    """Add the losses below `count` that a table lacks, and return each as its trainings end.

    Args:
        table: Number → row; rows are added.
        end: Time of the monotonic clock after which no loss is begun.
    """
    seen = {number: " ".join(row.signature) for number, row in table.items()}
    missing = [number for number in range(count) if number not in table]
    running: dict[Future[LossRow], int] = {}
    while missing or running:
        late = end is not None and time.monotonic() > end
        while missing and not late and len(running) < max(1, processes) + 1 and _is_ready(missing[0], table):
            number = missing.pop(0)
            earlier = {signature for other, signature in seen.items() if other < number}
            drawn = draw_loss(number, table, earlier, make_runner(task, quick))
            seen[number] = " ".join(drawn.attempt.signature)
            running[pool.submit(train_loss, task, quick, drawn)] = number
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            row = future.result()
            table[running.pop(future)] = row
            yield row


def _is_ready(number: int, table: Mapping[int, LossRow]) -> bool:
    return all(other in table for other in range(number - LAG + 1))


@cache
def make_runner(task: str, quick: bool) -> Evaluator:
    """Return the evaluator that draws and trains the losses of a task, at the scale of its standard loss."""
    made = PROBLEMS[task](quick)
    configuration = Configuration(seed=SEED).changed({"search.scale": True})
    samples = draw_samples(made, configuration.rejection.samples, SEED)
    return Evaluator(made, samples, configuration)


def draw_loss(number: int, table: Mapping[int, LossRow], earlier: Iterable[str], runner: Evaluator) -> Drawn:
    """Draw attempts until one passes whose signature no earlier loss has."""
    parent = choose_parent(number, table)
    kind = Kind.FRESH if parent is None else Kind.MUTATION
    first, known = 0, set(earlier)
    while True:
        formula = None if parent is None else parent.formula
        tested = runner.perform(RejectionBatch(number, MAIN, kind.value, formula, first, BATCH))
        assert isinstance(tested, list)
        last = tested[-1]
        if last.reason is None and " ".join(last.signature) not in known:
            return Drawn(number, kind, None if parent is None else parent.number, last)
        first = last.number + 1


def choose_parent(number: int, table: Mapping[int, LossRow]) -> LossRow | None:
    """Return the loss that a loss is a mutation of; None where it is drawn at random."""
    rng = derive_generator(SEED, "lossbench", number)
    scored = [table[other] for other in range(number - LAG + 1) if table[other].eighth_1 is not None]
    if number < INITIAL or not scored or rng.random() >= MUTATED:
        return None
    contestants = rng.sample(scored, max(1, round(TOURNAMENT * len(scored))))
    return max(contestants, key=lambda row: (row.eighth_1 or 0.0, -row.number))


def train_loss(task: str, quick: bool, drawn: Drawn) -> LossRow:
    """Train a loss at every share of the schedule with both seeds, and whole at the scale it was drawn with."""
    attempt = drawn.attempt
    scaled = add_factor(attempt.formula, attempt.factor)
    scores: dict[str, float | None] = {}
    seconds: dict[str, list[float]] = {name: [] for name in SHARES}
    for name, share in SHARES.items():
        for place, seed in enumerate(TRAINING_SEEDS, 1):
            began = time.perf_counter()
            scores[f"{name}_{place}"] = _train(task, quick, scaled, Training(seed=seed, fidelity=share))
            seconds[name].append(time.perf_counter() - began)
    scores["unscaled_1"] = _train(task, quick, attempt.formula, Training(seed=TRAINING_SEEDS[0]))
    assert attempt.score is not None
    return LossRow(
        task=task,
        number=drawn.number,
        kind=drawn.kind.value,
        parent=drawn.parent,
        attempts=attempt.number + 1,
        formula=attempt.formula,
        factor=attempt.factor,
        signature=attempt.signature,
        g=attempt.score,
        gains=attempt.gains,
        size=attempt.formula.count("("),
        **scores,
        **{f"seconds_{name}": round(sum(taken) / len(taken), 3) for name, taken in seconds.items()},
    )


def _train(task: str, quick: bool, loss: str, training: Training) -> float | None:
    outcome = make_runner(task, quick).perform(Train(loss, training))
    assert isinstance(outcome, Outcome)
    return outcome.score


def _print(result: dict[str, Any]) -> None:
    for one in result["tasks"]:
        rank = "  ".join(f"{name} {_format(value)}" for name, value in one["rank"].items())
        print(f"{one['task']}: {one['losses']} losses, {one['diverged']} diverged; rank correlations: {rank}")
        for row in one["model"]:
            if row["whole"] is not None:
                print(
                    f"  model of {row['observed']:>4} losses: ρ with 1/8 {_format(row['eighth'])}, with the whole "
                    f"{_format(row['whole'])}; the best of 4 beats a random one in {_format(row['better'])} of the cases"
                )
        for row in one["rungs"]:
            if best := "  ".join(
                f"{budget}: {value:.3f}" for budget, value in row["found"].items() if value is not None
            ):
                print(f"  rungs {row['rungs']}, promote {row['promote']:g}: score found with a budget of {best}")


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
