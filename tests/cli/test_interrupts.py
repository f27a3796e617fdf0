"""What an interrupt promises is there: the command that it names goes on with the run, or begins it."""

from __future__ import annotations

import importlib
import shlex
import sys
from pathlib import Path

import pytest

import autoloss
from autoloss import __main__ as launcher
from autoloss.errors import RequestError
from autoloss.evaluation import evaluator
from autoloss.run import search as searches
from tests import screens
from tests.run.quick import SETTINGS

WORDS = ["search", "tests/run/quick.py:TASK", "--workers", "0", "--evaluations", "3", "--no-final", "--start", "none"]
QUICK = {**SETTINGS, "rejection.engine": "reference"}
SET = [
    word
    for name, value in QUICK.items()
    if value != ()
    for word in ("--set", f"{name}={','.join(map(str, value)) if isinstance(value, tuple) else value}")
]


def interrupt(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


PLACES = {
    "before the folder": (searches, "make_request", False),
    "while samples are drawn": (searches, "prepare", False),
    "while the standard loss is tested": (searches, "check_threshold", False),
    "before the settings": (searches, "write_start", False),
    "in the ladder": (searches, "prepare_search", True),
    "in the search": (searches, "run_loop", True),
}


@pytest.mark.parametrize("place", PLACES)
def test_an_interrupt_names_a_command_that_works(place, tmp_path, monkeypatch):
    module, name, is_run = PLACES[place]
    directory = tmp_path / "my run"
    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupt)
        code, _, said = screens.run(*WORDS, *SET, "--out", directory)
    assert code == 130
    assert ("Go on with: " in said) == is_run
    if not is_run:
        assert "start the same" in said.lower()
        assert screens.run(*WORDS, *SET, "--out", directory)[0] == 0
        return
    assert "Everything finished is saved" in said
    words = shlex.split(said.partition("Go on with: ")[2])
    assert words == ["autoloss", "resume", str(directory)]
    assert screens.run(*words[1:])[0] == 0
    assert len(autoloss.open_run(directory).history) >= 3


def test_an_interrupt_without_a_named_folder_leaves_one_that_is_used_again(tmp_path, monkeypatch):
    task = Path(__file__).parents[1] / "run" / "quick.py"
    monkeypatch.chdir(tmp_path)
    words = ["search", f"{task}:TASK", *WORDS[2:], *SET]
    with monkeypatch.context() as patch:
        patch.setattr(searches, "write_start", interrupt)
        assert screens.run(*words)[0] == 130
    assert screens.run(*words)[0] == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quick-seed0"]


@pytest.mark.parametrize(("command", "trains"), [("compare", "compare_with_baselines"), ("explain", "explain_loss")])
def test_an_interrupted_comparison_says_how_to_go_on(command, trains, tmp_path, monkeypatch):
    assert screens.run(*WORDS, *SET, "--out", tmp_path / "my run")[0] == 0
    from autoloss.run import scoring

    monkeypatch.setattr(scoring, trains, interrupt)
    code, _, said = screens.run(command, tmp_path / "my run", "--seeds", 2, "--workers", 0)
    assert code == 130
    expected = shlex.join(["autoloss", command, str(tmp_path / "my run"), "--seeds", "2", "--workers", "0"])
    assert f"Trainings that ended are kept. Go on with: {expected}" in said


def test_an_interrupt_while_the_command_line_is_loaded_is_a_sentence(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "autoloss.cli")
    monkeypatch.setattr(importlib.machinery.SourceFileLoader, "exec_module", interrupt)
    with pytest.raises(SystemExit) as ended:
        launcher.run()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "autoloss: Interrupted. Nothing is kept; start the same command again.\n"


def test_an_interrupt_of_what_keeps_nothing_says_so(monkeypatch):
    monkeypatch.setattr(evaluator, "draw_samples", interrupt)
    from autoloss.run import scoring

    monkeypatch.setattr(scoring, "make_request", interrupt)
    code, _, said = screens.run("score", "tabular", "--loss", "baseline/ce")
    assert (code, said) == (130, "autoloss: Interrupted. Nothing is kept; start the same command again.\n")


@pytest.mark.parametrize("name", ["notes.md", "task.py", "data"])
def test_a_run_has_a_folder_of_its_own(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    task = Path(__file__).parents[1] / "run" / "quick.py"
    said = screens.refusal("search", f"{task}:TASK", *WORDS[2:], *SET, "--out", ".")
    assert name in said
    assert "--out" in said
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_logs_may_lie_in_the_folder_of_a_run(tmp_path):
    for name in ("search.log", "slurm-12.out", ".hidden"):
        (tmp_path / name).touch()
    assert screens.run(*WORDS, *SET, "--out", tmp_path)[0] == 0
    with pytest.raises(RequestError, match="already contains a run"):
        autoloss.search(WORDS[1], directory=tmp_path, workers=0)
