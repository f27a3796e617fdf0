"""What comes from outside a search: who reads its output, when it is interrupted, how it is started, what lies beside its task.

Each trial is a command of its own. What it says is followed to the letter. The finished run is compared with the
undisturbed one.
"""

from __future__ import annotations

import importlib.util
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

import psutil

import toy
from autoloss.store import store as stores
from faults_driver import SEED, Clean, begun, compared_with
from faults_folders import obey_permissions
from promise import Shown

PATIENCE_SECONDS = 900.0
SHADOWS = ("cuda", "triton", "psutil", "sympy", "random", "tempfile")
"""Modules that torch, numba and a worker look for; files of these names lie beside the task."""
LATEST_INTERRUPT = 8.0
"""Seconds after which a command is interrupted at the latest."""
DEADLINE, SUSPENDED = 10, 25.0
"""Seconds for which a training may run, and for which the machine stands still meanwhile."""
CROWD = 16
"""Workers of a search that are far too many; each takes some 300 MB, which more of them would not leave on a small machine."""
CHILD = """
import multiprocessing, sys
import autoloss, toy
def search(directory, evaluations, seed, settings):
    autoloss.search(toy.TASK, evaluations=evaluations, seed=seed, workers=0, directory=directory, settings=settings)
if __name__ != "__mp_main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=search, args=({arguments}))
    child.start(); child.join(); sys.exit(child.exitcode)
"""
LOOP = """
import asyncio, io, sys
import autoloss, toy
class Shown(io.StringIO):
    def fileno(self): raise io.UnsupportedOperation("fileno")
async def cell():
    sys.stdout = sys.stderr = Shown()
    autoloss.search(toy.TASK, evaluations=evaluations, seed=seed, workers=2, directory=directory, settings=settings)
directory, evaluations, seed, settings = {arguments}
asyncio.run(cell())
"""
THREADS = """
import threading, sys
import autoloss, toy
from autoloss.errors import RequestError
directory, evaluations, seed, settings = {arguments}
ended = []
def search(number):
    try:
        options = dict(evaluations=evaluations, seed=seed, workers=2, ray={ray}, settings=settings)
        autoloss.search(toy.TASK, directory=directory + " " * number, **options)
        ended.append("done")
    except RequestError as error:
        ended.append("refused" if "thread" in str(error) else str(error))
threads = [threading.Thread(target=search, args=(number,)) for number in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(sorted(ended) != ["done", "refused"])
"""


PLAIN = ("-m", "autoloss")
RAY = ("--ray", "auto", "--workers", "2")


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
        python: Sequence[str] = PLAIN,
        variables: Mapping[str, str] | None = None,
        prepare: Callable[[], object] | None = None,
        **streams: int,
    ) -> subprocess.Popen[str]:
        paths = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": paths, **(variables or {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
        command = [sys.executable, *python, *words]
        return subprocess.Popen(
            command, env=environment, text=True, start_new_session=True, preexec_fn=prepare, **pipes
        )

    def start_script(self, text: str, *words: str, **values: object) -> subprocess.Popen[str]:
        """Start a script that searches in its own way."""
        arguments = (str(self.directory), self.known.evaluations, SEED, dict(self.known.settings))
        place = self.directory.with_suffix(".py")
        for name, value in {"arguments": ", ".join(map(repr, arguments)), **values}.items():
            text = text.replace(f"{{{name}}}", str(value))
        place.write_text(text)
        return self.start(words, [str(place)])

    def begin(self, *words: str, prepare: Callable[[], object] | None = None) -> subprocess.Popen[str]:
        """Start the search and wait until a few of its trainings began."""
        trace = self.directory.with_suffix(".trace")
        process = self.start(self.words(*words), variables={toy.TRACE: str(trace)}, prepare=prepare)
        while begun(trace).total() < self.known.evaluations // 2 and process.poll() is None:
            time.sleep(0.02)
        return process

    def finish(self, process: subprocess.Popen[str], *codes: int) -> str:
        """Wait for a command; return what it said beside its output."""
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
        if process.returncode not in codes or "Traceback" in (said or ""):
            self.wrong.append(f"a command ended with {process.returncode}: {(said or '')[-300:]}")
        return said or ""

    def compare(self) -> None:
        if not stores.exists(self.directory) or not compared_with(self.known, self.directory):
            self.wrong.append("another history")


def _lose_output(trial: Trial, place: str, words: Sequence[str] = ()) -> None:
    """Nobody reads what a search prints, from its beginning or from its first line on; or there is no room for it."""
    if place == "full":
        with open("/dev/full", "wb") as full:
            said = trial.finish(trial.start(trial.words(*words), stdout=full.fileno()), 0)
    else:
        process = trial.start(trial.words(*words), stderr=subprocess.STDOUT if place == "both" else subprocess.PIPE)
        assert process.stdout is not None
        if place == "head":
            process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        said = trial.finish(process, 0)
    if place != "both" and "could not be written" not in said:
        trial.wrong.append(f"a lost output is not named: {said[-200:]}")
    trial.compare()


def _interrupt(trial: Trial, number: int, words: Sequence[str] = ()) -> None:
    """A command is interrupted at any time; what it says is done."""
    process = trial.start(trial.words(*words))
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
    """Far more workers than cores and candidates; others on the machine come first."""
    trial.finish(trial.start(trial.words("--workers", str(CROWD)), prepare=partial(os.nice, 10)), 0)
    trial.compare()


def _suspend(trial: Trial) -> None:
    """The machine stands still for longer than a training may run, in the middle of one."""
    hold, trace = trial.directory.with_suffix(".hold"), trial.directory.with_suffix(".trace")
    words = trial.words("--workers", "2", "--set", f"limits.training_seconds={DEADLINE}")
    process = trial.start(words, variables={toy.HOLD: str(hold), toy.TRACE: str(trace)})
    while not begun(trace) and process.poll() is None:
        time.sleep(0.02)
    driver = psutil.Process(process.pid)
    everyone = [driver, *driver.children(recursive=True)]
    for one in everyone:
        one.suspend()
    time.sleep(SUSPENDED)
    hold.touch()
    for one in everyone:
        one.resume()
    trial.finish(process, 0)
    trial.compare()


def _remove(trial: Trial) -> None:
    """The folder of the run is removed while a search writes to it; the same command begins again."""
    process = trial.begin()
    shutil.rmtree(trial.directory, ignore_errors=True)
    if trial.finish(process, 0, 1) and process.returncode == 1 and trial.directory.exists():
        trial.wrong.append("a folder came back where the run was")
    if process.returncode == 1:
        trial.finish(trial.start(trial.words()), 0)
    trial.compare()


def _protect(trial: Trial) -> None:
    """The folder of the run becomes read-only while a search writes to it, which may not override that."""
    process = trial.begin(prepare=obey_permissions)
    paths = [trial.directory, *trial.directory.iterdir()]
    modes = {path: path.stat().st_mode for path in paths}
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    trial.finish(process, 0, 1)
    for path, mode in modes.items():
        if path.exists():
            path.chmod(mode)
    trial.finish(trial.start(["resume", str(trial.directory), "--final"]), 0)
    trial.compare()


def _copy(trial: Trial) -> None:
    """An interrupted run is copied, and both go on at once."""
    process = trial.begin()
    process.send_signal(signal.SIGINT)
    trial.finish(process, 130, 0)
    copy = trial.directory.with_suffix(".copy")
    shutil.copytree(trial.directory, copy)
    both = [trial.start(["resume", str(place), "--final"]) for place in (trial.directory, copy)]
    for one in both:
        trial.finish(one, 0)
    trial.compare()
    trial.directory = copy
    trial.compare()


def _run_script(trial: Trial, text: str, *words: str, **values: object) -> None:
    """A script of Python searches."""
    trial.finish(trial.start_script(text, *words, **values), 0)
    second = trial.directory.with_name(f"{trial.directory.name} ")
    trial.directory = trial.directory if stores.exists(trial.directory) else second
    trial.compare()


KINDS: Mapping[str, Callable[[Trial], None]] = {
    "nobody reads": partial(_lose_output, place="closed"),
    "one line is read": partial(_lose_output, place="head"),
    "neither output nor errors are read": partial(_lose_output, place="both"),
    "no room for the output": partial(_lose_output, place="full"),
    "Ctrl-C": partial(_interrupt, number=signal.SIGINT),
    "asked to end": partial(_interrupt, number=signal.SIGTERM),
    "terminal closed": partial(_interrupt, number=signal.SIGHUP),
    "without assertions": partial(_start_otherwise, python=["-O", *PLAIN], variables={}),
    "another hash seed": partial(_start_otherwise, python=PLAIN, variables={"PYTHONHASHSEED": "77"}),
    "eight threads": partial(_start_otherwise, python=PLAIN, variables={"OMP_NUM_THREADS": "8"}),
    "locale C": partial(_start_otherwise, python=PLAIN, variables={"LC_ALL": "C", "PYTHONUTF8": "0"}),
    "files named like libraries": _shadow,
    "linked and moved": _link,
    f"{CROWD} workers": _crowd,
    "suspended": _suspend,
    "folder removed": _remove,
    "folder read-only": _protect,
    "two copies": _copy,
    "a child by spawn": lambda trial: _run_script(trial, CHILD, "spawn"),
    "a child by forkserver": lambda trial: _run_script(trial, CHILD, "forkserver"),
    "in a loop of events": partial(_run_script, text=LOOP),
    "two threads": partial(_run_script, text=THREADS, ray=None),
}
"""What happens → how."""
ON_RAY: Mapping[str, Callable[[Trial], None]] = {
    "nobody reads, on Ray": partial(_lose_output, place="closed", words=RAY),
    "Ctrl-C, on Ray": partial(_interrupt, number=signal.SIGINT, words=RAY),
    "two threads, on Ray": partial(_run_script, text=THREADS, ray="'auto'"),
}
if importlib.util.find_spec("ray"):
    KINDS = {**KINDS, **ON_RAY}


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
