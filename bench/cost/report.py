"""Cost of reading a large run: each command that reads one, and the live page.

python bench/cost/report.py --candidates 100000 --out results/report.json

The run is written through the store that searches write to; its losses are drawn, its scores and curves are made up. Each
command runs in a process of its own; `imports` is such a process that only imports what the report needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from autoloss import __version__
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.report.page.serving import Live
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.space.expression import Alphabet
from autoloss.store.run_settings import RunSettings, TaskReference
from autoloss.store.store import Store
from autoloss.training.training import Training
from output import Figure, emit, make_parser, parse_arguments

COMMANDS: Mapping[str, Sequence[str]] = {
    "imports": ["import autoloss.report.page.writing, autoloss.space.form"],
    # The first call simplifies formulas and stores them; the second one reads them.
    "report": ["autoloss", "report", "{folder}"],
    "report again": ["autoloss", "report", "{folder}"],
    "top": ["autoloss", "top", "{folder}"],
    "top --by-size": ["autoloss", "top", "{folder}", "--by-size"],
    "show": ["autoloss", "show", "{folder}", "{last}"],
    "failures": ["autoloss", "failures", "{folder}"],
    "export": ["autoloss", "export", "{folder}"],
    "nothing": ["import autoloss.report.leaderboard"],
}
FIGURES = {
    "report: processor seconds": Figure(("rows", "report", "processor_seconds"), digits=1),
    "top: processor seconds": Figure(("rows", "top", "processor_seconds"), digits=1),
    "live page: seconds, nothing new": Figure(("look", "unchanged"), digits=1),
    "live page: seconds, one loss more": Figure(("look", "one loss more"), digits=2),
    "megabytes of the store": Figure(("store_megabytes",), digits=0),
    "megabytes of the report": Figure(("report_megabytes",), digits=2),
}
TRAINED, DIVERGED, MUTATED = 0.4, 0.05, 0.5
"""Shares among the candidates of a search, about those of digits-seg."""
CURVE_POINTS = 100


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__)
    asked.add_argument("--candidates", type=int, default=100_000, help="candidates of the run")
    asked.add_argument("--only", nargs="+", choices=list(COMMANDS), default=list(COMMANDS), help="only these commands")
    arguments = parse_arguments(asked, argv, candidates=3_000)
    with tempfile.TemporaryDirectory() as folder:
        emit(_measured(Path(folder), arguments.candidates, arguments.only), arguments, _print)


def _measured(folder: Path, candidates: int, commands: Sequence[str]) -> dict[str, Any]:
    trained = write(folder, candidates, Random(0))
    rows = {}
    for name in commands:
        first, *words = COMMANDS[name]
        code = _COMMAND if words else first
        rows[name] = _process(code, *(word.format(folder=folder, last=candidates - 1) for word in words))
    moment = [0.0]
    live = Live(folder, clock=lambda: moment[0])
    moment[0] = 1e6
    unchanged = _processor_seconds(live.fragment)
    before, _ = live.fragment()
    with Store(folder, write=True) as store:
        store.add_candidate(_candidate(candidates, (), "neg(mul(y, log(p)))", Random(1)), {})
        store.add_training("neg(mul(y, log(p)))", Training(seed=0), _outcome(0.5, Random(1)), candidates)
    moment[0] = 2e6
    changed = _processor_seconds(live.fragment)
    if live.fragment()[0] == before:
        raise RuntimeError("The live page did not notice another loss.")
    return {
        "candidates": candidates,
        "trained": trained,
        "store_megabytes": (folder / "run.sqlite").stat().st_size / 1e6,
        "report_megabytes": sum(file.stat().st_size for file in folder.glob("report.html")) / 1e6,
        "look": {"unchanged": unchanged, "one loss more": changed},
        "load": os.getloadavg()[0],
        "rows": rows,
    }


def _processor_seconds(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def write(folder: Path, candidates: int, rng: Random) -> int:
    """Write a run of made-up candidates and trainings; returns how many were trained."""
    branch = ActivatedBranch()
    alphabet = Alphabet(branch.leaves_and_roles)
    with Store(folder, write=True) as store:
        # A search waits for the disk after each row; here nobody would miss what a power cut takes.
        store.database.connection.execute("PRAGMA synchronous = OFF")
        store.write_settings(
            RunSettings(
                configuration=Configuration(evaluations=candidates),
                task=TaskReference(None),
                title="made up",
                branches={"main": branch.form()},
                release=__version__,
            )
        )
        trained: list[int] = []
        for number in range(candidates):
            candidate = _candidate(number, trained, str(initial_expression(alphabet, 3, rng)), rng)
            store.add_candidate(candidate, {("main", 0): ("add(1, 1)", "STRUCTURE")} if number % 10 == 0 else {})
            if candidate.source is None:
                trained.append(number)
                store.add_training(candidate.loss, Training(seed=0), _outcome(number / candidates, rng), number)
    return len(trained)


def _candidate(number: int, trained: Sequence[int], formula: str, rng: Random) -> Candidate:
    parent = rng.choice(trained[-2500:]) if len(trained) > 20 else None
    is_new = parent is None or rng.random() < TRAINED
    kind = "fresh" if parent is None or rng.random() > MUTATED else "mutated"
    return Candidate(
        id=number,
        parent=parent,
        kinds={"main": kind},
        attempts={"main": rng.randrange(200)},
        loss=formula,
        origin=Origin.TRAINED if is_new else Origin.TWIN,
        source=None if is_new else parent,
        signature={"main": tuple(f"{rng.random():.1e}" for _ in range(5))},
        scores={"main": tuple(rng.random() for _ in range(6))},
        counts={
            "sampled": 80,
            "simulated": 5,
            "passed": 1,
            "reused": 5,
            "STRUCTURE": 70,
            "LOW_GAIN": 4,
            "KNOWN_KEY": 5,
        },
        rejected={"main": rng.randbytes(40)},
        accepted={"main": rng.randbytes(8)},
    )


def _outcome(share: float, rng: Random) -> Outcome:
    """Make up a training; scores rise over the search."""
    if rng.random() < DIVERGED:
        return Outcome(state=State.DIVERGED, step=rng.randrange(1, 100), reason="the loss is not finite", seconds=0.1)
    score = min(0.99, rng.betavariate(1 + 4 * share, 3))
    curve = tuple((3 * step, math.exp(-step / 30) + 0.1 * rng.random()) for step in range(1, CURVE_POINTS + 1))
    return Outcome(state=State.SCORED, score=score, also={"miou": score, "gacc": score / 2}, curve=curve, seconds=2.0)


_COMMAND = "from autoloss.cli import main; main(sys.argv[2:])"
# A child's peak in `getrusage` begins with its parent's; the kernel's own figure begins with the program.
_PEAK = """
import atexit, pathlib, re, sys
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: pathlib.Path(sys.argv[1]).write_text(re.search(r"VmHWM:\\s*(\\d+)", status.read_text())[1]))
"""


def _process(code: str, *arguments: str) -> dict[str, float]:
    """Run code in a Python of its own and return how long it took and the most memory that it held."""
    with tempfile.NamedTemporaryFile("r") as peak:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", _PEAK + code, peak.name, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{' '.join(arguments) or code} ended with {process.returncode}.")
        kilobytes = int(peak.read())
    return {
        "seconds": seconds,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "megabytes": kilobytes / 1024,
    }


def _print(result: dict[str, Any]) -> None:
    print(f"{result['candidates']} candidates, {result['trained']} trained; store {result['store_megabytes']:.0f} MB")
    for name, row in result["rows"].items():
        times = f"{row['seconds']:6.1f} s ({row['processor_seconds']:.1f} s of processor time)"
        print(f"  {name:<13} {times}, {row['megabytes']:.0f} MB")
    looks = ", ".join(f"{seconds:.3f} s when {name}" for name, seconds in result["look"].items())
    print(
        f"  the report has {result['report_megabytes']:.2f} MB; the live page looks again in {looks} (processor time)"
    )


if __name__ == "__main__":
    main()
