"""The losses that the paper found (Appendix B) and hand-made baselines, by name.

Listing the names does not import torch; making a loss does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from autoloss.zoo.entries import ENTRIES, SHELF
from autoloss.zoo.entry import Entry
from autoloss.zoo.resolving import get, get_entry, names, resolve

if TYPE_CHECKING:
    from autoloss.zoo.auto_seg import AutoSegLoss, Curve
    from autoloss.zoo.region_losses import RegionLoss, weighted_cross_entropy

_HOMES = {
    "AutoSegLoss": "auto_seg",
    "Curve": "auto_seg",
    "RegionLoss": "region_losses",
    "weighted_cross_entropy": "region_losses",
}
"""Name → module from which it is imported at first use, since it needs torch."""

__all__ = [
    "ENTRIES",
    "SHELF",
    "AutoSegLoss",
    "Curve",
    "Entry",
    "RegionLoss",
    "get",
    "get_entry",
    "names",
    "resolve",
    "weighted_cross_entropy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
