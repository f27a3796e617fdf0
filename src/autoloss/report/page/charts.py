"""Charts as values that a template draws in SVG: axes with round numbers, and paths of at most a few hundred points.

A plot is a square of SIZE units that the page stretches to the available space. Strokes keep their width, and labels are outside
the plot, so that text stays readable on a narrow screen. The style sheet defines the colours, for light and dark mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

SIZE = 1000
"""Units of a plot's side."""
POINTS = 300
"""Number of stretches of a long line; each keeps its lowest and its highest point."""
CELLS = (240, 120)
"""Grid of a plot; dots in one cell are drawn once."""
TICKS = 5

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values with ticks at round numbers.

    Args:
        ticks: (position in units, label) pairs.
    """

    low: float
    high: float
    label: str
    ticks: tuple[tuple[int, str], ...] = ()

    def place(self, value: float) -> int:
        """Return the position of a value in units, clipped to the range."""
        share = (value - self.low) / (self.high - self.low)
        return round(SIZE * min(1.0, max(0.0, share)))


@dataclass(frozen=True, slots=True)
class Layer:
    """Dots or a line of a plot, as an SVG path.

    Args:
        colour: Number of a colour of the style sheet.
        name: Entry of the legend; none if empty.
    """

    kind: Literal["line", "dots"]
    path: str
    colour: int
    name: str = ""
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, with a description for screen readers."""

    title: str
    description: str
    x: Axis
    y: Axis
    layers: tuple[Layer, ...]
    note: str = ""


def axis(low: float, high: float, label: str, *, count: int = TICKS, widen: bool = True) -> Axis:
    """Return an axis over a range, by default widened to round numbers."""
    if not high > low:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    least = (high - low) / count
    power = 10.0 ** math.floor(math.log10(least))
    # The smallest of 1, 2 and 5 times a power of ten that is not below.
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= least * (1 - 1e-9))
    if widen:
        low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    first = math.ceil(low / step - 1e-9)
    values = [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]
    bare = Axis(low, high, label)
    return Axis(low, high, label, tuple((bare.place(value), _label(value, step)) for value in values))


def line(points: Iterable[Point], x: Axis, y: Axis) -> str:
    """Return a line as a path, interrupted at values that are not finite."""
    path: list[str] = []
    pen = "M"
    for place in thin_points(list(points)):
        if not all(map(math.isfinite, place)):
            pen = "M"
            continue
        path.append(f"{pen}{x.place(place[0])} {SIZE - y.place(place[1])}")
        pen = "L"
    return "".join(path)


def steps(points: Sequence[Point], x: Axis, y: Axis) -> str:
    """Return a step function as a path; all changes are kept."""
    changes = [*points[:1], *(now for before, now in pairwise(points) if now[1] != before[1])]
    if not changes:
        return ""
    path = f"M{x.place(changes[0][0])} {SIZE - y.place(changes[0][1])}"
    path += "".join(f"H{x.place(at)}V{SIZE - y.place(value)}" for at, value in changes[1:])
    return f"{path}H{x.place(points[-1][0])}"


def dots(points: Iterable[Point], x: Axis, y: Axis) -> str:
    """Return dots as a path, one per occupied cell; the highest of all keeps its exact position."""
    finite: list[Point] = [point for point in points if all(map(math.isfinite, point))]
    cells = {(x.place(a) * CELLS[0] // SIZE, y.place(b) * CELLS[1] // SIZE): (a, b) for a, b in finite}
    kept = list(cells.values())
    if finite and (best := max(finite, key=lambda point: point[1])) not in kept:
        kept.append(best)
    return "".join(f"M{x.place(point[0])} {SIZE - y.place(point[1])}h0" for point in kept)


def thin_points(points: Sequence[Point]) -> list[Point]:
    """Return the lowest and the highest point of each of `POINTS` stretches, or all points of a short line."""
    if len(points) <= 2 * POINTS:
        return list(points)
    kept: list[Point] = []
    for number in range(POINTS):
        stretch = points[len(points) * number // POINTS : len(points) * (number + 1) // POINTS]
        ends = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept


def _label(value: float, step: float) -> str:
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if decimals > 6 or abs(value) >= 1e7:
        return f"{value:.1e}".replace("-", "−")
    return (f"{value:.{decimals}f}" if abs(value) > step / 2 else "0").replace("-", "−")
