"""The settings of a branch as plain values, which are stored with a run and used by exports without the task."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from autoloss.errors import RequestError, unknown
from autoloss.space.options import TARGET_KINDS, Activation, Divisor, Encoding, TargetKind, check_options

if TYPE_CHECKING:
    from autoloss.space.branch import Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchForm:
    """The settings of a branch that the export of its tree needs.

    Args:
        leaves: Names of the leaves, in the branch's order.
        from_prediction: Whether the exported module takes raw prediction and target, as `ActivatedBranch` does. Otherwise
            (boxes) it takes the leaves, and of the other arguments only `weight` is used.
        target_kind: What y is on the branch's samples; None where that was not looked at.
        unit: Unit of the areas of a `BoxRegression`; None for another branch.

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
    unit: str | None = None

    def __post_init__(self) -> None:
        strange = [name for name in self.leaves if not _is_name(name)]
        whole = [self.tolerance] if self.ignore_index is None else [self.tolerance, self.ignore_index]
        if strange or not self.leaves:
            raise RequestError(f"The leaves of a branch need names that are Python identifiers; found {self.leaves!r}.")
        if any(type(number) is not int for number in whole) or not _is_number(self.weight):
            raise RequestError(f"tolerance and ignore_index must be integers, weight a finite number; found {self}.")
        if self.target_kind not in (None, *TARGET_KINDS):
            raise unknown("kind of target", str(self.target_kind), TARGET_KINDS)
        if self.from_prediction:
            check_options(self.activation, self.encoding, self.divide_by)

    @classmethod
    def from_branch(cls, branch: Branch) -> BranchForm:
        """Return the form of a branch; of a class that overrides methods of `ActivatedBranch` leaves, activation and weight."""
        from autoloss.space.activated import is_plain
        from autoloss.space.boxes import BoxRegression

        leaves, weight = tuple(branch.leaves_and_roles), float(branch.weight)
        if not is_plain(branch):
            unit = None
            if isinstance(branch, BoxRegression) and type(branch).leaves is BoxRegression.leaves:
                unit = branch.unit
            return cls(leaves=leaves, from_prediction=False, activation=branch.activation, weight=weight, unit=unit)
        return cls(
            leaves=leaves,
            activation=branch.activation,
            encoding=branch.encoding,
            tolerance=int(branch.tolerance),
            ignore_index=None if branch.ignore_index is None else int(branch.ignore_index),
            divide_by=branch.divide_by,
            weight=weight,
        )

    @property
    def has_binary_target(self) -> bool:
        """Whether y is known to be 0 or 1 everywhere."""
        return self.target_kind in ("one_hot", "binary")

    def leave_out_facts(self) -> BranchForm:
        """Return the form without what older runs do not store: two forms of one branch are then equal."""
        activation = self.activation if self.from_prediction else "softmax"
        return replace(self, activation=activation, target_kind=None, unit=None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent."""
        return {**asdict(self), "leaves": list(self.leaves)}

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
        leaves: Any = values.get("leaves", ("y", "p"))
        rest: dict[str, Any] = {name: value for name, value in values.items() if name != "leaves"}
        return cls(leaves=tuple(leaves), **rest)


def _is_name(leaf: object) -> bool:
    return isinstance(leaf, str) and leaf.isidentifier()


def _is_number(weight: object) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
