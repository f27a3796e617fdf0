"""Appendix B, the discovered losses, and the hand-made baselines beside them, by name.

Listing names imports no torch; only asking for a loss does.
"""

from __future__ import annotations

from autoloss.zoo.entries import ENTRIES, Entry
from autoloss.zoo.resolving import entry, get, names, resolve

__all__ = ["ENTRIES", "Entry", "entry", "get", "names", "resolve"]
