"""A task with two heads touches only its own file: it imports public names, and is searched like any other."""

from __future__ import annotations

import ast
from pathlib import Path

import autoloss
from autoloss.space.loss import bind
from autoloss.training.training import Scored, Training
from tests.tasks import toy
from tests.tasks.toy import TwoHeadsTask


def test_the_task_needs_public_names_alone():
    tree = ast.parse(Path(toy.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {module for module in imported if module.startswith(("autoloss", "tests"))} == {"autoloss"}
    # Nobody else names it: no list of tasks, branches or heads was touched.
    package = Path(autoloss.__file__).parent
    assert not [path for path in package.rglob("*.py") if "two-heads" in path.read_text()]


def test_losses_are_searched_for_both_heads(tmp_path):
    settings = {"evolution.initial": 2, "rejection.samples": 2, "rejection.steps": 50, "rejection.learning_rate": 0.05}
    task = TwoHeadsTask()
    found = autoloss.search(
        task, evaluations=3, seed=0, workers=0, directory=tmp_path / "run", settings=settings, final=False
    )
    assert set(found.best.loss) == {"kind", "place"}
    assert [set(one.candidate.kinds) for one in found.history] == [{"kind", "place"}] * len(found.history)
    outcome = task.train(bind(found.best.loss, task.branches), Training(seed=0, split="test"))
    assert isinstance(outcome, Scored)
    assert outcome.also.keys() == {"kind", "place"}
