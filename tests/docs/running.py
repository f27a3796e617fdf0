"""A folder in which a page is followed from its first block to its last, in one process."""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import threading
import tomllib
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import parse_args

from autoloss.cli import main
from autoloss.proposing.records import State
from autoloss.report.page.serving import Server
from autoloss.run.results import open_run
from tests.docs import smaller
from tests.docs.pages import ROOT, SHELL, Block


class Untrue(AssertionError):
    """A page says something that does not hold, or that neither runs nor is in a table."""


@dataclass
class Folder:
    """Where a page is followed.

    Args:
        captured: Returns what was printed since it was last asked.
        names: What Python's blocks have defined so far.
        said: What the last command printed.
    """

    path: Path
    captured: Callable[[], str]
    names: dict[str, Any] = field(default_factory=lambda: {"QUICK": dict(smaller.QUICK)})
    said: str = ""

    def follow(self, block: Block) -> None:
        """Do what a block says."""
        if block.file:
            (self.path / block.file).write_text(shortened(block.text), encoding="utf-8")
        if block.language == "python" and not block.mark.startswith("example"):
            self.names = runpy.run_path(str(self._small(block)), init_globals=self.names)
        elif block.language in SHELL:
            for command in block.commands():
                self.run(command)
        elif block.mark == "output":
            compare(block.text, self.said)

    def run(self, command: str) -> None:
        """Run a command of a page, or what stands for it."""
        if command.startswith("#!"):
            for inner in in_allocation(command, self.path):
                self.run(inner)
            return
        words = [word for word in shlex.split(command) if not re.match(r"^[A-Z_]+=", word)]
        if words[0] not in PROGRAMS:
            raise Untrue(f"The tests know no program {words[0]}: {command}")
        self.captured()
        PROGRAMS[words[0]](words[1:], self)
        self.said = self.captured()

    def _small(self, block: Block) -> Path:
        path = self.path / f"block_{block.line}.py"
        path.write_text(shortened(block.text), encoding="utf-8")
        return path


def shortened(text: str) -> str:
    """Return a block of Python at a size that runs in a moment."""
    for written, instead in smaller.PYTHON.items():
        text = text.replace(written, instead)
    return text


def small(words: list[str], folder: Path) -> list[str]:
    """Return the words of a command of autoloss at a size that runs in a moment."""
    text = shlex.join(words)
    for written, instead in smaller.WORDS.items():
        text = re.sub(rf"(?<!\S){re.escape(written)}(?!\S)", instead, text)
    kept: list[str] = []
    settings: dict[str, str | None] = {}
    rest = iter(shlex.split(text))
    for word in rest:
        option = next((key for key in (f"{words[0]} {word}", word) if key in smaller.OPTIONS), None)
        if word == "--set":
            name, _, value = next(rest).partition("=")
            settings[name] = smaller.SETTINGS.get(name, value)
        elif option:
            next(rest)
            instead = smaller.OPTIONS[option]
            kept += [] if instead is None else [word, instead]
        else:
            kept.append(word)
    for option, value in (smaller.ADDED.get(kept[0], {}) | smaller.ADDED.get(" ".join(kept[:2]), {})).items():
        kept += [] if option in kept else [option, *filter(None, [value])]
    settings = {**beside(kept, folder), **settings}
    return [*kept, *(part for name, value in settings.items() if value for part in ("--set", f"{name}={value}"))]


def beside(words: list[str], folder: Path) -> dict[str, str]:
    """Return the settings and options that a command gets beside its own."""
    if words[0] == "retrain":
        task = open_run(folder / words[1]).settings.task.name or ""
        return dict(smaller.RETRAINED.get(task, {}))
    options = smaller.TASKS.get(words[1], {}) if words[0] in ("search", "check", "score", "tune") else {}
    return {**(smaller.QUICK if words[0] == "search" else {}), **options}


def autoloss(words: list[str], folder: Folder) -> None:
    asked = small(words, folder.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Server, "serve_forever", served_once(Server.serve_forever))
        with pytest.raises(SystemExit) as ended:
            main(asked)
    if ended.value.code:
        raise Untrue(f"`autoloss {shlex.join(asked)}` ended with {ended.value.code}:\n{folder.captured()}")
    if words[0] == "search":
        outcomes = (one.outcome for run in folder.path.rglob("run.sqlite") for one in open_run(run.parent).history)
        if failed := [outcome.reason for outcome in outcomes if outcome.state is State.FAILED]:
            raise Untrue(f"`autoloss {shlex.join(asked)}` has trainings that failed:\n{failed[0]}")
    if words[0] == "score" and "failed: " in (said := folder.captured()):
        raise Untrue(f"`autoloss {shlex.join(asked)}` has trainings that failed:\n{said}")


def served_once(serve: Callable[[Server], None]) -> Callable[[Server], None]:
    """Return `serve_forever` of a server that is looked at once, and then ended."""

    def looked_at(server: Server) -> None:
        pages: list[str] = []

        def look() -> None:
            try:
                with urllib.request.urlopen(server.address, timeout=60) as answer:
                    pages.append(answer.read().decode())
            finally:
                server.shutdown()

        reader = threading.Thread(target=look)
        reader.start()
        serve(server)
        reader.join()
        assert "</html>" in pages[0]

    return looked_at


def torchrun(words: list[str], folder: Folder) -> None:
    """One process trains: torchrun must know its options. tests/training/test_distribution.py trains with several."""
    asked = parse_args(words)
    if (asked.module, asked.training_script) != (True, "autoloss"):
        raise Untrue(f"`torchrun {shlex.join(words)}` does not start autoloss")
    autoloss(asked.training_script_args, folder)


def pip(words: list[str], folder: Folder) -> None:
    """Nothing is installed: the extra that is named must exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    found = re.fullmatch(r"install (?:\.|autoloss)(?:\[(\w+)\])?", " ".join(words))
    if not found or (found[1] and found[1] not in extras):
        raise Untrue(f"`pip {shlex.join(words)}` names no extra of {', '.join(extras)}")


def make(words: list[str], folder: Folder) -> None:
    """Nothing is installed or tested: the target must exist, and a search in it is run."""
    command = ["make", "--dry-run", "--always-make", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Untrue(done.stderr)
    for line in done.stdout.splitlines():
        if " search " in line:
            autoloss(shlex.split(line)[1:], folder)


def ray(words: list[str], folder: Folder) -> None:
    """No cluster is started: Ray must know the command and its options."""
    scripts = pytest.importorskip("ray.scripts.scripts")
    command = scripts.cli.commands[words[0]]
    command.make_context(words[0], words[1:], resilient_parsing=True)


PROGRAMS: Mapping[str, Callable[[list[str], Folder], None]] = {
    "autoloss": autoloss,
    "torchrun": torchrun,
    "pip": pip,
    "make": make,
    "ray": ray,
}

STAND_INS = {
    "scontrol": 'printf "node1\\nnode2\\nnode3\\nnode4\\n"',
    "srun": 'while [ "${1#-}" != "$1" ]; do case "$1" in -w|-x) shift 2;; *) shift;; esac; done; "$@"',
    "sleep": "true",
    "ray": 'echo "ray $*"',
    "autoloss": 'echo "autoloss $*"',
}
"""Programs of a cluster's scheduler, and those that a job starts: the latter say what they were asked."""


def in_allocation(script: str, folder: Path) -> Iterator[str]:
    """Run a job's script on four nodes that are none; give the commands that it comes to."""
    programs = folder / "programs"
    programs.mkdir()
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    file = folder / "job.sh"
    file.write_text(script)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "SLURM_JOB_NODELIST": "node[1-4]"}
    done = subprocess.run(
        ["bash", "-eu", str(file)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Untrue(f"A job's script ended with {done.returncode}:\n{done.stderr}")
    yield from done.stdout.splitlines()


_NUMBER = re.compile(r"[-−]?\d+(?:[.,]\d+)*")


def compare(shown: str, said: str) -> None:
    """Hold output that a page shows to what the command said: the same lines, but for numbers."""
    expected, found = (
        [" ".join(_NUMBER.sub("#", line).split()) for line in text.splitlines() if line.strip()]
        for text in (shown, said)
    )
    if missing := [line for line in expected if line not in found]:
        raise Untrue(f"The page shows the lines\n{missing}\nthe command said\n{found}")
