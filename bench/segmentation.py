"""The published segmentation losses on real samples: g of each on its own metric (Section 3.2), and what training with it reaches.

Rows {loss, metric, g, g_relative, score}: g is the protocol's correlation score in the metric's unit, on samples of an untrained
network on digits-seg; score is the metric on the valid split after one proxy training. Cross entropy stands beside each, and every
loss negated must fail. With --voc the samples are the paper's: a real DeepLabv3+ (ResNet-50, 21 classes, 128×128), untrained, on
scenes that are generated in VOC's format; nothing is trained there.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import autoloss
from autoloss.rejection.compiled.engine import Engine
from autoloss.rejection.protocol import Reference, Verdict, measure_reference, simulate
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch
from autoloss.space.expression import Expression, build
from autoloss.tasks.task import Scored, Task, Training
from machine import machine
from output import emit

METRICS = ("miou", "fwiou", "gacc", "macc", "biou", "bf1")
CROSS_ENTROPY = "baseline/ce"
SCENES = 40
COLUMNS = {
    "initial": ("ξ₀", 3),
    "g": ("g", 3),
    "g_relative": ("g rel.", 3),
    "g_negated": ("−L: g", 3),
    "score": ("score", 4),
}
"""Figure of a row → its title, and its digits."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two metrics, no training")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=("reference", "fast"), default="reference")
    parser.add_argument("--voc", action="store_true", help="samples of DeepLabv3+ at the paper's size; half an hour")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    metrics = METRICS[::5] if arguments.quick else METRICS
    name = "voc-seg" if arguments.voc else "digits-seg"
    with tempfile.TemporaryDirectory() as place:
        options = {"data": str(_scenes(Path(place)))} if arguments.voc else {}
        rows = []
        for metric in metrics:
            for row in _rows(autoloss.tasks.get(name, metric, **options), metric, arguments):
                rows.append(row)
                if not arguments.json:
                    print(_line(row, header=len(rows) == 1), flush=True)
    result = {"machine": machine(), "task": name, "engine": arguments.engine, "rows": rows}
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
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.tasks.segmentation.generated import voc

    # The small copy of the images goes with them.
    os.environ["AUTOLOSS_CACHE"] = str(place / "cache")
    return voc(place, count=SCENES, side=128)


def _rows(task: Task, metric: str, arguments: argparse.Namespace) -> Iterator[dict]:
    train, negate = not (arguments.quick or arguments.voc), not arguments.voc
    branch = task.branches["main"]
    reference = measure_reference(branch, task.samples(5, seed=0)["main"])
    settings = ProtocolSettings(unit="absolute")
    judge = _judge(branch, reference, settings, arguments.engine)
    for name in (f"seg/{metric}", CROSS_ENTROPY):
        tree = autoloss.zoo.get(name)["main"]
        verdict = judge(tree)
        negated = judge(build("neg", tree)).score if negate else None
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


def _judge(
    branch: Branch, reference: Reference, settings: ProtocolSettings, engine: str
) -> Callable[[Expression], Verdict]:
    if engine == "fast":
        return Engine(branch, reference, settings).verdict
    return lambda tree: simulate(tree, branch, reference, settings)


if __name__ == "__main__":
    main()
