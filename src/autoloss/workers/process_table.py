"""Processes that descend from another one, and the memory that they hold."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil


def find_descendants(process: int) -> list[psutil.Process]:
    """Return all descendants of a process; none once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process).children(recursive=True)
    return []


def has_ended(process: int) -> bool:
    """Return True if a process has ended, also before its parent has reaped it."""
    try:
        return psutil.Process(process).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def measure_memory(roots: Iterable[int], limit_bytes: int) -> dict[int, int]:
    """Return the memory in bytes of descendants of this process, each with all its own descendants.

    Args:
        limit_bytes: Up to this, memory is the sum of resident pages, and shared pages count for each process; above it, they
            are divided among the processes that share them, which takes longer, some 10 ms per GB.
    """
    owners = {root: root for root in roots}
    members: dict[int, list[psutil.Process]] = {root: [] for root in owners}
    # Parents come before their children.
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            owner = owners.get(process.pid) or owners.get(process.ppid())
            if owner is not None:
                owners[process.pid] = owner
                members[owner].append(process)
    resident = {root: sum(map(_measure_resident, found)) for root, found in members.items()}
    return {
        root: used if used <= limit_bytes else sum(map(_measure_share, members[root]))
        for root, used in resident.items()
    }


def _measure_resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _measure_share(process: psutil.Process) -> int:
    """Return the resident bytes of a process, with its share of shared pages where the system reports it."""
    with contextlib.suppress(psutil.Error):
        return getattr(process.memory_full_info(), "pss", None) or process.memory_info().rss
    return _measure_resident(process)
