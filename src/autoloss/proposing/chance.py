"""Random generators: each draw of a search has its own, derived from what the draw decides.

So no draw depends on how many were made before it, or by which worker: the history of a run is a function of its
configuration and seed alone.
"""

from __future__ import annotations

import hashlib
from random import Random


def derive_generator(seed: int, purpose: str, *parts: int | str) -> Random:
    """Return the generator for one decision; equal arguments give equal draws.

    Args:
        purpose: What is decided. It belongs to the history of every run, so it never changes.

    >>> derive_generator(0, "parent", 21).random() == derive_generator(0, "parent", 21).random()
    True
    """
    return Random(derive_seed(seed, purpose, *parts))


def derive_seed(seed: int, purpose: str, *parts: int | str) -> int:
    """Return a seed, 0 to 2**63 - 1, for one decision."""
    text = "\x1f".join(map(str, (seed, purpose, *parts)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
