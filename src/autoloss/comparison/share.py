"""A part of a gain: the ratio of two differences over the same seeds and examples, with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoloss.comparison.entrant import Measurements
from autoloss.comparison.noise import LEVEL, estimate_mean, find_quantile

MOST, HALF = 0.8, 0.5
"""A control has all of a gain if its share is at least `MOST`, its interval begins above `HALF` and ends at 1 or above."""


@dataclass(frozen=True, slots=True)
class Share:
    """Part of a gain, with its 95 % confidence interval (Fieller's, over training seeds and, where
    the metric was resampled, examples).

    Args:
        share: 1 is all of the gain; None where it cannot be said.
        low: Lower end of the interval; None where there is none, likewise `high`.
    """

    name: str
    share: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_all(self) -> bool:
        """True if the data say that it is all of the gain."""
        return self.seems_all and self.low is not None and self.low > HALF

    @property
    def seems_all(self) -> bool:
        """True if it may be all of the gain, whether or not the seeds are enough to tell."""
        return self.share is not None and self.high is not None and self.share >= MOST and self.high >= 1

    @property
    def is_something(self) -> bool:
        """True if it is more than nothing."""
        return self.low is not None and self.low > 0

    def write(self) -> str:
        """Write the share in percent with its interval.

        >>> Share("step sizes", 0.5, 0.25, 0.75).write()
        '50 % [25, 75]'
        """
        if self.share is None:
            return "–"
        ends = "" if self.low is None or self.high is None else f" [{100 * self.low:.0f}, {100 * self.high:.0f}]"
        return f"{100 * self.share:.0f} %{ends}"


def divide(name: str, part: Measurements, gain: Measurements) -> Share:
    """Return the ratio of two mean differences over the same seeds and examples, with Fieller's 95 % confidence interval.

    The interval holds every ratio r at which a paired t-test does not reject that the mean of part − r · gain is 0.

    Args:
        gain: Its mean is not 0.

    Source: Fieller, 1954, Some Problems in Interval Estimation.

    >>> divide("steps", Measurements((0.5, 0.6, 0.4)), Measurements((1.0, 1.0, 1.0))).share
    0.5
    """
    mine, whole, rest = (estimate_mean(one.finite, one.replicates) for one in (part, gain, part.subtract(gain)))
    share = mine.value / whole.value
    if whole.seeds < 2:
        return Share(name, share)
    factor = find_quantile(LEVEL, min(one.freedom for one in (mine, whole, rest))) ** 2
    of_part, of_gain, of_rest = ((one.error or 0.0) ** 2 for one in (mine, whole, rest))
    a = whole.value**2 - factor * of_gain
    b = mine.value * whole.value - factor * (of_part + of_gain - of_rest) / 2
    c = mine.value**2 - factor * of_part
    if a <= 0:
        return Share(name, share)
    root = math.sqrt(max(0.0, b * b - a * c))
    return Share(name, share, (b - root) / a, (b + root) / a)
