"""The losses that the paper discovered (Appendix B) and hand-made baselines, by name.

Listing names imports no torch; only asking for a loss does.
"""

from __future__ import annotations

from autoloss.zoo.entries import ENTRIES
from autoloss.zoo.entry import Entry
from autoloss.zoo.resolving import entry, get, names, resolve

__all__ = ["ENTRIES", "Entry", "entry", "get", "names", "resolve"]
