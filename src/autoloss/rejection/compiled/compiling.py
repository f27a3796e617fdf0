"""Compiled functions that later processes load instead of compiling them again, where there is a place to keep them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from numba import njit

from autoloss.rejection.compiled.functions import OPTIONS

_log = logging.getLogger(__name__)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called, and keep it; where there is no place for it, say so once and go on."""
    told = False

    def tell(error: Exception) -> None:
        nonlocal told
        if not told:
            _log.warning("The compiled engine cannot be kept (%s); this process compiles it for itself.", error)
        told = True

    try:
        compiled: Callable[..., Any] = njit(**OPTIONS, cache=True)(function)
    except RuntimeError as error:
        tell(error)
        return njit(**OPTIONS)(function)

    def call(*arguments: Any) -> Any:
        try:
            return compiled(*arguments)
        except OSError as error:
            # The folder went or the disk is full. Keeping comes last: what was compiled is there all the same.
            tell(error)
            return compiled(*arguments)

    return call
