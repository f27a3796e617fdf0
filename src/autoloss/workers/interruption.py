"""Delay Ctrl-C while something runs that must not be interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def hold_interrupts() -> Iterator[Callable[[], bool]]:
    """Run the body uninterrupted; signals that arrive meanwhile go to their handlers at the end.

    Blocking the signals does not suffice: another thread would receive them and Python would still raise in this one.
    Outside the main thread, and for signals without a Python handler, nothing is done, since nothing is raised there.

    Yields:
        A function that returns whether a signal arrived, for loops that can end early.
    """
    arrived: list[tuple[int, FrameType | None]] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        known = {number: signal.getsignal(number) for number in _HELD}
        handlers = {int(number): handler for number, handler in known.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append((number, frame)))
        yield lambda: bool(arrived)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in arrived:
            handlers[number](number, frame)
