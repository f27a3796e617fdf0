"""The options of a branch and their plain values, which are stored with a run and used by exports without the task; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_core import to_jsonable_python

from autoloss.errors import RequestError
from autoloss.options import Natural, check, declare

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
Kind = Literal["classes", "labels", "values", "areas", "pairs", "differences"]
KINDS: Mapping[Activation, Kind] = {"softmax": "classes", "sigmoid": "labels", "none": "values"}
STANDARD: Mapping[Kind, str] = {
    "classes": "baseline/ce",
    "labels": "baseline/bce",
    "values": "baseline/mse",
    "areas": "baseline/iou",
    "pairs": "baseline/ranknet",
    "differences": "shelf/difference_logistic",
}
"""Kind → the zoo's name of the loss in common use."""
Identifier = Annotated[str, Field(pattern=r"^[^\W\d]\w*$")]
LARGEST_LIMIT = 2**22
"""Most pairs of a batch that may be asked for: their indices take 64 MB."""
Bound = tuple[Identifier, float | None, float | None, bool]
"""A leaf, its least and largest value (None if unbounded), and whether nothing lies between 0 and 1."""


@declare(kind="option of pairs")
class PairForm:
    """What the pairs of a `PairBranch` are; its fields are those of the branch."""

    columns: tuple[PairColumn, ...] = ("value",)
    weigh: PairWeight = "none"
    limit: Annotated[int, Field(ge=1, le=LARGEST_LIMIT)] = 1
    seed: Natural = 0

    def __post_init__(self) -> None:
        needed = {"value", *["weight"] * (self.weigh == "item")}
        known = len(set(self.columns)) == len(self.columns) and needed <= set(self.columns)
        check(self, {"columns": (known, f"each column once, and {' and '.join(sorted(needed))} among them")})


@declare(kind="field of a branch's form")
class BranchForm:
    """The settings of a branch that the export of its tree needs.

    Args:
        leaves: Names of the leaves, in the branch's order.
        from_prediction: Whether the exported module takes raw prediction and target, as `ActivatedBranch` does. Otherwise
            (boxes) it takes the leaves, and neither encoding nor divisor is used.
        target_kind: What y is on the branch's samples; None where that was not looked at.
        unit: Unit of the areas of a `BoxRegression`; None for another branch.
        bounds: What is known of the values of leaves; empty where these follow from the prediction.
        is_single: Whether the leaves have one number for each item: one channel and no space.
        pairs: The pairs of a `PairBranch`; None for another branch.

    Raises:
        RequestError: A value is invalid; valid ones cannot inject code into an exported file.
    """

    leaves: Annotated[tuple[Identifier, ...], Field(min_length=1)] = ("y", "p")
    from_prediction: bool = True
    activation: Activation = "softmax"
    encoding: Encoding = "one_hot"
    tolerance: int = 5
    ignore_index: int | None = None
    divide_by: Divisor = "all"
    weight: float = 1.0
    target_kind: TargetKind | None = None
    unit: AreaUnit | None = None
    bounds: tuple[Bound, ...] = ()
    is_single: bool = False
    pairs: PairForm | None = None

    def __post_init__(self) -> None:
        if self.pairs is not None and self.activation == "softmax":
            raise RequestError("activation is 'softmax'; expected 'sigmoid' or 'none', since the leaves are of pairs.")

    @property
    def kind(self) -> Kind | None:
        """The kind of the leaves, by which a loss is drawn; None where they are others than y and p or the areas of boxes."""
        if set(self.leaves) == {"i", "u", "e"}:
            return "areas"
        if self.pairs is not None:
            return "pairs" if self.activation == "sigmoid" else "differences"
        return KINDS[self.activation] if set(self.leaves) == {"y", "p"} else None

    def leave_out_samples(self) -> BranchForm:
        """Return the form without what the samples of a run tell."""
        return replace(self, target_kind=None, bounds=tuple((*bound[:3], False) for bound in self.bounds))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent, the arguments of an equal form."""
        values: dict[str, Any] = to_jsonable_python(self)
        return values if self.pairs is not None else {name: value for name, value in values.items() if name != "pairs"}
