"""Columns of dates: read in one of a few notations, and encoded as numbers that a network can use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

DAY_SECONDS = 86_400.0
YEAR_DAYS, WEEK_DAYS = 365.25, 7.0


def _parse_iso(text: str) -> datetime:
    if not text[:4].isdigit() or text[4:5] != "-":
        raise ValueError(f"{text} does not begin with a year and a dash")
    return datetime.fromisoformat(text)


NOTATIONS: Mapping[str, Callable[[str], datetime]] = {
    "2026-01-31": _parse_iso,
    "2026/01/31": lambda text: datetime.strptime(text, "%Y/%m/%d"),
    "31.01.2026": lambda text: datetime.strptime(text, "%d.%m.%Y"),
    "31/01/2026": lambda text: datetime.strptime(text, "%d/%m/%Y"),
    "01/31/2026": lambda text: datetime.strptime(text, "%m/%d/%Y"),
}
"""An example of each notation, and its parser; the first may have a time, as in 2026-01-31 17:30."""


def parse_date(text: str, notation: str) -> float | None:
    """Return the seconds since 1970, or None where the text has another notation."""
    try:
        found = NOTATIONS[notation](text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def find_notations(texts: Sequence[str], share: float) -> list[str]:
    """Return the notations that most texts fit, the best first; several where day and month cannot be told apart.

    Args:
        share: Share of the texts that have to fit.
    """
    fits = {notation: sum(parse_date(text, notation) is not None for text in texts) for notation in NOTATIONS}
    best = max(fits.values())
    return [notation for notation, fit in fits.items() if fit == best] if texts and best >= share * len(texts) else []


def encode_dates(name: str, seconds: Sequence[float]) -> dict[str, list[float]]:
    """Return a column of dates as numbers: days, the position in the year and in the week, and in the day where times differ."""
    columns = {f"{name}: day": [second / DAY_SECONDS for second in seconds]}
    periods = {"year": YEAR_DAYS * DAY_SECONDS, "week": WEEK_DAYS * DAY_SECONDS}
    if any(second % DAY_SECONDS for second in seconds if not math.isnan(second)):
        periods["time"] = DAY_SECONDS
    for period, length in periods.items():
        angles = [2 * math.pi * (second % length) / length for second in seconds]
        columns[f"{name}: {period}, sine"] = [math.sin(angle) for angle in angles]
        columns[f"{name}: {period}, cosine"] = [math.cos(angle) for angle in angles]
    return columns
