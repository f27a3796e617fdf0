"""What a loss needs to know of its branch when no task is at hand: plain values, stored with a run and used by exports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from autoloss.errors import RequestError, unknown
from autoloss.space.options import Activation, Divisor, Encoding, check_options

if TYPE_CHECKING:
    from autoloss.space.branch import Branch


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchForm:
    """What the export of a branch's tree needs to know of the branch; stored with a run, so that no task is needed.

    Args:
        leaves: Names of the leaves, in the branch's order.
        from_prediction: The exported module takes raw prediction and target, as `ActivatedBranch` does. Otherwise (boxes) it
            takes the leaves, and the other arguments but `weight` mean nothing.

    Raises:
        RequestError: A value that no branch has; none of them can bring foreign text into a file.
    """

    leaves: tuple[str, ...] = ("y", "p")
    from_prediction: bool = True
    activation: Activation = "softmax"
    encoding: Encoding = "one_hot"
    tolerance: int = 5
    ignore_index: int | None = None
    divide_by: Divisor = "all"
    weight: float = 1.0

    def __post_init__(self) -> None:
        strange = [name for name in self.leaves if not _is_name(name)]
        whole = [self.tolerance] if self.ignore_index is None else [self.tolerance, self.ignore_index]
        if strange or not self.leaves:
            raise RequestError(f"A branch's leaves need names that Python can use; found {self.leaves!r}.")
        if any(type(number) is not int for number in whole) or not _is_number(self.weight):
            raise RequestError(f"tolerance and ignore_index are whole numbers, weight a finite one; found {self}.")
        if self.from_prediction:
            check_options(self.activation, self.encoding, self.divide_by)

    @classmethod
    def of(cls, branch: Branch) -> BranchForm:
        """Read the form off a branch; one that overrides what `ActivatedBranch` does is known by its leaves only."""
        from autoloss.space.activated import ActivatedBranch

        decisive = ("leaves", "encoded", "mask", "divisor")
        leaves, weight = tuple(branch.leaves_and_roles), float(branch.weight)
        if not isinstance(branch, ActivatedBranch) or any(
            getattr(type(branch), name) is not getattr(ActivatedBranch, name) for name in decisive
        ):
            return cls(leaves=leaves, from_prediction=False, weight=weight)
        return cls(
            leaves=leaves,
            activation=branch.activation,
            encoding=branch.encoding,
            tolerance=int(branch.tolerance),
            ignore_index=None if branch.ignore_index is None else int(branch.ignore_index),
            divide_by=branch.divide_by,
            weight=weight,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**asdict(self), "leaves": list(self.leaves)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BranchForm:
        """Read what `to_dict` returned.

        Raises:
            RequestError: An unknown field, or a value that no branch has.
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
