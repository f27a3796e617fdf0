"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import autoloss
from tests.screens import exit_code as run

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def example(name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", README, re.DOTALL)
    assert found, f"README.md lacks the example {name!r}"
    return found[1]


@pytest.fixture
def task_file(tmp_path) -> Path:
    file = tmp_path / "worst_digit.py"
    file.write_text(example("own task"), encoding="utf-8")
    return file


def test_the_own_task_takes_at_most_thirty_lines():
    assert len(example("own task").splitlines()) <= 30


def test_the_own_task_is_checked_searched_and_exported_from_its_file(task_file, tmp_path, capsys):
    out, loss = tmp_path / "run", tmp_path / "loss.py"
    assert run("check", f"{task_file}:task", "--no-rates") == 0
    assert "cross entropy has g = 1.000" in capsys.readouterr().out
    # The losses of the shelf, which come first, learn something: two of them are enough for each step up to the exported file.
    small = ("final.confirm=2", "final.finalists=1", "final.compare_seeds=2", "ladder.share=0", "rejection.steps=20")
    settings = [f"--set={setting}" for setting in small]
    assert run("search", f"{task_file}:task", "--evaluations", 2, "--out", out, "--workers", 0, *settings) == 0
    printed = capsys.readouterr().out
    assert "On the test split, new training seeds" in printed
    assert "baseline/ce" in printed
    assert run("export", out, "--out", loss) == 0
    assert "import torch" in loss.read_text()
    assert "autoloss" not in re.sub(r'""".*?"""', "", loss.read_text(), flags=re.DOTALL)


def test_a_loss_is_used_in_an_ordinary_training_loop(tmp_path):
    file = tmp_path / "use.py"
    file.write_text(example("use a loss"), encoding="utf-8")
    names = runpy.run_path(str(file))
    assert names["logits"].grad.abs().sum() > 0


def test_every_command_of_the_readme_exists():
    from autoloss.cli import app

    known = {command.callback.__name__ for command in app.registered_commands}
    named = set(re.findall(r"autoloss (\w+)", README)) - {"searches"}
    assert {"search", "check", "top", "export", "resume", "score", "zoo"} <= named <= known


def test_the_public_names_are_all_there():
    for name in autoloss.__all__:
        assert getattr(autoloss, name) is not None
