"""Each promise of reliability, tried until it would break: what was lost, what was done twice, and whether the history is the same.

Drivers are killed at random and at every named point, raced against each other, read from, damaged and left without a disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import faults_driver
import faults_file
import faults_sharing
from machine import machine
from output import emit
from promise import Shown

EVALUATIONS = 8


@dataclass(frozen=True, slots=True)
class Size:
    """How often each promise is tried.

    Args:
        counts: A driver is ended when it passes a point for so many times.
    """

    kills: int = 100
    counts: tuple[int, ...] = (1, 2, 5)
    races: int = 50
    readers: int = 20
    reading_seconds: float = 20.0
    flips: int = 300
    truncations: int = 50
    full_disks: int = 3


QUICK = Size(kills=20, counts=(1,), races=6, reading_seconds=2.0, full_disks=1)


def _of_driver(experiment: Callable[..., Shown], folder: Path, **options: Any) -> Shown:
    return experiment(folder, faults_driver.clean(folder, EVALUATIONS), **options)


Experiment = Callable[[Path], Shown]


def promises(size: Size) -> Mapping[str, Experiment]:
    """Return every experiment by name; each gets a folder of its own."""
    return {
        "kills": partial(_of_driver, faults_driver.kills_at_random, kills=size.kills),
        "points": partial(_of_driver, faults_driver.kills_at_points, counts=size.counts),
        "races": partial(faults_sharing.races, trials=size.races),
        "readers": partial(faults_sharing.readers, count=size.readers, commits=100, seconds=size.reading_seconds),
        "damage": partial(faults_file.damaged, flips=size.flips, truncations=size.truncations),
        "disk": partial(_of_driver, faults_file.full_disk, periods=size.full_disks),
    }


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    size = QUICK if arguments.quick else Size()
    table = promises(size)
    shown = [_tried(name, table[name]) for name in arguments.only or table]
    emit({"machine": machine(), "promises": [one.values() for one in shown]}, arguments, _print)
    if not all(one.kept for one in shown):
        raise SystemExit(1)


def _tried(name: str, experiment: Experiment) -> Shown:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shown = experiment(Path(folder))
    return replace(shown, more={"name": name, **shown.more, "seconds": round(time.monotonic() - began, 1)})


def _arguments() -> argparse.Namespace:
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--quick", action="store_true", help="fewer trials of each promise")
    asked.add_argument("--json", action="store_true", help="print one JSON document")
    asked.add_argument("--out", type=Path, help="a file to write")
    asked.add_argument("--only", nargs="+", choices=list(promises(QUICK)), help="these promises alone")
    return asked.parse_args()


def _print(result: dict[str, Any]) -> None:
    for row in result["promises"]:
        history = {None: "", True: ", same history", False: ", ANOTHER HISTORY"}[row["history_equal"]]
        print(f"{row['promise']}: {row['trials']} trials, {row['lost']} lost, {row['repeated']} repeated{history}")
        for text in row["violations"]:
            print(f"  VIOLATION: {text}")
        more = {key: value for key, value in row.items() if key not in Shown.__dataclass_fields__}
        print(f"  {', '.join(f'{key} {value}' for key, value in more.items())}")


if __name__ == "__main__":
    main()
