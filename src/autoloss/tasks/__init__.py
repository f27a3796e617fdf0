"""Section 4 and Appendix A: the tasks for which losses are searched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoloss.tasks.catalogue import get, inspect, names

__all__ = ["get", "inspect", "names"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from autoloss.tasks import catalogue

    return getattr(catalogue, name)
