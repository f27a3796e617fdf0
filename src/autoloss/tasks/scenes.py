"""Options of the tasks on composed scenes, which need no files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoloss.options import Count, Natural, declare


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
    epochs: Count
    """Epochs of the proxy. This option and `batch_size` are fields of its `Recipe`."""
    batch_size: Count
    """Examples per optimizer step."""

    def compose(self, compose: Callable[[str, int, int], Any]) -> dict[str, Any]:
        """Return split → scenes, made by a function of split, count and seed."""
        return {split: compose(split, getattr(self, split), self.seed) for split in ("train", "valid", "test")}
