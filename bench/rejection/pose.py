"""Which losses of pose estimation pass the rejection protocol, on heatmaps of an untrained SimpleBaseline.

Samples come from the paper's network with a ResNet-50, 256×192 pixels to 64×48 cells, on drawn figures. For the published formula,
the standard loss, and their negations, the table holds g, relative and absolute, and the means of ξ₀ and ξ_best.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import torch

from autoloss import zoo
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.reference import ReferenceEngine
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Sample
from autoloss.space.parsing import parse
from autoloss.tasks.pose.figures import compose_figures
from autoloss.tasks.pose.heatmaps import HeatmapBranch, simple_baseline
from autoloss.tasks.pose.metrics import share_of_thresholds
from autoloss.tasks.pose.task import PoseTask
from output import Figure, emit, make_parser, parse_arguments

SEED = 0
BRANCH = "main"
LOSSES = ("pose/oks", "baseline/mse")
SCENES = (320, (120, 280))
FIGURES = {
    "ξ₀": Figure(("rows", {"loss": "pose/oks"}, "initial"), digits=3),
    "ξ_best": Figure(("rows", {"loss": "pose/oks"}, "best"), digits=3),
    "published: g relative": Figure(("rows", {"loss": "pose/oks"}, "g"), digits=3),
    "published: g absolute": Figure(("rows", {"loss": "pose/oks"}, "g_absolute"), digits=3),
    "MSE: g relative": Figure(("rows", {"loss": "baseline/mse"}, "g"), digits=3),
    "MSE: g of −L": Figure(("rows", {"loss": "−(baseline/mse)"}, "g"), digits=3),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=ProtocolSettings().samples, help="B of the protocol")
    parser.add_argument("--steps", type=int, default=ProtocolSettings().steps, help="T of the protocol")
    parser.add_argument("--backbone", default="resnet50")
    arguments = parse_arguments(parser, argv, samples=2, backbone="resnet18")
    torch.set_num_threads(1)
    began = time.monotonic()
    samples = draw_samples(arguments.backbone, arguments.samples)
    result = {
        "samples": arguments.samples,
        "backbone": arguments.backbone,
        "rows": measure(samples, arguments.steps),
        "seconds": round(time.monotonic() - began, 1),
    }
    emit(result, arguments, _print)


def draw_samples(backbone: str, count: int) -> Sequence[Sample]:
    """Return samples of an untrained network on figures, augmented as the paper's training examples."""
    figures = compose_figures("train", 4 * count, SEED, *SCENES)
    task = PoseTask(lambda: simple_baseline(backbone), train=figures, valid=figures)
    return task.samples(count, SEED)[BRANCH]


def measure(samples: Sequence[Sample], steps: int) -> list[dict[str, Any]]:
    """Run the protocol for every loss and its negation, in plain autograd."""
    branch = HeatmapBranch(measure=share_of_thresholds)
    reference = measure_reference(branch, samples)
    settings = replace(ProtocolSettings(), samples=len(samples), steps=steps, engine="reference")
    engine = ReferenceEngine(branch, reference, settings)
    formulas = {name: zoo.get_entry(name).formula for name in LOSSES}
    signed = {name: text for loss, formula in formulas.items() for name, text in _negate(loss, formula).items()}
    return [
        {
            "branch": BRANCH,
            "loss": name,
            # Without gains something was not finite, as where a negation drives values to infinity.
            "g": reference.score(verdict.gains, "relative") if verdict.score is not None else None,
            "g_absolute": reference.score(verdict.gains, "absolute") if verdict.score is not None else None,
            "reason": verdict.reason.value if verdict.reason else None,
            "initial": mean(reference.initial),
            "best": mean(reference.best),
        }
        for name, verdict in zip(signed, engine.verdicts([parse(text) for text in signed.values()]), strict=True)
    ]


def _negate(name: str, formula: str) -> dict[str, str]:
    return {name: formula, f"−({name})": f"-({formula})"}


def _print(result: Mapping[str, Any]) -> None:
    print(f"{result['machine']['processor']}, {result['samples']} samples, {result['seconds']} s")
    print(f"{'loss':<18} {'g':>7} {'absolute':>9} {'ξ₀':>6} {'ξ_best':>6}")
    for row in result["rows"]:
        g, absolute = ("–" if row[key] is None else f"{row[key]:.3f}" for key in ("g", "g_absolute"))
        why = f"  {row['reason']}" if row["reason"] else ""
        print(f"{row['loss']:<18} {g:>7} {absolute:>9} {row['initial']:>6.3f} {row['best']:>6.3f}{why}")


if __name__ == "__main__":
    main()
