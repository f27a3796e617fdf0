"""What the kernel says of all processes; nothing where there is no /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
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


def measure_groups(groups: Iterable[int], limit_bytes: int) -> dict[int, int]:
    """Return the memory in bytes of process groups with all descendants of their processes, whatever group those are in.

    Args:
        limit_bytes: Up to here a group is measured by its resident pages, where those that processes share count for each; above,
            they are divided among all that share them. That takes longer, some 10 ms per GB.
    """
    table = read_process_table()
    members: dict[int, list[int]] = {group: [] for group in groups}
    for process, entry in table.items():
        for group in {entry.group}.union(table[other].group for other in ancestors(process, table) if other in table):
            if group in members:
                members[group].append(process)
    resident = {group: sum(table[process].memory_bytes for process in found) for group, found in members.items()}
    return {
        group: used if used <= limit_bytes else sum(_measure_share(process, table) for process in members[group])
        for group, used in resident.items()
    }


def _measure_share(process: int, table: Mapping[int, ProcessEntry]) -> int:
    """Return the resident bytes of a process, with its share of those that others share."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/smaps_rollup", "rb") as rollup:
        for line in rollup:
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    # Otherwise the kernel is older than this file, or the process another user's.
    return 0 if has_ended(process) else table[process].memory_bytes
