"""Compilation with a cache on disk, so that later processes load what was compiled once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numba import njit

from autoloss.rejection.compiled.functions import OPTIONS

_log = logging.getLogger(__name__)


def compile_cached(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function at its first call and cache it on disk; where that is impossible, warn once and go on."""
    warned = False

    def warn(error: Exception) -> None:
        nonlocal warned
        if not warned:
            _log.warning(
                "The compiled engine cannot be cached on disk (%s); this process compiles it for itself.", error
            )
        warned = True

    try:
        compiled: Callable[..., Any] = njit(**OPTIONS, cache=True)(function)
    except RuntimeError as error:
        warn(error)
        return njit(**OPTIONS)(function)

    def call(*arguments: Any) -> Any:
        try:
            return compiled(*arguments)
        except OSError as error:
            # The folder is gone or the disk is full. Saving comes last, so the compiled function is usable.
            warn(error)
            return compiled(*arguments)

    return call
