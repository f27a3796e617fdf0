"""The reasons to reject a candidate (Section 3.2). Readers of a run import these names, so this file does not import torch."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """A reason to reject a candidate, in the order of the checks."""

    SIZE = "too large"
    STRUCTURE = "no prediction or no target"
    KNOWN_KEY = "gradient already rejected"
    NO_GRADIENT = "no gradient"
    NOT_FINITE = "not finite"
    LOW_GAIN = "too little gain"
    KNOWN_DIVERGED = "known to diverge in training"
