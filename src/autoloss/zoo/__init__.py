"""The losses that the paper found (Appendix B) and hand-made baselines, by name.

Listing the names does not import torch; making a loss does.
"""

from __future__ import annotations

from autoloss.zoo.entries import ENTRIES
from autoloss.zoo.entry import Entry
from autoloss.zoo.resolving import get, get_entry, names, resolve

__all__ = ["ENTRIES", "Entry", "get", "get_entry", "names", "resolve"]
