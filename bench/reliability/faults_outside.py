"""What comes from outside a search: who reads its output, when it is interrupted, how it is started, what lies beside its task.

Each trial is a command of its own. What it says is followed to the letter. The finished run is compared with the
undisturbed one.
"""

from __future__ import annotations

import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import toy
from autoloss.store import store as stores
from faults_driver import SEED, Clean, compared_with
from promise import Shown

PATIENCE_SECONDS = 300.0
SHADOWS = ("cuda", "triton", "psutil", "sympy", "random", "tempfile")
"""Modules that torch, numba and a worker look for; files of these names lie beside the task."""
LATEST_INTERRUPT = 8.0
"""Seconds after which a command is interrupted at the latest."""


@dataclass
class Trial:
    """One run, driven by commands.

    Args:
        directory: Folder of the run.
        rng: Decides when what happens.
        wrong: What went wrong, in words.
    """

    directory: Path
    known: Clean
    rng: random.Random
    wrong: list[str] = field(default_factory=list)
    task: Path = Path(toy.__file__)

    def words(self, *others: str) -> list[str]:
        """Return the arguments of the search."""
        settings = {
            name: ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            for name, value in self.known.settings.items()
        }
        chosen = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        budget = ["--evaluations", str(self.known.evaluations), "--seed", str(SEED), "--out", str(self.directory)]
        workers = [] if "--workers" in others else ["--workers", "0"]
        return ["search", f"{self.task}:TASK", *budget, *workers, *chosen, *others]

    def start(
        self,
        words: Sequence[str],
        python: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        **streams: int,
    ) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, **(variables or {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [sys.executable, *python, "-m", "autoloss", *words]
        return subprocess.Popen(command, env=environment, text=True, start_new_session=True, **pipes)

    def finish(self, process: subprocess.Popen[str], *codes: int) -> str:
        """Wait for a command; return what it said beside its output."""
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        if process.returncode not in codes or "Traceback" in (said or ""):
            self.wrong.append(f"a command ended with {process.returncode}: {(said or '')[-300:]}")
        return said or ""

    def compare(self) -> None:
        if not stores.exists(self.directory) or not compared_with(self.known, self.directory):
            self.wrong.append("another history")


def _lose_output(trial: Trial, place: str) -> None:
    """Nobody reads what a search prints, from its beginning or from its first line on; or there is no room for it."""
    if place == "full":
        with open("/dev/full", "wb") as full:
            said = trial.finish(trial.start(trial.words(), stdout=full.fileno()), 0)
    else:
        process = trial.start(trial.words(), stderr=subprocess.STDOUT if place == "both" else subprocess.PIPE)
        assert process.stdout is not None
        if place == "head":
            process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        said = trial.finish(process, 0)
    if place != "both" and "could not be written" not in said:
        trial.wrong.append(f"a lost output is not named: {said[-200:]}")
    trial.compare()


def _interrupt(trial: Trial, number: int) -> None:
    """A command is interrupted at any time; what it says is done."""
    process = trial.start(trial.words())
    time.sleep(trial.rng.uniform(0.3, LATEST_INTERRUPT))
    process.send_signal(number)
    codes = {signal.SIGINT: (130, 0), signal.SIGTERM: (143, -number, 0), signal.SIGHUP: (-number, 0)}[number]
    said = trial.finish(process, *codes)
    is_run = stores.exists(trial.directory)
    if "Go on with: " in said:
        words = shlex.split(said.partition("Go on with: ")[2])[1:]
        if not is_run:
            trial.wrong.append("a resume was promised and there is no run")
    else:
        words = ["resume", str(trial.directory)] if is_run else trial.words()
    if process.returncode != 0:
        trial.finish(trial.start(words), 0)
    trial.compare()


def _start_otherwise(trial: Trial, python: Sequence[str], variables: Mapping[str, str]) -> None:
    """Python is started in another way."""
    trial.finish(trial.start(trial.words(), python, variables), 0)
    trial.compare()


def _shadow(trial: Trial) -> None:
    """Files beside the task are named like libraries."""
    folder = trial.directory.with_suffix(".task")
    folder.mkdir()
    trial.task = Path(shutil.copy(toy.__file__, folder / "own_task.py"))
    for name in SHADOWS:
        (folder / f"{name}.py").write_text("raise RuntimeError('a file beside the task was imported')\n")
    trial.finish(trial.start(trial.words("--workers", "2")), 0)
    trial.compare()


def _link(trial: Trial) -> None:
    """A run is begun in one place, and goes on through a link, then where it was moved to."""
    trial.finish(trial.start([*trial.words(), "--no-final"]), 0)
    link, moved = trial.directory.with_suffix(".link"), trial.directory.with_suffix(".moved")
    link.symlink_to(trial.directory)
    trial.finish(trial.start(["resume", str(link)]), 0)
    trial.directory.rename(moved)
    trial.finish(trial.start(["resume", str(moved), "--final"]), 0)
    trial.directory = moved
    trial.compare()


def _crowd(trial: Trial) -> None:
    """Far more workers than cores and candidates."""
    trial.finish(trial.start(trial.words("--workers", "64")), 0)
    trial.compare()


KINDS: Mapping[str, Callable[[Trial], None]] = {
    "nobody reads": partial(_lose_output, place="closed"),
    "one line is read": partial(_lose_output, place="head"),
    "neither output nor errors are read": partial(_lose_output, place="both"),
    "no room for the output": partial(_lose_output, place="full"),
    "Ctrl-C": partial(_interrupt, number=signal.SIGINT),
    "asked to end": partial(_interrupt, number=signal.SIGTERM),
    "terminal closed": partial(_interrupt, number=signal.SIGHUP),
    "without assertions": partial(_start_otherwise, python=["-O"], variables={}),
    "another hash seed": partial(_start_otherwise, python=[], variables={"PYTHONHASHSEED": "77"}),
    "eight threads": partial(_start_otherwise, python=[], variables={"OMP_NUM_THREADS": "8"}),
    "locale C": partial(_start_otherwise, python=[], variables={"LC_ALL": "C", "PYTHONUTF8": "0"}),
    "files named like libraries": _shadow,
    "linked and moved": _link,
    "64 workers": _crowd,
}
"""What happens → how."""


def outside(folder: Path, known: Clean, times: int, kinds: Sequence[str] = tuple(KINDS), seed: int = 0) -> Shown:
    """Let each of these happen so many times."""
    wrong: list[str] = []
    for number, kind in enumerate(kind for kind in kinds for _ in range(times)):
        trial = Trial(folder / f"outside {number}", known, random.Random(seed + number))
        KINDS[kind](trial)
        wrong += [f"{kind}: {text}" for text in trial.wrong]
    histories = [text for text in wrong if "another history" in text]
    return Shown(
        promise="a search ends as it would have, whoever reads it, interrupts it or starts it",
        trials=times * len(kinds),
        history_equal=not histories,
        violations=tuple(wrong),
    )
