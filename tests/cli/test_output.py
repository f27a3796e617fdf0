"""What happens when nobody reads what a command prints, or its disk is full: the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import autoloss
from autoloss.cli.output import outlast_output
from tests.run.quick import PAPER

TASK = """
from tests.run.quick import QuickTask


class Talking(QuickTask):
    name = "talking"

    def train(self, *arguments, **named):
        print("training", flush=True)
        return super().train(*arguments, **named)


task = Talking()
"""
QUICK = {
    **PAPER,
    "rejection.engine": "reference",
    "rejection.steps": 15,
    "rejection.samples": 2,
    "rejection.threshold": 0.01,
    "final.compare_seeds": 2,
    "final.confirm": 1,
    "final.finalists": 1,
}
SETTINGS = [
    word for name, value in QUICK.items() if value != () for word in ("--set", f"{name}={value}".replace("(1.0,)", "1"))
]


@pytest.fixture
def full_disk():
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "wb") as file:
        yield file.fileno()


@pytest.fixture
def closed_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def start(folder: Path, *words: str, **streams) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "autoloss", *words]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path])}
    return subprocess.run(command, cwd=folder, env=variables, check=False, timeout=120, **streams)


@pytest.mark.parametrize("place", ["full_disk", "closed_pipe"])
def test_a_search_goes_on_when_what_it_prints_is_lost(place, tmp_path, request):
    (tmp_path / "task.py").write_text(TASK)
    words = ["search", "task.py:task", "--out", "run", "--evaluations", "6", "--workers", "0", "--start", "none"]
    ended = start(tmp_path, *words, *SETTINGS, stdout=request.getfixturevalue(place), stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "could not be written" in ended.stderr
    assert "Traceback" not in ended.stderr
    found = autoloss.open_run(tmp_path / "run")
    assert len(found.history) >= 6
    assert found.comparison
    # A table alone is worth nothing unread: a full disk is an error, a reader who leaves is none.
    for command in (["top", "run"], ["top", "run", "--json"]):
        ended = start(tmp_path, *command, stdout=request.getfixturevalue(place), stderr=subprocess.PIPE, text=True)
        assert ended.returncode == (1 if place == "full_disk" else 0)
        assert ended.stderr.startswith("autoloss: The output cannot be written" if place == "full_disk" else "")
        assert ended.stderr.count("\n") == (place == "full_disk")


@pytest.mark.parametrize("place", ["full_disk", "closed_pipe"])
def test_an_error_keeps_its_exit_code_when_stderr_is_lost(place, tmp_path, request):
    lost = request.getfixturevalue(place)
    assert start(tmp_path, "resume", "nowhere", stdout=lost, stderr=lost).returncode == 2


def test_a_command_without_stdout_ends_well(tmp_path):
    command = [sys.executable, "-m", "autoloss", "tasks"]
    shell = ["sh", "-c", '"$@" >&-', "sh", *command]
    ended = subprocess.run(shell, cwd=tmp_path, check=False, timeout=120, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_streams_that_a_program_has_replaced_stay(capsys):
    outlast_output(lambda: print("seen"))()
    assert capsys.readouterr().out == "seen\n"
