"""Random generators: each draw of a search has its own, derived from what the draw decides.

So no draw depends on how many were made before it, or by which worker: the history of a run is a function of its
configuration and seed alone.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from random import Random

PURPOSES = ("training", "ladder", "tuning", "confirmation", "validation", "comparison", "retraining", "score")
"""What several training seeds of a run are derived for."""
NUMBERED = 64
"""Training seeds of each purpose that are evaluated on one fold after the other; the remainder of a further one is its fold."""


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


@functools.lru_cache(maxsize=8)
def number_training_seeds(seed: int) -> Mapping[int, int]:
    """Return training seeds that are derived from a run's seed → their numbers; those of one purpose have numbers in a row.

    >>> numbers = number_training_seeds(0)
    >>> [numbers[derive_seed(0, "comparison", at)] - numbers[derive_seed(0, "comparison", 0)] for at in range(3)]
    [0, 1, 2]
    """
    numbers: dict[int, int] = {}
    for purpose in PURPOSES:
        # Scores of losses begin with the training seed of a search.
        is_first = purpose in ("training", "score")
        first = derive_seed(seed, "training") if is_first else derive_seed(seed, purpose, 0)
        numbers |= {first: first} | {derive_seed(seed, purpose, at): first + at for at in range(NUMBERED)}
    return numbers
