"""Scores of DeepLabv3+ trained from scratch with the published segmentation losses, on files in VOC's format.

Each of the six losses trains a network for its own metric, and cross entropy another; all six metrics are measured on `val`,
before and after. `closed` is the share of the gap between the untrained network and 1 that was closed. The network starts from
random weights, so it is trained with Adam: a step of Adam does not depend on the scale of a loss, and no rate has to be tuned.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import tempfile
from collections.abc import Sequence
from typing import Any

import torch

import autoloss
from autoloss import zoo
from autoloss.space.loss import bind
from autoloss.tasks.segmentation.metrics import SEGMENTATION_METRICS
from autoloss.training.training import Scored, Training
from output import Figure, emit, make_parser, make_pool, parse_arguments

METRICS = tuple(SEGMENTATION_METRICS)
SIDE = 64
SEED = 0
FIGURES = {
    "untrained: mIoU": Figure(("untrained", "miou"), digits=3),
    "cross entropy: gap closed": Figure(("rows", {"loss": "baseline/ce"}, "closed"), digits=0, percent=True),
    "mIoU loss: gap closed": Figure(("rows", {"loss": "seg/miou"}, "closed"), digits=0, percent=True),
}
OPTIONS = {
    "backbone": "resnet18",
    "side": SIDE,
    "batch_size": 8,
    "optimizer": "adam",
    "head_factor": 1.0,
    "weight_decay": 0.0,
}
"""Other differences from the paper's proxy."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, help="a folder with the scenes; they are generated when left out")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--scenes", type=int, default=200, help="images to generate")
    parser.add_argument("--metrics", nargs="*", choices=METRICS, default=METRICS, help="the published losses")
    arguments = parse_arguments(parser, argv, epochs=2, metrics=["miou"])
    epochs = arguments.epochs
    losses = [("baseline/ce", "miou"), *((f"seg/{metric}", metric) for metric in arguments.metrics)]
    with tempfile.TemporaryDirectory() as folder:
        data = arguments.data or made(Path(folder), arguments.scenes)
        with make_pool(arguments.processes) as pool:
            before = pool.submit(figures, "baseline/ce", "miou", str(data), 1, 1e-12)
            after = [pool.submit(figures, *loss, str(data), epochs, arguments.learning_rate) for loss in losses]
            untrained = before.result()
            rows = [
                row(loss, metric, untrained, trained.result())
                for (loss, metric), trained in zip(losses, after, strict=True)
            ]
    settings = {"epochs": epochs, "learning_rate": arguments.learning_rate, **OPTIONS}
    emit({**settings, "untrained": untrained, "rows": rows}, arguments, _print)


def row(loss: str, metric: str, untrained: dict[str, float], trained: dict[str, float]) -> dict[str, Any]:
    closed = (trained[metric] - untrained[metric]) / (1 - untrained[metric])
    return {"loss": loss, "metric": metric, "score": trained[metric], "closed": closed, "also": trained}


def _print(result: dict[str, Any]) -> None:
    print(f"{'loss':<12} {'for':<6} {'closed':>7}   " + " ".join(f"{metric:>6}" for metric in METRICS))
    print(_line("untrained", "", "", result["untrained"]))
    for found in result["rows"]:
        print(_line(found["loss"], found["metric"], f"{found['closed']:.2f}", found["also"]))


def _line(loss: str, metric: str, closed: str, values: dict[str, float]) -> str:
    return f"{loss:<12} {metric:<6} {closed:>7}   " + " ".join(f"{values[name]:6.3f}" for name in METRICS)


def made(folder: Path, count: int) -> Path:
    """Write the scenes; the generator is the tests'."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.tasks.segmentation.generated import voc

    voc(folder, count=count, side=SIDE)
    return folder


def figures(loss: str, metric: str, data: str, epochs: int, learning_rate: float) -> dict[str, float]:
    """Train with one loss and return all six metrics on val. At a vanishing rate this is the untrained network."""
    torch.set_num_threads(1)
    options = {**OPTIONS, "epochs": epochs, "learning_rate": learning_rate}
    task = autoloss.tasks.get("voc-seg", metric=metric, data=data, **options)
    criterion = bind(zoo.resolve(loss, task.branches)[1], task.branches)
    outcome = task.train(criterion, Training(seed=SEED, split="test"))
    assert isinstance(outcome, Scored), outcome
    return dict(outcome.also)


if __name__ == "__main__":
    main()
