"""The published segmentation losses on real samples: g of each on its own metric (Section 3.2), and the score of a training.

Rows {loss, metric, g, g_relative, score}: g is the protocol's correlation score in the metric's unit, on samples of an untrained
network on digits-seg; score is the metric on the valid split after one proxy training. Cross entropy stands beside each, and every
loss negated must fail. With --voc the samples are the paper's: a real DeepLabv3+ (ResNet-50, 21 classes, 128×128), untrained, on
scenes that are generated in VOC's format; nothing is trained there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence

import torch

import autoloss
from autoloss.rejection.engines import ENGINES
from autoloss.rejection.protocol import measure_reference
from autoloss.settings import ProtocolSettings
from autoloss.space.expression import build
from autoloss.tasks.task import Task
from autoloss.training.training import Scored, Training
from output import Figure, emit, make_parser, parse_arguments

METRICS = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")
CROSS_ENTROPY = "baseline/ce"
SCENES = 40
FIGURES = {
    "mIoU: g": Figure(("rows", {"loss": "seg/miou"}, "g"), digits=3),
    "mIoU: g of −L": Figure(("rows", {"loss": "seg/miou"}, "g_negated"), digits=3),
    "mIoU: score": Figure(("rows", {"loss": "seg/miou"}, "score"), digits=4),
    "mIoU: score of cross entropy": Figure(("rows", {"loss": "baseline/ce", "metric": "miou"}, "score"), digits=4),
    "BF1: g": Figure(("rows", {"loss": "seg/bf1"}, "g"), digits=3),
    "BF1: score": Figure(("rows", {"loss": "seg/bf1"}, "score"), digits=4),
}
COLUMNS = {
    "initial": ("ξ₀", 3),
    "g": ("g", 3),
    "g_relative": ("g rel.", 3),
    "g_negated": ("−L: g", 3),
    "score": ("score", 4),
}
"""Figure of a row → its title, and its digits."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=METRICS)
    parser.add_argument("--samples", type=int, default=5, help="B of the protocol")
    parser.add_argument("--steps", type=int, default=ProtocolSettings().steps, help="T of the protocol")
    parser.add_argument("--untrained", action="store_true", help="train nothing")
    parser.add_argument("--engine", choices=("reference", "fast"), default="reference")
    parser.add_argument("--voc", action="store_true", help="samples of DeepLabv3+ at the paper's size; half an hour")
    arguments = parse_arguments(parser, argv, metrics=["miou", "bf1"], samples=2)
    torch.set_num_threads(1)
    name = "voc-seg" if arguments.voc else "digits-seg"
    with tempfile.TemporaryDirectory() as place:
        options = {"data": str(_scenes(Path(place)))} if arguments.voc else {}
        rows = []
        for metric in arguments.metrics:
            for row in _rows(autoloss.tasks.get(name, metric, **options), metric, arguments):
                rows.append(row)
                if not arguments.json:
                    print(_line(row, header=len(rows) == 1), flush=True)
    result = {"task": name, "engine": arguments.engine, "rows": rows}
    # The rows were printed one by one: the reference takes a while for each.
    emit(result, arguments, lambda result: None)


def _line(row: dict, header: bool) -> str:
    figures = "".join(
        f"{'–' if row[name] is None else format(row[name], f'.{digits}f'):>8}" for name, (_, digits) in COLUMNS.items()
    )
    titles = "".join(f"{title:>8}" for title, _ in COLUMNS.values())
    return (f"{'loss':<14}{'metric':<8}{titles}\n" if header else "") + f"{row['loss']:<14}{row['metric']:<8}{figures}"


def _scenes(place: Path) -> Path:
    """Write scenes of VOC's format, as large as the paper's proxy, with the tests' generator."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.tasks.segmentation.generated import voc

    # The small copy of the images goes with them.
    os.environ["AUTOLOSS_CACHE"] = str(place / "cache")
    return voc(place, count=SCENES, side=128)


def _rows(task: Task, metric: str, arguments: argparse.Namespace) -> Iterator[dict]:
    train, negate = not (arguments.untrained or arguments.voc), not arguments.voc
    branch = task.branches["main"]
    reference = measure_reference(branch, task.samples(arguments.samples, seed=0)["main"])
    settings = ProtocolSettings(unit="absolute", steps=arguments.steps, engine=arguments.engine)
    engine = ENGINES[settings.engine](branch, reference, settings)
    for name in (f"seg/{metric}", CROSS_ENTROPY):
        tree = autoloss.zoo.get(name)["main"]
        (verdict,) = engine.verdicts([tree])
        negated = engine.verdicts([build("neg", tree)])[0].score if negate else None
        outcome = task.train(autoloss.bind({"main": tree}, task.branches), Training(seed=0)) if train else None
        yield {
            "loss": name,
            "metric": metric,
            "initial": sum(reference.initial) / len(reference.initial),
            "gains": verdict.gains,
            "reason": verdict.reason and verdict.reason.value,
            "g": verdict.score,
            "g_relative": reference.score(verdict.gains, "relative") if verdict.gains else None,
            "g_negated": negated,
            "score": outcome.score if isinstance(outcome, Scored) else None,
        }


if __name__ == "__main__":
    main()
