"""What the published segmentation losses train: DeepLabv3+ on scenes of real digits in VOC's own files, from scratch.

Each of the six, and cross entropy on the same targets, trains a network for its own metric; all six metrics are measured on
`val`, before and after. `closed` is the share of the gap between the untrained network and 1 that was closed. The scale of a
loss acts like a learning rate, so each has the better of a few, by its own metric on the held-out part of *train*.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

import autoloss
from autoloss import zoo
from autoloss.space.loss import bind
from autoloss.tasks.metrics.segmentation import SEGMENTATION_METRICS
from autoloss.tasks.task import Scored
from machine import machine
from output import emit

METRICS = tuple(SEGMENTATION_METRICS)
COUNT, SIDE = 200, 64
SEED = 0
RATES = (1.0, 3.0)
"""Factors on the learning rate."""


def main() -> None:
    parser = argparse.ArgumentParser(description="What the published losses train on scenes in VOC's files.")
    parser.add_argument("--data", type=Path, help="where the scenes are; made anew when left out")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two metrics, two epochs, one rate: only that it runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    epochs, rates = (2, RATES[:1]) if arguments.quick else (arguments.epochs, RATES)
    metrics = ("miou", "gacc") if arguments.quick else METRICS
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or made(Path(folder))
        jobs = [(metric, loss) for metric in metrics for loss in (f"seg/{metric}", "baseline/ce")]
        with ProcessPoolExecutor(arguments.processes, get_context("spawn")) as pool:
            options = (str(data), epochs, arguments.learning_rate, rates)
            rows = list(pool.map(trained, *zip(*jobs, strict=True), *([option] * len(jobs) for option in options)))
    result = {"machine": machine(), "epochs": epochs, "learning_rate": arguments.learning_rate, "rows": rows}
    emit(result, arguments, _print)


def _print(result: dict[str, Any]) -> None:
    print(
        f"{'loss':<12} {'for':<6} {'untrained':>9} {'trained':>8} {'closed':>7}   "
        + " ".join(f"{m:>6}" for m in METRICS)
    )
    for row in result["rows"]:
        others = " ".join(f"{row['also'].get(metric, float('nan')):6.3f}" for metric in METRICS)
        print(
            f"{row['loss']:<12} {row['metric']:<6} {row['untrained']:9.3f} {row['score']:8.3f} {row['closed']:7.2f}   {others}"
        )


def made(folder: Path) -> Path:
    """Write the scenes; the generator is the tests'."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.tasks.datasets.generated import voc

    voc(folder, count=COUNT, side=SIDE)
    return folder


def trained(
    metric: str, loss: str, data: str, epochs: int, learning_rate: float, rates: tuple[float, ...]
) -> dict[str, Any]:
    """Train with one loss at its better rate; return what it came to, beside the untrained network."""
    torch.set_num_threads(1)
    options = {"backbone": "resnet18", "side": SIDE, "batch_size": 8, "learning_rate": learning_rate}
    task = autoloss.tasks.get("voc-seg", metric=metric, data=data, epochs=epochs, **options)
    criterion = bind(zoo.resolve(loss, task.branches)[1], task.branches)
    tried = {rate: task.at_learning_rate(rate).train(criterion, SEED, split="valid") for rate in rates}
    found = {rate: outcome.score for rate, outcome in tried.items() if isinstance(outcome, Scored)}
    rate = max(found, key=found.__getitem__)
    outcome = task.at_learning_rate(rate).train(criterion, SEED, split="test")
    # One step at a vanishing rate: the untrained network, its batch normalisation fed as everywhere.
    still = autoloss.tasks.get("voc-seg", metric=metric, data=data, epochs=1, **{**options, "learning_rate": 1e-12})
    untrained = still.train(criterion, SEED, split="test")
    assert isinstance(outcome, Scored)
    assert isinstance(untrained, Scored)
    closed = (outcome.score - untrained.score) / (1 - untrained.score)
    figures = {"untrained": untrained.score, "score": outcome.score, "closed": closed, "rate": rate}
    return {"loss": loss, "metric": metric, **figures, "also": dict(outcome.also)}


if __name__ == "__main__":
    main()
