"""The named options of a branch; no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from autoloss.errors import RequestError, unknown

Activation = Literal["softmax", "sigmoid", "none"]
Kernel = Literal["softmax", "sigmoid", "none", "box", "pair_probability", "pair_difference"]
"""The making of leaves from the raw prediction, for compiled code and in the zoo: an activation, the areas of boxes, or pairs."""
PairActivation = Literal["sigmoid", "none"]
PairWeight = Literal["none", "item", "ndcg"]
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


PAIR_KERNELS: Mapping[PairActivation, Kernel] = {"sigmoid": "pair_probability", "none": "pair_difference"}
"""Activation of a `PairBranch` → its kernel."""
PAIR_COLUMNS = ("value", "event", "group", "weight")
"""The columns that the target of a `PairBranch` can have."""
PAIR_WEIGHTS = ("none", "item", "ndcg")


def check_pair_options(columns: Sequence[str], activation: str, weigh: str, limit: int, seed: int) -> None:
    """Check the options of a `PairBranch`.

    Raises:
        RequestError: An option is unknown or out of range, or a column is missing.
    """
    for kind, found, known in (
        ("activation of pairs", activation, tuple(PAIR_KERNELS)),
        ("weight of pairs", weigh, PAIR_WEIGHTS),
        *(("column of a target", column, PAIR_COLUMNS) for column in columns),
    ):
        if found not in known:
            raise unknown(kind, str(found), known)
    needed = ["value", *["weight"] * (weigh == "item")]
    if len(set(columns)) < len(columns) or not set(needed) <= set(columns):
        raise RequestError(
            f"The target of pairs has the columns {', '.join(columns)}; expected each once, and {' and '.join(needed)} among them."
        )
    if type(limit) is not int or limit < 1 or type(seed) is not int or seed < 0:
        raise RequestError(
            f"The largest number of pairs is {limit!r} and their seed {seed!r}; expected integers, from 1 and from 0."
        )


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
