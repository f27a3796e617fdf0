"""Shares of the schedule and factors of losses, in words.

Scores at different shares of the schedule are different quantities and are never compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

from autoloss.numbers import figure
from autoloss.proposing.records import State
from autoloss.run.results import Search
from autoloss.space.loss_text import MAIN, split_branches, split_factor

LARGEST_DENOMINATOR = 64


def write_share(fidelity: float) -> str:
    """Write a share of the schedule.

    >>> write_share(1.0), write_share(0.125), write_share(0.33)
    ('whole', '1/8', '0.33')
    """
    if fidelity == 1:
        return "whole"
    fraction = Fraction(fidelity).limit_denominator(LARGEST_DENOMINATOR)
    return str(fraction) if math.isclose(fraction, fidelity, rel_tol=1e-9) else f"{fidelity:.3g}"


def at_share(fidelity: float) -> str:
    """Write the share of a training as `whole` or `at 1/8`."""
    return write_share(fidelity) if fidelity == 1 else f"at {write_share(fidelity)}"


def write_score(score: float | None, fidelity: float) -> str:
    """Write a score with its share.

    >>> write_score(0.8105, 1.0), write_score(0.211, 0.125), write_score(None, 0.125)
    ('0.8105 whole', '0.2110 at 1/8', '–')
    """
    return figure(score) if score is None or not math.isfinite(score) else f"{figure(score)} {at_share(fidelity)}"


def write_counts(counts: Mapping[float, int]) -> str:
    """Write the number of trainings at each share: `92 at 1/8, 1 whole`."""
    return ", ".join(f"{count} {at_share(fidelity)}" for fidelity, count in sorted(counts.items()))


def trains_short(search: Search) -> bool:
    """Return True if a run trains at several shares, so that each score is shown with its share."""
    return len(search.configuration.search.rungs) > 1


def score_of(search: Search, score: float | None, fidelity: float) -> str:
    """Write a score, with its share if the run trains at several."""
    return write_score(score, fidelity) if trains_short(search) else figure(score)


def count_trainings(search: Search) -> Counter[float]:
    """Return share of the schedule → number of ended trainings of the search, for all shares of the run."""
    counts = Counter(dict.fromkeys(search.configuration.search.rungs, 0))
    counts.update(row["fidelity"] for row in search.reader.ended)
    return counts


def list_charges(search: Search) -> list[float]:
    """Return the charge of each ended training of the search, in training equivalents."""
    charged = {State.SCORED.value} | ({State.DIVERGED.value} if search.configuration.limits.charge_diverged else set())
    return [row["fidelity"] if row["state"] in charged else 0.0 for row in search.reader.ended]


def list_factors(loss: str) -> dict[str, str]:
    """Return branch → the factor before its formula, as text; branches without a factor are left out."""
    parts = split_branches(loss)
    return {name: part.partition(" * ")[0] for name, part in parts.items() if split_factor(part)[0] != 1}


def describe_factors(loss: str) -> str:
    """Describe the factors of a loss; empty if it has none.

    >>> describe_factors("0.250 * log(p)")
    "scaled by 0.250, so that its gradient has the norm of the standard loss's gradient"
    """
    factors = list_factors(loss)
    if not factors:
        return ""
    by = factors[MAIN] if set(factors) == {MAIN} else ", ".join(f"{one} ({name})" for name, one in factors.items())
    return f"scaled by {by}, so that its gradient has the norm of the standard loss's gradient"
