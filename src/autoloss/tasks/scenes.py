"""The parts that tasks on composed scenes, which need no files, have in common: splits of their sources, and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from autoloss.options import Count, Natural, declare
from autoloss.training.recipe import Recipe

SHARES: Mapping[str, float] = {"train": 0.6, "valid": 0.2, "test": 0.2}
"""Split → share of the source that its scenes are made of, so that no part of the source occurs in two splits."""


def find_share(split: str, count: int) -> slice:
    """Return the part of `count` items of the source that belongs to a split."""
    ends = np.cumsum([0.0, *SHARES.values()])
    place = list(SHARES).index(split)
    return slice(round(ends[place] * count), round(ends[place + 1] * count))


def make_scene_rng(split: str, seed: int, *further: int) -> np.random.Generator:
    """Return the generator of the scenes of a split."""
    return np.random.default_rng([seed, list(SHARES).index(split), *further])


@declare()
class SceneOptions:
    """Options of every task on composed scenes."""

    size: int
    """Side of a scene in pixels."""
    train: Count
    """Number of training scenes."""
    valid: Count
    """Number of validation scenes."""
    test: Count
    """Number of test scenes."""
    seed: Natural = 0
    """Seed of the scenes."""
    recipe: Recipe

    def compose(self, compose: Callable[[str, int, int], Any]) -> dict[str, Any]:
        """Return split → scenes, made by a function of split, count and seed."""
        return {split: compose(split, getattr(self, split), self.seed) for split in ("train", "valid", "test")}
