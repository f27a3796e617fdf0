"""The value and gradient of a loss over the prediction, with those of the task's standard loss.

The probe is one position with two classes: p at the true one, 1 − p at the other. For an element-wise loss this is the loss
itself; a loss with means or pools combines neighbours, and the only neighbour here is the other class.
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
from autoloss.space.form import STANDARD, Kind
from autoloss.space.loss_text import MAIN
from autoloss.space.parsing import FormulaError, parse
from autoloss.zoo import ENTRIES

PROBES = 201
EDGE = 0.005
"""Lowest probed probability; the highest is one minus it."""
CUT = 3.0
"""Length of an axis as a multiple of the range of the middle 90 % of the values; poles would compress everything else."""
MIXING = frozenset({"mean_nhw", "mean_c", "max_pool", "min_pool"})
"""Operators that combine positions or channels."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Probe of one kind of branch.

    Args:
        label: Label of the axis.
        setting: Description of the probe, for readers.
        low: Lowest value on the axis.
        high: Highest value on the axis.
        leaves: Names of the leaves that it supports.
        sides: (name of a chart's side, channel of the probe) pairs.
    """

    label: str
    setting: str
    low: float = EDGE
    high: float = 1 - EDGE
    leaves: frozenset[str] = frozenset("yp")
    sides: tuple[tuple[str, int], ...] = (("y = 1", 0), ("y = 0", 1))


_RISING = "Where the value falls, training increases p."
_OF_PAIRS = Probe(
    "difference of the scores of a pair",
    "One pair of items with the weight 1. Where the value falls, training raises the score of the item that should come first.",
    -4.0,
    4.0,
    frozenset("ypw"),
    (("one pair", 0),),
)
_PROBES: Mapping[Kind, Probe] = {
    "classes": Probe("p, the predicted probability", f"One position, two classes. {_RISING}"),
    "labels": Probe("p, the predicted probability", f"One position, two labels. {_RISING}"),
    "values": Probe("p, the predicted value", f"Two values, with targets 1 and 0. {_RISING}", -1.0, 2.0),
    "areas": Probe(
        "shift of one square from the other, in sides",
        "Two squares of one size, shifted along a side. Where the value rises, training moves them together.",
        leaves=frozenset("iue"),
        sides=(("two squares", 0),),
    ),
    "pairs": _OF_PAIRS,
    "differences": _OF_PAIRS,
}
Drawn = tuple[list[Point], list[Point]]
"""Points of the value and of the gradient."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Charts of one branch's tree.

    Args:
        branch: Name of the branch; empty if it is the only one.
        setting: Description of the probe, for readers.
        notes: Limits of the charts, in sentences.
    """

    branch: str
    charts: tuple[Chart, ...]
    setting: str
    notes: tuple[str, ...] = ()


@functools.lru_cache(maxsize=64)
def draw_kind(tree: Expression, kind: Kind | None, branch: str, label: str, standard: str = "") -> Shape | None:
    """Draw a tree; None if its leaves cannot be probed.

    Args:
        label: Name of the loss in the legend.
        standard: Formula or zoo name of the task's standard loss, which is drawn as the reference.
    """
    if kind is None:
        return None
    probe = _PROBES[kind]
    known, known_name = _find_reference(standard, kind)
    (_, ours), (_, theirs) = trace_tree(tree, kind), trace_tree(known, kind)
    charts, notes = [], []
    for side, mine in ours.items():
        if not any(value for points in (*mine, *theirs[side]) for _, value in points):
            notes.append(f"At {side} both losses and their gradients are 0 everywhere.")
            continue
        for what, *points in zip(("Value", "Gradient"), mine, theirs[side], strict=True):
            charts.append(_chart(f"{what}, {side}", probe, (label, points[0]), (known_name, points[1])))
    if tree.factor != 1:
        notes.append(f"{label} is drawn with its factor, {list_factors(str(tree))[MAIN]}.")
    if mixing := sorted(MIXING & {operator.name for operator in tree.operators}):
        notes.append(
            f"The charts leave out the effect on neighbours of operators that combine positions or channels: {', '.join(mixing)}."
        )
    return Shape(branch, tuple(charts), probe.setting, tuple(notes))


def _find_reference(standard: str, kind: Kind) -> tuple[Expression, str]:
    """Return the reference loss and its name."""
    entry = ENTRIES.get(standard)
    # The zoo's losses of pairs are those of a probability.
    formula = entry.formula if entry and kind != "differences" else "" if entry else standard
    try:
        # A hand-written loss has no formula, and one with a user's own operators cannot be parsed here.
        if formula:
            return parse(formula, _PROBES[kind].leaves), (entry.title or entry.name) if entry else "standard loss"
    except FormulaError:
        pass
    usual = ENTRIES[STANDARD[kind]]
    return parse(usual.formula), usual.title or usual.name


def trace_tree(tree: Expression, kind: Kind) -> tuple[str, Mapping[str, Drawn]]:
    """Return the label of the axis, and side → value and gradient along it."""
    probe = _PROBES[kind]
    found: dict[str, Drawn] = {side: ([], []) for side, _ in probe.sides}
    for place in torch.linspace(probe.low, probe.high, PROBES, dtype=torch.float64):
        tensors = _differentiate(tree, kind, place)
        for side, channel in probe.sides:
            x, value, gradient = (float(one.detach().flatten()[channel]) for one in tensors)
            found[side][0].append((x, value))
            found[side][1].append((x, gradient))
    return probe.label, {side: (sorted(values), sorted(slopes)) for side, (values, slopes) in found.items()}


_ORDERS = {"ties": 0.0, "pairs in order by 2": 2.0, "pairs in the wrong order by 2": -2.0}
STATES: Mapping[Kind, Mapping[str, float]] = {
    "values": {"error 1": 0.0, "error 0.1": 0.9, "error 3": -2.0},
    "areas": {
        "boxes that half overlap (0.5)": 1 / 3,
        "boxes that overlap well (0.9)": 1 / 19,
        "boxes that hardly overlap (0.1)": 9 / 11,
    },
    "pairs": _ORDERS,
    "differences": _ORDERS,
}
"""Kind of a branch → state of an example → where it is on the axis of the charts."""


def probe_gradients(tree: Expression, kind: Kind) -> dict[str, float]:
    """Return state of an example → size of the gradient there; empty for classes and labels."""
    places = {state: torch.tensor(place, dtype=torch.float64) for state, place in STATES.get(kind, {}).items()}
    return {state: abs(float(_differentiate(tree, kind, place)[2].flatten()[0])) for state, place in places.items()}


def _differentiate(tree: Expression, kind: Kind, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the loss is differentiated by, its value, and the gradient; all (1, C, 1, 1)."""
    is_single = len(_PROBES[kind].sides) == 1
    at = torch.stack([place] if is_single else [place, 1 - place]).reshape(1, -1, 1, 1).requires_grad_()
    one = torch.ones_like(at.detach())
    if kind == "areas":
        leaves = {"i": 1 - at, "u": 1 + at, "e": 1 + at}
    elif is_single:
        leaves = {"p": at.sigmoid() if kind == "pairs" else at, "y": one, "w": one}
    else:
        leaves = {"p": at, "y": torch.tensor([1.0, 0.0], dtype=place.dtype).reshape(1, 2, 1, 1)}
    output = tree.evaluate(leaves)
    return at, output, torch.autograd.grad(output.sum(), at)[0] if output.requires_grad else torch.zeros_like(at)


def _chart(title: str, probe: Probe, mine: tuple[str, list[Point]], other: tuple[str, list[Point]]) -> Chart:
    """Draw the (name, points) of two losses in one chart."""
    (label, ours), (known_name, theirs) = mine, other
    x = axis(ours[0][0], ours[-1][0], probe.label, count=4, widen=True)
    low, high = _find_range([value for _, value in [*ours, *theirs] if math.isfinite(value)])
    y = axis(low, high, title.split(",")[0].lower(), count=4)
    ours_inside, theirs_inside = (
        [(at, value if y.low <= value <= y.high else math.nan) for at, value in points] for points in (ours, theirs)
    )
    layers = (
        Layer("line", line(theirs_inside, x, y), 3, known_name, dashed=True),
        Layer("line", line(ours_inside, x, y), 1, label),
    )
    both = ([f"{points[at][1]:.3g}" for at in (0, len(points) // 2, -1)] for points in (ours, theirs))
    (first, middle, last), others = both
    description = (
        f"{title}: {label} goes from {first} over {middle} in the middle to {last}; {known_name} from "
        f"{' over '.join(others[:2])} to {others[2]}."
    )
    return Chart(title, description, x, y, layers)


def _find_range(values: list[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
    room = (CUT - 1) / 2 * (high - low)
    return max(ordered[0], low - room), min(ordered[-1], high + room)
