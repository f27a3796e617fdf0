"""Result of a fault experiment on one promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One promise, tried so many times.

    Args:
        lost: Finished work that was gone afterwards.
        repeated: Finished work that was done again.
        history_equal: Whether every history was that of the undisturbed run; None where no history is compared.
        violations: What else went wrong, in words.
        more: Further figures.
    """

    promise: str
    trials: int
    lost: int = 0
    repeated: int = 0
    history_equal: bool | None = None
    violations: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kept(self) -> bool:
        return not (self.lost or self.repeated or self.violations) and self.history_equal is not False

    def values(self) -> dict[str, Any]:
        return {
            "promise": self.promise,
            "trials": self.trials,
            "lost": self.lost,
            "repeated": self.repeated,
            "history_equal": self.history_equal,
            "violations": list(self.violations),
            **self.more,
        }
