"""Faults that a run survives: for each promise, the work that was lost or repeated, and whether the history is equal.

Drivers are killed at random and at every named point, started twice on one run, read by others, and left without disk space;
files are damaged, or attack; folders are copied, moved and locked under a search; clients of the live page mean harm; nobody reads
what a search prints, Python is started in other ways, and machines are suspended.

python bench/reliability/faults.py --out results/faults.json        about half an hour on two cores
python bench/reliability/faults.py --only folders --out results/faults.json        its other rows stay
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import faults_clients
import faults_data
import faults_driver
import faults_file
import faults_folders
import faults_outside
import faults_sharing
import toy
from output import Figure, emit, keep_rows, make_parser, parse_arguments
from promise import Shown

EVALUATIONS = 8
DEFAULT_EVALUATIONS = 14
"""Enough for a model of the scores, and for promotions."""
FIGURES = {
    "kills at random points": Figure(("promises", {"name": "kills"}, "trials")),
    "kills at random points: trainings lost": Figure(("promises", {"name": "kills"}, "lost")),
    "kills at random points: history equal": Figure(("promises", {"name": "kills"}, "history_equal")),
    "kills at commit points": Figure(("promises", {"name": "points"}, "trials")),
    "kills at commit points: trainings lost": Figure(("promises", {"name": "points"}, "lost")),
    "races of two drivers": Figure(("promises", {"name": "races"}, "trials")),
    "races: median seconds of a refusal": Figure(("promises", {"name": "races"}, "median_refusal_seconds")),
    "commits beside readers": Figure(("promises", {"name": "readers"}, "trials")),
    "commits beside readers: failed": Figure(("promises", {"name": "readers"}, "failed_commits")),
    "damaged files": Figure(("promises", {"name": "damage"}, "trials")),
    "full disks": Figure(("promises", {"name": "disk"}, "trials")),
    "full disks: history equal": Figure(("promises", {"name": "disk"}, "history_equal")),
    "hostile clients": Figure(("promises", {"name": "clients"}, "trials")),
    "hostile clients: history equal": Figure(("promises", {"name": "clients"}, "history_equal")),
    "hostile files": Figure(("promises", {"name": "data"}, "trials")),
    "folders and clocks": Figure(("promises", {"name": "folders"}, "trials")),
    "folders and clocks: history equal": Figure(("promises", {"name": "folders"}, "history_equal")),
    "what comes from outside": Figure(("promises", {"name": "outside"}, "trials")),
    "what comes from outside: history equal": Figure(("promises", {"name": "outside"}, "history_equal")),
}


COUNTS = (1, 2, 5)
"""A driver is killed when it passes a point for the n-th time, for each n."""
USUAL = {
    "kills": 100,
    "counts": 3,
    "races": 50,
    "readers": 20,
    "reading_seconds": 20.0,
    "flips": 300,
    "truncations": 50,
    "full_disks": 3,
    "rounds": 10,
    "cases": 1000,
    "times": 10,
    "starts": 3,
    "kinds": len(faults_outside.KINDS),
}
QUICK = {
    "kills": 3,
    "counts": 1,
    "races": 2,
    "readers": 5,
    "reading_seconds": 2.0,
    "flips": 30,
    "truncations": 10,
    "full_disks": 1,
    "rounds": 1,
    "cases": 2,
    "times": 1,
    "starts": 1,
    "kinds": 3,
}


def _clean(folder: Path) -> faults_driver.Clean:
    return faults_driver.clean(folder, EVALUATIONS)


def _kill_by_default(folder: Path, sizes: Namespace) -> Shown:
    known = faults_driver.clean(folder, DEFAULT_EVALUATIONS, toy.BY_DEFAULT)
    return faults_driver.kills_at_random(folder, known, sizes.kills, where=" of a search by default")


def _come_from_outside(folder: Path, sizes: Namespace) -> Shown:
    return faults_outside.outside(folder, _clean(folder), sizes.starts, tuple(faults_outside.KINDS)[: sizes.kinds])


Experiment = Callable[[Path, Namespace], Shown]
PROMISES: Mapping[str, Experiment] = {
    "kills": lambda at, sizes: faults_driver.kills_at_random(at, _clean(at), sizes.kills),
    "points": lambda at, sizes: faults_driver.kills_at_points(at, _clean(at), counts=COUNTS[: sizes.counts]),
    "default": _kill_by_default,
    "races": lambda at, sizes: faults_sharing.races(at, sizes.races),
    "readers": lambda at, sizes: faults_sharing.readers(at, sizes.readers, 100, seconds=sizes.reading_seconds),
    "damage": lambda at, sizes: faults_file.damaged(at, sizes.flips, sizes.truncations),
    "disk": lambda at, sizes: faults_file.full_disk(at, _clean(at), periods=sizes.full_disks),
    "clients": lambda at, sizes: faults_clients.hostile_clients(at, _clean(at), sizes.rounds),
    "data": lambda at, sizes: faults_data.hostile_files(at, sizes.cases),
    "folders": lambda at, sizes: faults_folders.folders(at, _clean(at), sizes.times),
    "outside": _come_from_outside,
}
"""Name → the experiment; it gets a folder of its own and the sizes on the command line."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, **USUAL)
    parser.add_argument("--only", nargs="+", choices=list(PROMISES), help="only these promises")
    arguments = parse_arguments(parser, argv, **QUICK)
    torch.set_num_threads(1)
    shown = [_tried(name, arguments) for name in arguments.only or PROMISES]
    emit({"promises": keep_rows([one.values() for one in shown], arguments, "promises")}, arguments, _print)
    if not all(one.kept for one in shown):
        raise SystemExit(1)


def _tried(name: str, sizes: Namespace) -> Shown:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        shown = PROMISES[name](Path(folder), sizes)
    return replace(shown, more={"name": name, **shown.more, "seconds": round(time.monotonic() - began, 1)})


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
