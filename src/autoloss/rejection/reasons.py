"""Why candidates go no further (Section 3.2); reading a run needs these words, and no torch."""

from __future__ import annotations

from enum import Enum


class Reason(Enum):
    """Why a candidate went no further, in the order in which it is looked for."""

    SIZE = "too large"
    STRUCTURE = "no prediction or no target"
    KNOWN_KEY = "gradient already rejected"
    NO_GRADIENT = "no gradient"
    NOT_FINITE = "not finite"
    LOW_GAIN = "too little gain"
    KNOWN_DIVERGED = "known to diverge in training"
