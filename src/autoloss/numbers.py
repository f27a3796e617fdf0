"""Metrics, counts and times as text for people."""

from __future__ import annotations

import math

# Four decimals show less than two digits of what is below it.
SMALL = 1e-3


def figure(value: float | None) -> str:
    """Write a metric with four decimals, a small one with three significant digits; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:.3g}" if 0 < abs(value) < SMALL else f"{value:.4f}"


def plus_minus(half: float | None) -> str:
    """Write half the width of an interval after its middle, ` ± 0.0100`; empty where there is none."""
    return "" if half is None else f" ± {figure(half)}"


def difference(value: float, half: float | None) -> str:
    """Write a difference of metrics with its sign and half the width of its interval, which says what digits tell something."""
    size = f"{abs(value):.3g}" if half is not None and 0 < half < SMALL else f"{abs(value):.4f}"
    return f"{'−' if value < 0 else '+'}{size}{plus_minus(half)}"


def counted(count: int, between: str = "\N{NARROW NO-BREAK SPACE}") -> str:
    """Write a count with thousands separated by thin spaces; a terminal needs plain ones."""
    return f"{count:,}".replace(",", between)


def share(part: int, whole: int) -> str:
    """Write a part of a whole in percent, with two significant digits where it is small."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"


def duration(seconds: float | None) -> str:
    """Write a time as 45 s, 3 min 20 s or 2 h 05 min."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
