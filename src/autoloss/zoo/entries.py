"""The named losses: the formulas of Appendix B, the usual baselines, the shelf and what was found, all in `losses.txt`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Literal

from autoloss.space.loss_text import split_branches
from autoloss.tables import read_rows
from autoloss.zoo.entry import Entry

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss


def _read_entries() -> dict[str, Entry]:
    """Read the table: words that stand for longer texts, then four lines for each loss."""
    words, _, table = files("autoloss.zoo").joinpath("losses.txt").read_text(encoding="utf-8").partition("\n\n")
    known = dict(line.split(" = ", 1) for line in words.splitlines() if not line.startswith("#"))
    found: dict[str, Entry] = {}
    rows = read_rows(table.format_map(known), lines=4)
    for name, activation, target, metric, title, positive, loss, description, source in rows:
        entry = Entry(name, description, source, metric, target, activation, title=title, positive=positive)
        members = {row.name.removeprefix(f"{name}/"): row for row in found.values() if row.name.startswith(f"{name}/")}
        if members:
            found[name] = replace(entry, members=members)
        elif loss.startswith("@"):
            found[name] = replace(entry, factory=_defer(loss[1:]))
        else:
            found[name] = replace(entry, formula=loss)
    return found


def _defer(place: str) -> Callable[[Branch], BranchLoss]:
    """Return a factory that imports torch when a loss is made.

    Args:
        place: `module.Class` of a loss of a branch, or `module.function` of `Regions`; with arguments, of what returns one.
    """
    path, *arguments = place.split()
    module, name = path.split(".")

    def make(branch: Branch) -> BranchLoss:
        from autoloss.zoo.region_losses import RegionLoss

        found = getattr(import_module(f"autoloss.zoo.{module}"), name)
        if isinstance(found, type):
            return found(branch)
        return RegionLoss(branch, found(*arguments) if arguments else found)

    return make


ENTRIES = _read_entries()
SHELF = tuple(entry for name, entry in ENTRIES.items() if name.startswith("shelf/"))
"""Known losses as trees of the space, from which a search starts."""
OF_SHARES = tuple(f"baseline/{name}" for name in ("class_weighted_ce", "class_weighted_bce", "logit_adjusted_ce"))
"""Losses with the shares of the classes in the training data."""
COMPARED: Mapping[str, tuple[Literal["usual", "full"], Literal["any", "space", "rows", "groups"]]] = {
    "baseline/dice": ("usual", "any"),
    "baseline/lovasz": ("usual", "space"),
    "shelf/tversky": ("usual", "space"),
    "shelf/root_balanced_tversky": ("usual", "space"),
    "shelf/dice_bce": ("usual", "any"),
    "shelf/balanced_bce": ("usual", "rows"),
    "shelf/tversky_bce": ("usual", "space"),
    "shelf/root_balanced_tversky_bce": ("usual", "space"),
    "baseline/huber": ("usual", "any"),
    "shelf/absolute_error": ("usual", "any"),
    "shelf/euclidean": ("usual", "rows"),
    "baseline/l1_ssim": ("usual", "space"),
    "shelf/poisson": ("usual", "any"),
    "shelf/squared_log": ("usual", "any"),
    "shelf/absolute_percentage": ("usual", "any"),
    "shelf/log_ratio": ("usual", "any"),
    "shelf/symmetric_percentage": ("usual", "any"),
    **{f"baseline/quantile_{share}": ("usual", "rows") for share in (5, 10, 90, 95)},
    **{f"baseline/{name}": ("usual", "any") for name in ("ranknet", "auc_hinge", "auc_square", "auc_exponential")},
    **{f"baseline/{name}": ("usual", "any") for name in ("lambdarank", "listnet", "pointwise", "cox")},
    "baseline/auc_margin": ("usual", "rows"),
    **dict.fromkeys(OF_SHARES, ("usual", "any")),
    "baseline/wce": ("full", "any"),
    "baseline/dpce": ("full", "space"),
    "baseline/ssim": ("full", "space"),
    "baseline/ce_ssim": ("full", "space"),
}
"""Losses that are baselines beside the standard loss of a branch that they fit → whether of every comparison or only of one with
all of them, and of which items: those with space, such as images, single rows, those of groups, such as queries, or any."""


def say_loss(loss: str) -> str:
    """Return what a person calls a loss: the title of each named loss in it; a formula stays as it is.

    >>> say_loss("baseline/lovasz"), say_loss("cls: baseline/ce; reg: baseline/l1"), say_loss("y * p")
    ('Lovász', 'cross entropy + smooth L1', 'y * p')
    """
    names = split_branches(loss).values()
    return " + ".join(ENTRIES[name].title or name for name in names) if set(names) <= set(ENTRIES) else loss
