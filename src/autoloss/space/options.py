"""The named options of a branch; no torch."""

from __future__ import annotations

from typing import Literal

from autoloss.errors import unknown

Activation = Literal["softmax", "sigmoid", "none"]
Kernel = Literal["softmax", "sigmoid", "none", "box"]
"""The making of leaves from the raw prediction, for compiled code and in the zoo: an activation, or the areas of boxes."""
AreaUnit = Literal["pixels", "target"]
Encoding = Literal["one_hot", "edge", "band"]
Divisor = Literal["all", "valid"]
TargetKind = Literal["one_hot", "binary", "values"]
"""The values of y at each position: 1 in one channel and 0 elsewhere; 0 or 1 in each channel; any value."""

ACTIVATIONS = ("softmax", "sigmoid", "none")
"""The activations of an `ActivatedBranch`; in the zoo, losses of areas of boxes have `box`."""
PROBABILITIES = ("softmax", "sigmoid")
"""The activations after which p is a probability."""
AREA_UNITS = ("pixels", "target")
ENCODINGS = ("one_hot", "edge", "band")
DIVISORS = ("all", "valid")
TARGET_KINDS = ("one_hot", "binary", "values")


def check_options(activation: str, encoding: str, divide_by: str) -> None:
    """Check the options of an `ActivatedBranch`.

    Raises:
        RequestError: The activation, encoding or divisor is unknown.
    """
    for kind, found, known in (
        ("activation", activation, ACTIVATIONS),
        ("target encoding", encoding, ENCODINGS),
        ("divisor", divide_by, DIVISORS),
    ):
        if found not in known:
            raise unknown(kind, str(found), known)
