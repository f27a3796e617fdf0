"""The named options of a branch; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Activation = Literal["softmax", "sigmoid", "none"]
Kernel = Literal["softmax", "sigmoid", "none", "box", "pair_probability", "pair_difference"]
"""The making of leaves from the raw prediction, for compiled code and in the zoo: an activation, the areas of boxes, or pairs."""
PairActivation = Literal["sigmoid", "none"]
PairColumn = Literal["value", "event", "group", "weight"]
"""The columns that the target of a `PairBranch` can have."""
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
PAIR_KERNELS: Mapping[PairActivation, Kernel] = {"sigmoid": "pair_probability", "none": "pair_difference"}
"""Activation of a `PairBranch` → its kernel."""
