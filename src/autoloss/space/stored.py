"""A branch made of its stored form, and what the form says of the values of its leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.branch import Branch
from autoloss.space.form import BranchForm
from autoloss.space.pairs import PairBranch
from autoloss.space.ranges import BINARY, Range


def make_branch(form: BranchForm, channels: int | None = None) -> Branch | None:
    """Make a branch with this form; None where the form does not tell how it makes its leaves.

    Args:
        channels: Of the raw prediction, which the ideal prediction needs.
    """
    if form.from_prediction:
        options = ("activation", "encoding", "tolerance", "ignore_index", "divide_by", "weight")
        return ActivatedBranch(channels=channels, **{name: getattr(form, name) for name in options})
    if form.pairs is not None and form.activation != "softmax":
        return PairBranch(activation=form.activation, weight=form.weight, **asdict(form.pairs))
    return None if form.unit is None else BoxRegression(unit=form.unit, weight=form.weight)


def find_ranges(form: BranchForm) -> Mapping[str, Range]:
    """Return the values that the leaves can take, as far as that is known."""
    if form.from_prediction:
        binary = {"y": BINARY} if form.target_kind in ("one_hot", "binary") else {}
        return {**ActivatedBranch(activation=form.activation).ranges, **binary}
    return {name: Range.from_bounds(low, high, binary) for name, low, high, binary in form.bounds}
