"""What a loss does: its value and its gradient over the prediction, beside the standard loss of the task.

The probe is one position with two classes: p at the true one, 1 − p at the other. For an element-wise loss that is the loss
itself; a loss with means or pools sees its neighbours as well, and here it has none but the other class.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autoloss.report.page.charts import Chart, Layer, Point, axis, line
from autoloss.report.shares import list_factors
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss_text import MAIN
from autoloss.space.parsing import FormulaError, parse
from autoloss.zoo import ENTRIES

PROBES = 201
EDGE = 0.005
"""Probabilities are probed from here to one minus it."""
CUT = 3.0
"""Axes reach so many times as far as the middle nine tenths of what is drawn; poles would flatten all else."""
MIXING = frozenset({"mean_nhw", "mean_c", "max_pool", "min_pool"})
"""Operators through which positions or channels see each other."""


@dataclass(frozen=True, slots=True)
class Probe:
    """How a kind of branch is probed.

    Args:
        leaves: Names of the leaves that it serves.
        sides: What is drawn: name of a side → channel of the probe.
        known: Name in the zoo of the loss that is drawn beside others where the task's standard one cannot be.
        label: Of the axis.
        setting: What is looked at, in a sentence.
    """

    leaves: frozenset[str]
    sides: Mapping[str, int]
    known: str
    label: str
    setting: str


_SIDES = {"y = 1": 0, "y = 0": 1}
_RISING = "Where the value falls, training increases p."
CLASSES = Probe(
    frozenset("yp"), _SIDES, "baseline/ce", "p, the predicted probability", f"One position, two classes. {_RISING}"
)
LABELS = Probe(
    frozenset("yp"), _SIDES, "baseline/bce", "p, the predicted probability", f"One position, two labels. {_RISING}"
)
VALUES = Probe(
    frozenset("yp"), _SIDES, "baseline/mse", "p, the predicted value", f"Two values, with targets 1 and 0. {_RISING}"
)
AREAS = Probe(
    frozenset("iue"),
    {"two squares": 0},
    "baseline/iou",
    "shift of one square from the other, in sides",
    "Two squares of one size, moved apart along a side. Where the value rises, training moves them together.",
)
_BY_ACTIVATION = {"none": VALUES, "sigmoid": LABELS}


@dataclass(frozen=True, slots=True)
class Shape:
    """Pictures of one branch's tree.

    Args:
        branch: Its name; empty for the only one.
        setting: What they look at, in a sentence.
        notes: What they leave out.
    """

    branch: str
    charts: tuple[Chart, ...]
    setting: str
    notes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=64)
def shape_of(tree: Expression, form: BranchForm, branch: str, label: str, standard: str = "") -> Shape | None:
    """Draw the tree of a branch; None where its leaves are none that can be probed.

    Args:
        label: What the loss is called in the legend.
        standard: Formula or name in the zoo of the task's standard loss, which is drawn beside it.
    """
    probe = AREAS if set(form.leaves) == AREAS.leaves else _BY_ACTIVATION.get(form.activation, CLASSES)
    if set(form.leaves) != probe.leaves:
        return None
    at = _places(probe)
    known, known_name = _find_reference(standard, probe)
    ours, theirs = (_probed(one, probe, at) for one in (tree, known))
    silent = [side for side in probe.sides if _silent(ours[side]) and _silent(theirs[side])]
    charts = [
        _chart(f"{what}, {side}", probe, (label, ours[side][number]), (known_name, theirs[side][number]))
        for side in probe.sides
        if side not in silent
        for number, what in enumerate(("Value", "Gradient"))
    ]
    notes = [f"At {side} both losses and their gradients are 0 everywhere." for side in silent]
    if tree.factor != 1:
        notes.append(f"{label} is drawn at its factor, {list_factors(str(tree))[MAIN]}.")
    mixing = sorted(MIXING & {operator.name for operator in tree.operators})
    if mixing:
        notes.append(
            f"This loss contains {', '.join(mixing)}, which combine positions or channels. The charts leave out the effect on "
            "neighbours."
        )
    return Shape(branch, tuple(charts), probe.setting, tuple(notes))


def _find_reference(standard: str, probe: Probe) -> tuple[Expression, str]:
    """Return the loss that others are drawn beside, and what it is called."""
    entry = ENTRIES.get(standard)
    formula = entry.formula if entry else standard
    try:
        # One written by hand has no formula, and one of a person's own operators cannot be read here.
        if formula:
            return parse(formula, probe.leaves), (entry.title or entry.name) if entry else "standard loss"
    except FormulaError:
        pass
    usual = ENTRIES[probe.known]
    return parse(usual.formula), usual.title


def _silent(drawn: tuple[list[Point], list[Point]]) -> bool:
    return not any(value for points in drawn for _, value in points)


def _places(probe: Probe) -> Tensor:
    if probe is VALUES:
        return torch.linspace(-1.0, 2.0, PROBES, dtype=torch.float64)
    return torch.linspace(EDGE, 1 - EDGE, PROBES, dtype=torch.float64)


def _probed(tree: Expression, probe: Probe, places: Tensor) -> dict[str, tuple[list[Point], list[Point]]]:
    """Return value and gradient of each side over the places."""
    found: dict[str, tuple[list[Point], list[Point]]] = {side: ([], []) for side in probe.sides}
    for place in places:
        at, leaves = _leaves(probe, place)
        output = tree.evaluate(leaves)
        (slope,) = torch.autograd.grad(output.sum(), at) if output.requires_grad else (torch.zeros_like(at),)
        for side, channel in probe.sides.items():
            x = float(at.detach().flatten()[channel])
            found[side][0].append((x, float(output.detach().flatten()[channel])))
            found[side][1].append((x, float(slope.flatten()[channel])))
    return {side: (sorted(values), sorted(slopes)) for side, (values, slopes) in found.items()}


def _leaves(probe: Probe, place: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return what the gradient is taken of, and the leaves; all (1, C, 1, 1)."""
    if probe is AREAS:
        at = place.reshape(1, 1, 1, 1).clone().requires_grad_()
        return at, {"i": 1 - at, "u": 1 + at, "e": 1 + at}
    other = 1 - place
    at = torch.stack([place, other]).reshape(1, 2, 1, 1).requires_grad_()
    return at, {"p": at, "y": torch.tensor([1.0, 0.0], dtype=place.dtype).reshape(1, 2, 1, 1)}


def _chart(title: str, probe: Probe, mine: tuple[str, list[Point]], other: tuple[str, list[Point]]) -> Chart:
    """Draw two losses, each with its name."""
    (label, ours), (known_name, theirs) = mine, other
    x = axis(ours[0][0], ours[-1][0], probe.label, count=4, widen=True)
    low, high = _range([value for _, value in [*ours, *theirs] if math.isfinite(value)])
    y = axis(low, high, title.split(",")[0].lower(), count=4)
    inside = [
        [point if y.low <= point[1] <= y.high else (point[0], math.nan) for point in points]
        for points in (theirs, ours)
    ]
    layers = (
        Layer("line", line(inside[0], x, y), 3, known_name, dashed=True),
        Layer("line", line(inside[1], x, y), 1, label),
    )
    (_, first), (_, middle), (_, last) = ours[0], ours[len(ours) // 2], ours[-1]
    description = (
        f"{title}: {label} goes from {first:.3g} over {middle:.3g} in the middle to {last:.3g}; {known_name} from "
        f"{theirs[0][1]:.3g} over {theirs[len(theirs) // 2][1]:.3g} to {theirs[-1][1]:.3g}."
    )
    return Chart(title, description, x, y, layers)


def _range(values: list[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    room = (CUT - 1) / 2 * (high - low)
    return max(ordered[0], low - room), min(ordered[-1], high + room)
