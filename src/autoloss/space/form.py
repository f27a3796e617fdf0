"""The settings of a branch as plain values, which are stored with a run and used by exports without the task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from autoloss.errors import RequestError, unknown
from autoloss.space.options import (
    AREA_UNITS,
    TARGET_KINDS,
    Activation,
    AreaUnit,
    Divisor,
    Encoding,
    PairWeight,
    TargetKind,
    check_options,
    check_pair_options,
)

Kind = Literal["classes", "labels", "values", "areas", "pairs", "differences"]
KINDS: Mapping[Activation, Kind] = {"softmax": "classes", "sigmoid": "labels", "none": "values"}
Bound = tuple[str, float | None, float | None, bool]
"""A leaf, its least and largest value (None if unbounded), and whether nothing lies between 0 and 1."""


@dataclass(frozen=True, slots=True)
class PairForm:
    """What the pairs of a `PairBranch` are; its fields are those of the branch."""

    columns: tuple[str, ...] = ("value",)
    weigh: PairWeight = "none"
    limit: int = 1
    seed: int = 0

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PairForm:
        """Read plain values.

        Raises:
            RequestError: A field is missing or unknown.
        """
        if set(values) != {field.name for field in fields(cls)}:
            raise RequestError(
                f"The pairs of a branch are described by {', '.join(values)}; expected columns, weigh, limit and seed."
            )
        plain: dict[str, Any] = {**values, "columns": tuple(values["columns"])}
        return cls(**plain)


@dataclass(frozen=True, slots=True, kw_only=True)
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

    leaves: tuple[str, ...] = ("y", "p")
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
        strange = [name for name in self.leaves if not _is_name(name)]
        whole = [self.tolerance] if self.ignore_index is None else [self.tolerance, self.ignore_index]
        if strange or not self.leaves:
            raise RequestError(f"The leaves of a branch need names that are Python identifiers; found {self.leaves!r}.")
        if any(type(number) is not int for number in whole) or not _is_number(self.weight):
            raise RequestError(f"tolerance and ignore_index must be integers, weight a finite number; found {self}.")
        if self.target_kind not in (None, *TARGET_KINDS):
            raise unknown("kind of target", str(self.target_kind), TARGET_KINDS)
        if self.unit not in (None, *AREA_UNITS):
            raise unknown("unit of areas", str(self.unit), AREA_UNITS)
        if not all(map(_is_bound, self.bounds)):
            raise RequestError(f"The bounds of leaves are (name, least, largest, binary); found {self.bounds!r}.")
        if self.from_prediction:
            check_options(self.activation, self.encoding, self.divide_by)
        if self.pairs is not None:
            check_pair_options(self.pairs.columns, self.activation, self.pairs.weigh, self.pairs.limit, self.pairs.seed)

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
        """Return plain values that JSON can represent."""
        values: dict[str, Any] = {
            **asdict(self),
            "leaves": list(self.leaves),
            "bounds": [list(bound) for bound in self.bounds],
        }
        if self.pairs is None:
            del values["pairs"]
        else:
            values["pairs"]["columns"] = list(self.pairs.columns)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BranchForm:
        """Read what `to_dict` returned.

        Raises:
            RequestError: A field is unknown, or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown("field of a branch's form", name, known)
        bounds: list[list[Any]] = list(values.get("bounds", ()))
        plain: dict[str, Any] = {
            **values,
            "leaves": tuple(values.get("leaves", ("y", "p"))),
            "bounds": tuple(tuple(bound) for bound in bounds),
        }
        if values.get("pairs") is not None:
            plain["pairs"] = PairForm.from_dict(values["pairs"])
        return cls(**plain)


def _is_name(leaf: object) -> bool:
    return isinstance(leaf, str) and leaf.isidentifier()


def _is_bound(found: Sequence[object]) -> bool:
    ends = all(end is None or _is_number(end) for end in found[1:3])
    return ends and len(found) == 4 and _is_name(found[0]) and isinstance(found[3], bool)


def _is_number(weight: object) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
