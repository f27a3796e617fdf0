"""A table of trained losses: each with its scores at an eighth, a quarter and the whole of a training, and what it says.

python bench/finding/lossbench.py --work DIR/rows.csv --processes 2            appends a row for each loss; the same command goes on
python bench/finding/lossbench.py --work DIR/rows.csv --count 0 --pack         writes them to results/lossbench.csv.gz
python bench/finding/lossbench.py --simulate --out results/lossbench.json      tries proposers and rungs on that table, in seconds

The losses pass the rejection protocol and are drawn as a search draws them: first the standard loss and the shelf, then a third at
random and the others as mutations, sums and refinements of earlier ones that score well at an eighth of the training. Each is
trained as a search trains by default: every step has a gradient of norm 1, at the rate that the ladder finds best for the standard
loss. No two losses of a task have gradients of one direction. Loss k of a task depends on the losses before it alone, not on the
number of processes or on interruptions. docs/lossbench.md describes the columns and how to use the table.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import autoloss
from autoloss import recipes
from autoloss.evaluation.adapting import adapt
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.proposing.chance import derive_generator
from autoloss.proposing.mutation import Kind, draw_kind, resolve_kind
from autoloss.proposing.records import Attempt, Outcome, RejectionBatch, Train
from autoloss.run.resolving import operator_table
from autoloss.run.starting_losses import name_losses, parse_starting_losses
from autoloss.settings import Configuration, OffspringSettings, StepRule
from autoloss.space.loss_text import MAIN
from autoloss.space.numerals import add_texts
from awaytasks import BY_NAME
from losschoices import OBSERVED, simulate_task
from losstable import TABLE, LossRow, append_row, read_rows, write_table
from output import Figure, emit, make_parser, make_pool, parse_arguments
from problems import PROBLEMS
from searches import tell

OWN_TASKS = ("digits-seg-miou", "tabular-f1", "worst-digit")
TASKS = (*OWN_TASKS, *(name for name, task in BY_NAME.items() if task.part == "known"))
SEED = 0
"""Seed of the samples and of everything that is drawn."""
TRAINING_SEEDS = (1, 2)
TRAININGS = {"eighth_1": (0.125, 1), "quarter_1": (0.25, 1), "whole_1": (1.0, 1), "whole_2": (1.0, 2)}
"""Column → share of the schedule and training seed."""
OFFSPRING = OffspringSettings(copy=0.0, fresh=1 / 3, sum=0.35, refine=0.25)
TOURNAMENT = 0.25
"""Share of the earlier losses among which a parent is found."""
LADDER = 24
"""Training equivalents of the ladder that finds the rate."""
LAG = 4
"""Loss k is drawn from the scores of losses up to k − LAG."""
ROUND = 20
"""Losses of one task before the next task has its turn."""
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
    asked = make_parser(__doc__, count=400, processes=1)
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
    emit({"training_seeds": TRAINING_SEEDS, "trainings": TRAININGS, "tasks": found}, arguments, _print)


def build_table(arguments: Any) -> list[LossRow]:
    """Train the losses that are missing, task after task, and return all rows."""
    end = None if arguments.minutes is None else time.monotonic() + 60 * arguments.minutes
    rows = read_rows(arguments.work) if arguments.work else []
    tables = {task: {row.number: row for row in rows if row.task == task} for task in arguments.tasks}
    rounds = [*range(ROUND, arguments.count, ROUND), arguments.count]
    with make_pool(arguments.processes) as pool:
        for count, task in itertools.product(rounds, arguments.tasks):
            for row in extend_table(task, tables[task], count, arguments.quick, pool, arguments.processes, end):
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
    rate = table[min(table)].learning_rate if table else None
    while missing or running:
        late = end is not None and time.monotonic() > end
        while missing and not late and len(running) < max(1, processes) + 1 and _is_ready(missing[0], table):
            number = missing.pop(0)
            rate = rate or find_rate(task, quick)
            earlier = {signature for other, signature in seen.items() if other < number}
            drawn = draw_loss(number, table, earlier, make_runner(task, quick, rate))
            seen[number] = " ".join(drawn.attempt.signature)
            running[pool.submit(train_loss, task, quick, rate, drawn)] = number
        if not running:
            return
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            row = future.result()
            table[running.pop(future)] = row
            yield row


def _is_ready(number: int, table: Mapping[int, LossRow]) -> bool:
    return all(other in table for other in range(number - LAG + 1))


def make_task(name: str, quick: bool) -> autoloss.Task:
    """Return a task of the table, with few steps if told so."""
    return PROBLEMS[name](quick) if name in PROBLEMS else BY_NAME[name].make(steps_share=0.2 if quick else 1.0)


def find_rate(task: str, quick: bool) -> float:
    """Return the factor on the learning rate at which the standard loss is best under the rule of the candidates' steps."""
    made = make_task(task, quick)
    ladder = autoloss.tune(made, trainings=4 if quick else LADDER, seed=SEED, workers=0)
    tried = (rung.entrant for rung in ladder.rungs)
    rates = (one.learning_rate for one in tried if one.step_rule == find_rule(made) and one.length == 1)
    return next(rates, 1.0)


def find_rule(task: autoloss.Task) -> StepRule:
    """Return how gradients become steps: scaled to norm 1, but where an optimizer does that already."""
    return "one_norm" if "one_norm" in task.step_rules else "recipe"


@cache
def make_runner(task: str, quick: bool, rate: float) -> Evaluator:
    """Return the evaluator that draws and trains the losses of a task, with the settings of a search."""
    made = make_task(task, quick)
    settings = {**recipes.get_search_settings(made.name), "evolution.start": (), "search.rungs": (1.0,)}
    rule = find_rule(made)
    training = {"search.step_rule": rule, "search.learning_rate": rate, "search.direction": rule == "one_norm"}
    configuration = Configuration(seed=SEED).changed({**settings, **training})
    evaluator = Evaluator(made, draw_samples(made, configuration.rejection.samples, SEED), configuration)
    return adapt(evaluator, tell)


def draw_loss(number: int, table: Mapping[int, LossRow], earlier: Iterable[str], runner: Evaluator) -> Drawn:
    """Draw attempts until one passes whose signature no earlier loss has."""
    kind, parent, formula = choose_kind(number, table, runner.task)
    first, known, evolution = 0, set(earlier), runner.configuration.evolution
    while True:
        tested = runner.perform(RejectionBatch(number, MAIN, kind.value, formula, first, BATCH))
        assert isinstance(tested, list)
        last = tested[-1]
        if last.reason is None and " ".join(last.signature) not in known:
            return Drawn(
                number,
                resolve_kind(kind, last.number, evolution, has_parent=formula is not None),
                None if parent is None else parent.number,
                last,
            )
        first = last.number + 1


def choose_kind(
    number: int, table: Mapping[int, LossRow], task: autoloss.Task
) -> tuple[Kind, LossRow | None, str | None]:
    """Return how a loss is drawn, its parent, and what it is drawn from."""
    known, _ = parse_starting_losses(name_losses(["shelf"]), task, operator_table(()), ROUND)
    if number < len(known):
        return Kind.START, None, str(list(known)[number])
    rng = derive_generator(SEED, "lossbench", number)
    kind = draw_kind(OFFSPRING, rng)
    scored = [table[other] for other in range(number - LAG + 1) if table[other].eighth_1 is not None]
    if kind is Kind.FRESH or not scored:
        return Kind.FRESH, None, None
    parent, partner = (_hold_tournament(scored, rng) for _ in range(2))
    if kind is not Kind.SUM or partner is parent:
        return Kind.MUTATION if kind is Kind.SUM else kind, parent, parent.formula
    return kind, parent, add_texts(parent.formula, partner.formula, partner.factor / parent.factor)


def _hold_tournament(scored: Sequence[LossRow], rng: Random) -> LossRow:
    contestants = rng.sample(scored, max(1, round(TOURNAMENT * len(scored))))
    return max(contestants, key=lambda row: (row.eighth_1 or 0.0, -row.number))


def train_loss(task: str, quick: bool, rate: float, drawn: Drawn) -> LossRow:
    """Train a loss at every share of the schedule, and whole with both seeds."""
    attempt = drawn.attempt
    scores: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    for name, (share, seed) in TRAININGS.items():
        began = time.perf_counter()
        scores[name] = _train(make_runner(task, quick, rate), attempt.formula, seed, share)
        seconds[name] = round(time.perf_counter() - began, 3)
    assert attempt.score is not None
    return LossRow(
        task=task,
        number=drawn.number,
        kind=drawn.kind.value,
        parent=drawn.parent,
        attempts=attempt.number + 1,
        formula=attempt.formula,
        factor=attempt.factor,
        learning_rate=rate,
        signature=attempt.signature,
        g=attempt.score,
        gains=attempt.gains,
        size=attempt.formula.count("("),
        **scores,
        **{f"seconds_{name}": seconds[f"{name}_1"] for name in ("eighth", "quarter", "whole")},
    )


def _train(runner: Evaluator, loss: str, seed: int, share: float) -> float | None:
    training = dataclasses.replace(runner.make_training(share), seed=seed)
    outcome = runner.perform(Train(loss, training))
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
