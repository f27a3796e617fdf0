"""Which losses of detection and instance segmentation pass the rejection protocol, each on its own branch of an untrained network.

Samples come from torchvision's Mask R-CNN with a ResNet-18 and the levels P4 to P6, on scenes of real digits. For every published
formula, every baseline and their negations, the table holds g, relative and absolute, and the means of ξ₀ and ξ_best. Further
tables change one setting each: the coder's deviations, NMS, and the box of a negative.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from autoloss import zoo
from autoloss.rejection.protocol import Reference, measure_reference
from autoloss.settings import ProtocolSettings
from autoloss.space.boxes import rescale_deltas
from autoloss.space.branch import Branch, BranchLoss, Sample
from autoloss.space.expression import Expression
from autoloss.space.loss import output, plain_sum
from autoloss.tasks.detection.average_precision import BoxMetric, ScoreMetric
from autoloss.tasks.detection.digits import CLASSES, compose_box_scenes
from autoloss.tasks.detection.faster_rcnn import DetectorSettings, FasterRCNN, build_pyramid
from autoloss.tasks.detection.heads import INSTANCE_HEADS
from autoloss.tasks.detection.task import MASK_METRICS, DetectionTask
from output import Figure, emit, make_parser, parse_arguments

SEED = 0
SIDE = 96
RCNN_DEVIATIONS = (0.1, 0.1, 0.2, 0.2)
LOSSES: Mapping[str, tuple[str, ...]] = {
    "rpn_cls": ("det/rpn_cls", "ins/rpn_cls", "baseline/ce", "baseline/cse_auto_a_cls"),
    "rpn_reg": (
        "det/rpn_reg",
        "ins/rpn_reg",
        "baseline/l1",
        "baseline/iou",
        "baseline/giou",
        "baseline/cse_auto_a_reg",
    ),
    "rcnn_cls": ("det/rcnn_cls", "ins/rcnn_cls", "baseline/ce", "baseline/cse_auto_a_cls"),
    "rcnn_reg": (
        "det/rcnn_reg",
        "ins/rcnn_reg",
        "baseline/l1",
        "baseline/iou",
        "baseline/giou",
        "baseline/cse_auto_a_reg",
    ),
    "mask": ("ins/mask", "baseline/ce"),
}
"""Branch → what was published for it, and the baselines."""
FIGURES = {
    **{f"{branch}: ξ₀": Figure(("rows", {"branch": branch}, "initial"), digits=3) for branch in LOSSES},
    "rpn_reg: g relative": Figure(("rows", {"loss": "baseline/cse_auto_a_reg"}, "g"), digits=3),
    "rcnn_reg: g absolute": Figure(("rows", {"loss": "det/rcnn_reg"}, "g_absolute"), digits=3),
    "rpn_cls: g of −L": Figure(("rows", {"loss": "−(det/rpn_cls)"}, "g"), digits=3),
    "rcnn_reg: g of −L": Figure(("rows", {"loss": "−(ins/rcnn_reg)"}, "g"), digits=2),
    "mask: g relative": Figure(("rows", {"loss": "ins/mask"}, "g"), digits=3),
    "mask: g absolute": Figure(("rows", {"loss": "ins/mask"}, "g_absolute"), digits=3),
    "mask: g of −L": Figure(("rows", {"loss": "−(ins/mask)"}, "g"), digits=3),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """Changes to the way in which the task makes and measures its samples."""

    deviations: tuple[float, float, float, float] | None = None
    nms: float | None = None
    negatives_have_objects: bool = False


SETTINGS: Mapping[str, tuple[Setting, tuple[str, ...]]] = {
    "the R-CNN coder's deviations (0.1, 0.1, 0.2, 0.2)": (Setting(deviations=RCNN_DEVIATIONS), ("rpn_reg", "rcnn_reg")),
    "no NMS": (Setting(nms=1.0), ("rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg")),
    "a negative's box is a ground-truth box": (Setting(negatives_have_objects=True), ("rpn_cls", "rcnn_cls")),
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=ProtocolSettings().samples, help="B of the protocol")
    parser.add_argument("--steps", type=int, default=ProtocolSettings().steps, help="T of the protocol")
    parser.add_argument("--branches", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    parser.add_argument(
        "--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS), help="further settings"
    )
    arguments = parse_arguments(parser, argv, samples=2, settings=[])
    torch.set_num_threads(1)
    began = time.monotonic()
    count, steps = arguments.samples, arguments.steps
    task = detector()
    drawn = task.samples(count, SEED)
    rows = [row for branch in arguments.branches for row in table(branch, task.branches[branch], drawn[branch], steps)]
    others = {name: changed(name, count, steps) for name in arguments.settings}
    result = {
        "samples": count,
        "rows": rows,
        "settings": others,
        "seconds": round(time.monotonic() - began, 1),
    }
    emit(result, arguments, _print)


def detector() -> DetectionTask:
    """Return the task whose untrained network gives the samples."""
    composed = compose_box_scenes("train", 64, SEED, masks=True)
    scenes = [(image.expand(3, -1, -1), target) for image, target in composed]
    return DetectionTask(
        network,
        train=scenes,
        valid=scenes,
        classes=CLASSES,
        heads=INSTANCE_HEADS,
        metrics=MASK_METRICS,
    )


def network() -> FasterRCNN:
    shape = DetectorSettings(short_side=SIDE, long_side=SIDE, anchor_sizes=(16, 24, 36), head_width=512)
    return FasterRCNN(build_pyramid("resnet18", 64), CLASSES, shape, INSTANCE_HEADS)


def table(
    branch: str, at: Branch, samples: Sequence[Sample], steps: int, negations: bool = True
) -> list[dict[str, Any]]:
    """Measure every loss of a branch, and its negation."""
    reference = measure_reference(at, samples)
    rows = []
    for name in LOSSES[branch]:
        loss = zoo.get_entry(name).make_branch_loss(branch, at)
        for sign in (1, -1) if negations else (1,):
            gains = [
                gain(loss, sign, at, sample, start, steps)
                for sample, start in zip(reference.samples, reference.initial, strict=True)
            ]
            rows.append(_row(branch, name if sign == 1 else f"−({name})", gains, reference))
    return rows


def _row(branch: str, name: str, gains: Sequence[float], reference: Reference) -> dict[str, Any]:
    finite = all(map(math.isfinite, gains))
    return {
        "branch": branch,
        "loss": name,
        "g": reference.score(gains, "relative") if finite else None,
        "g_absolute": reference.score(gains, "absolute") if finite else None,
        "initial": mean(reference.initial),
        "best": mean(reference.best),
    }


def gain(loss: Expression | BranchLoss, sign: int, branch: Branch, sample: Sample, initial: float, steps: int) -> float:
    """Descend as the protocol does; trees and hand-written losses alike, both as plain sums. NaN when not finite."""
    settings = ProtocolSettings()
    prediction = sample.prediction.clone()
    velocity = torch.zeros_like(prediction)
    for _ in range(steps):
        prediction.requires_grad_(True)
        value = sign * summed(loss, branch, prediction, sample.context)
        (slope,) = torch.autograd.grad(value, prediction)
        if not math.isfinite(value.item()) or not bool(torch.isfinite(slope).all()):
            return math.nan
        velocity = settings.momentum * velocity + slope
        prediction = prediction.detach() - settings.learning_rate * velocity
    return branch.metric(prediction, sample.context) - initial


def summed(loss: Expression | BranchLoss, branch: Branch, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
    if isinstance(loss, Expression):
        return plain_sum(output(loss, branch, prediction, context), branch.mask(context))
    # A hand-written loss divides by the sampled boxes itself; smooth L1 has no weight, the other's is 1.
    return loss(prediction, context) * branch.divisor(context)


def changed(name: str, count: int, steps: int) -> list[dict[str, Any]]:
    """Measure the losses, without negations, under another setting."""
    setting, branches = SETTINGS[name]
    task = detector()
    drawn = task.samples(count, SEED)
    rows = []
    for branch in branches:
        at, samples = task.branches[branch], drawn[branch]
        if setting.nms is not None:
            field = "measure_boxes" if branch.endswith("cls") else "measure"
            kind = ScoreMetric if branch.endswith("cls") else BoxMetric
            at = replace(at, **{field: kind(setting.nms)})  # type: ignore[type-var]
        if setting.deviations is not None:
            unit = torch.tensor([setting.deviations])
            samples = [Sample(*rescale_deltas(sample.prediction, sample.context, unit)) for sample in samples]
        if setting.negatives_have_objects:
            samples = [Sample(sample.prediction, with_objects(sample.context)) for sample in samples]
        try:
            rows += table(branch, at, samples, steps, negations=False)
        except ValueError as error:
            rows.append({"branch": branch, "loss": "none", "reason": str(error)})
    return rows


def with_objects(context: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give each negative the first ground-truth box, as a matching does that clamps the index of 'none' to 0."""
    negative = context["target"] == 0
    return {**context, "box": torch.where(negative[:, None], context["truth"][:1], context["box"])}


def _print(result: Mapping[str, Any]) -> None:
    print(f"{result['machine']['processor']}, {result['samples']} samples, {result['seconds']} s")
    _print_rows(result["rows"])
    for name, rows in result["settings"].items():
        print(f"\n{name}")
        _print_rows(rows)


def _print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    print(f"{'branch':<9} {'loss':<30} {'g':>7} {'absolute':>9} {'ξ₀':>6} {'ξ_best':>6}")
    for row in rows:
        if "reason" in row:
            print(f"{row['branch']:<9} {row['reason']}")
            continue
        g, absolute = ("–" if row[key] is None else f"{row[key]:.3f}" for key in ("g", "g_absolute"))
        print(f"{row['branch']:<9} {row['loss']:<30} {g:>7} {absolute:>9} {row['initial']:>6.3f} {row['best']:>6.3f}")


if __name__ == "__main__":
    main()
