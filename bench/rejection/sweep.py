"""Growth of the cost of rejecting a loss: with the size of images, their classes, the rows of a table, and the processes at work.

Each cost is the least processor time of several repetitions, summed over three losses: an element-wise one, one with a mean, one
with a pool. A slope is that of the logarithm of the cost over the logarithm of the size: 1 where twice the size costs twice the
time. For processes it is that of the losses explored per minute by the wall clock: 1 where two explore twice as many.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from autoloss.rejection.compiled.engine import CompiledEngine
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Sample
from autoloss.space.expression import Expression
from autoloss.space.parsing import parse
from output import Figure, emit, make_parser, make_pool, parse_arguments
from rejection import CLASSES, SAMPLES, SEED, SIDE, make_engine, measure_explored, scenes, start

LOSSES = ("-y * log(p)", "y * mean_nhw(exp(-p))", "inv(y + max_pool(p) + 1)")
STEPS = 20
TABLE_CLASSES = 3
COSTS = ("gradient_ms", "step_ms")
FIGURES = {
    f"{axis}: slope of {label}": Figure(("slopes", axis, cost), digits=1)
    for axis in ("side", "classes", "rows")
    for cost, label in zip(COSTS, ("the gradient", "a step"), strict=True)
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, drawn=4000, repeats=15)
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64, 128], help="of images of 21 classes")
    parser.add_argument("--classes", type=int, nargs="+", default=[5, 21, 80], help="of images of 32×32")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 128, 512, 2048], help="of a table of 3 classes")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2, 4], help="processes that explore at once")
    arguments = parse_arguments(parser, argv, drawn=500, repeats=5)
    torch.set_num_threads(1)
    axes: dict[str, tuple[Sequence[int], Callable[[int], CompiledEngine]]] = {
        "side": (arguments.sides, lambda side: scenes(side, CLASSES)),
        "classes": (arguments.classes, lambda classes: scenes(SIDE, classes)),
        "rows": (arguments.rows, make_table),
    }
    rows = [
        {"axis": axis, "size": size, **measure(make(size), arguments.repeats)}
        for axis, (sizes, make) in axes.items()
        for size in sizes
    ]
    rows += [measure_workers(count, arguments) for count in arguments.workers]
    slopes = {axis: fit_slopes([row for row in rows if row["axis"] == axis]) for axis in (*axes, "workers")}
    emit({"cores": os.cpu_count(), "rows": rows, "slopes": slopes}, arguments, _print)


def make_table(rows: int) -> CompiledEngine:
    """Return the engine on rows of a table with random classes and logits; the metric is the accuracy."""
    generator = torch.Generator().manual_seed(SEED)
    samples = [
        Sample(
            0.3 * torch.randn(rows, TABLE_CLASSES, generator=generator),
            {"target": torch.randint(TABLE_CLASSES, (rows,), generator=generator)},
        )
        for _ in range(SAMPLES)
    ]
    return make_engine(
        ActivatedBranch(measure=lambda p, y: float((p.argmax(1) == y).float().mean()), channels=TABLE_CLASSES), samples
    )


def measure(engine: CompiledEngine, repeats: int) -> dict[str, float]:
    """Return the milliseconds of a gradient and of a step of all samples, and of the metric of one, each summed over the losses."""
    found: dict[str, float] = dict.fromkeys((*COSTS, "metric_ms"), 0.0)
    for tree in map(parse, LOSSES):
        found["gradient_ms"] += _least(lambda tree=tree: engine.gradients([tree]), repeats)
        short, long = (
            _least(lambda tree=tree, steps=steps: descend(engine, tree, steps), repeats) for steps in (1, 1 + STEPS)
        )
        found["step_ms"] += max(long - short, 0.0) / STEPS
        descent = engine.start_descent(tree)
        descent.advance(0, 1)
        found["metric_ms"] += _least(lambda descent=descent: descent.gain(0), repeats)
    return found


def descend(engine: CompiledEngine, tree: Expression, steps: int) -> None:
    descent = engine.start_descent(tree)
    for sample in range(SAMPLES):
        descent.advance(sample, steps)


def _least(action: Callable[[], object], repeats: int) -> float:
    action()
    spent: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        action()
        spent.append(time.process_time() - began)
    return 1000 * min(spent)


def measure_workers(count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Explore with so many processes at once, each with as many draws."""
    with make_pool(count, start) as pool:
        list(pool.map(abs, range(count)))
        found = measure_explored(pool, arguments.drawn * count, count)
    return {"axis": "workers", "size": count, "explored_per_minute_wall": found["explored_per_minute_wall"]}


def fit_slopes(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the slope of each column of numbers over the size, both as logarithms, by least squares."""
    if len(rows) < 2:
        return {}
    sizes = [math.log(row["size"]) for row in rows]
    middle = sum(sizes) / len(sizes)
    spread = sum((size - middle) ** 2 for size in sizes)
    return {
        name: sum((size - middle) * math.log(max(row[name], 1e-9)) for size, row in zip(sizes, rows, strict=True))
        / spread
        for name in rows[0]
        if name not in ("axis", "size")
    }


def _print(result: dict[str, Any]) -> None:
    for row in result["rows"]:
        values = ", ".join(f"{name} {value:.4g}" for name, value in row.items() if name not in ("axis", "size"))
        print(f"{row['axis']:<8} {row['size']:>5}  {values}")
    for axis, slopes in result["slopes"].items():
        print(f"slope over {axis}: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items()))


if __name__ == "__main__":
    main()
