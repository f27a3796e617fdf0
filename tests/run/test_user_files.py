"""Users' files are imported like scripts: modules beside them are found whenever they are needed, and by nobody else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.report.page.scenes import COUNT
from autoloss.report.page.writing import write_report
from autoloss.run.resolving import operator_table
from autoloss.run.user_files import importable_files, load_object
from autoloss.store.run_settings import TaskReference
from tests.report.written import searched

from .quick import SETTINGS

TASK = """
from autoloss import Scored
from tests.run.quick import QuickTask

import neighbour


class Own(QuickTask):
    name = neighbour.NAME

    def train(self, criterion, training, execution=None, observe=None):
        import later
        from package.inner import SHARE

        return Scored(later.SCORE * SHARE + len(criterion) * neighbour.TINY)


task = Own()
"""
DRAWING = """
import torch
from autoloss.tasks.task import Picture
from task import Own


class Drawing(Own):
    def pictures(self, criterion, training, count):
        from package.inner import SHARE

        classes = torch.zeros(4, 4, dtype=torch.long)
        return [Picture(SHARE * torch.ones(3, 4, 4), classes, classes)] * count


task = Drawing()
"""
OPERATOR = """
import autoloss
from neighbour import twice

double = autoloss.Operator("double", 1, lambda x: twice(x))
"""


def write_folder(folder: Path, score: float) -> Path:
    """Write a task and modules that it imports at once and while it trains."""
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "inner.py").write_text("SHARE = 0.5\n")
    (folder / "neighbour.py").write_text(f"NAME = {folder.name!r}\nTINY = 0.001\n")
    (folder / "later.py").write_text(f"SCORE = {score}\n")
    (folder / "task.py").write_text(TASK)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [write_folder(tmp_path / "first", 0.2), write_folder(tmp_path / "second", 0.8)]


@pytest.mark.parametrize("workers", [0, 1])
def test_two_tasks_import_their_own_modules_also_while_they_train(workers, folders, tmp_path):
    path, modules = list(sys.path), set(sys.modules)
    for folder, score in zip(folders, (0.101, 0.401), strict=True):
        directory = tmp_path / f"run-{folder.name}"
        asked = {"evaluations": 1, "workers": workers, "settings": SETTINGS, "final": False}
        found = autoloss.search(f"{folder}/task.py:task", directory=directory, **asked)
        assert found.settings.title == folder.name
        assert found.best.score == pytest.approx(score)
        longer = autoloss.resume(directory, evaluations=2, workers=workers, final=False)
        assert longer.best.score == pytest.approx(score)
    assert sys.path == path
    assert not {"neighbour", "later", "package", "package.inner"} & (set(sys.modules) - modules)


def test_the_scenes_of_a_report_are_drawn_by_a_task_that_imports_its_modules(folders, tmp_path):
    task, path = folders[0] / "drawing.py", list(sys.path)
    task.write_text(DRAWING)
    directory = searched(tmp_path / "run", task=TaskReference(f"{task}:task"))
    report, damaged = write_report(directory, scenes=True)
    assert (report.read_text().count("data:image/png;base64,"), damaged) == (4 * COUNT, [])
    assert sys.path == path


def test_the_import_path_is_as_before_where_a_file_fails(tmp_path):
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "task.py").write_text("import neighbour\nraise OSError('no such disk')\n")
    path = list(sys.path)
    with pytest.raises(RequestError, match="fails on import: OSError: no such disk"):
        load_object(f"{tmp_path}/task.py:task", "task")
    assert sys.path == path
    assert "neighbour" not in sys.modules


def test_operators_and_task_of_two_folders_have_their_own_modules(folders, tmp_path):
    (tmp_path / "neighbour.py").write_text("def twice(x):\n    return x + x\n")
    (tmp_path / "operators.py").write_text(OPERATOR)
    with importable_files():
        task = load_object(f"{folders[0]}/task.py:task", "task")
        table = operator_table([f"{tmp_path}/operators.py:double"])
        again = load_object(f"{folders[0]}/task.py:task", "task")
        assert sys.modules["neighbour"].NAME == "first"
    assert (task.name, again.name) == ("first", "first")
    assert "double" in table


def test_files_of_one_name_are_two_modules(folders):
    first, second = (load_object(f"{folder}/task.py:Own", "task") for folder in folders)
    assert (first.name, second.name) == ("first", "second")
    assert first.__module__ != second.__module__
    assert sys.modules[first.__module__].Own is first
