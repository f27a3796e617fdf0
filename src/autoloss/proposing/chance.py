"""Random generators: each draw of a search has its own, derived from what the draw decides.

So no draw depends on how many were made before it, or by which worker: the history of a run is a function of its
configuration and seed alone.
"""

from __future__ import annotations

import hashlib
import math
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


def follow_seed(first: int, seed: int, number: int) -> int:
    """Return a seed next to `seed` that has the number after `first`, modulo any count of folds up to 16.

    A fold is a training seed's remainder (`Evaluator`), so the seeds of one comparison are measured on all folds in turn.

    >>> [follow_seed(7, seed, number) % 5 for number, seed in enumerate((7, 10**9, 10**12))]
    [2, 3, 4]
    """
    return seed - (seed - first - number) % math.lcm(*range(1, 17))
