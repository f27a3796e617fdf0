"""What the kernel says of all processes; nothing where there is no /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process.

    Args:
        memory_bytes: Resident; pages that processes share count for each of them.
    """

    parent: int
    group: int
    memory_bytes: int


def read_process_table() -> dict[int, ProcessEntry]:
    """Return process id → process."""
    page = os.sysconf("SC_PAGE_SIZE")
    table = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
                # The name of the program, in brackets, may hold spaces and brackets.
                fields = stat.read().rpartition(b")")[2].split()
                table[int(name)] = ProcessEntry(int(fields[1]), int(fields[2]), int(fields[21]) * page)
    return table


def has_ended(process: int) -> bool:
    """Say whether a process has ended, also while its parent has not looked yet; False where there is no /proc."""
    try:
        with open(f"/proc/{process}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except FileNotFoundError:
        return os.path.exists("/proc/self/stat")


def ancestors(process: int, table: Mapping[int, ProcessEntry]) -> Iterator[int]:
    """Yield the parent of a process, its parent, and so on."""
    seen = {process}
    while (entry := table.get(process)) is not None and entry.parent not in seen:
        process = entry.parent
        seen.add(process)
        yield process


def descendants(process: int) -> list[int]:
    """Return the processes that a process started, and those that they started."""
    table = read_process_table()
    return [other for other in table if process in ancestors(other, table)]


def memory_of_groups() -> dict[int, int]:
    """Return the resident bytes of every process group with all descendants of its processes, whatever group they are in."""
    table = read_process_table()
    groups: dict[int, int] = {}
    for process, entry in table.items():
        owners = {entry.group}.union(table[other].group for other in ancestors(process, table) if other in table)
        for group in owners:
            groups[group] = groups.get(group, 0) + entry.memory_bytes
    return groups
