"""Users' files are imported like scripts: modules beside them are found whenever they are needed, and by nobody else."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

import autoloss
from autoloss.errors import RequestError, RunError
from autoloss.report.page.scenes import COUNT
from autoloss.report.page.writing import write_report
from autoloss.run.resolving import load_task, operator_table, refer_to_task
from autoloss.run.user_files import importable_files, load_object
from autoloss.store.run_settings import TaskReference
from tests.report.written import searched

from .quick import SETTINGS, QuickTask

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
        longer = autoloss.resume(directory, evaluations=2, workers=0, final=False)
        assert longer.best.score == pytest.approx(score)
    assert sys.path == path
    assert not {"neighbour", "later", "package", "package.inner"} & (set(sys.modules) - modules)


def test_the_scenes_of_a_report_are_drawn_by_a_task_that_imports_its_modules(folders, tmp_path):
    task, path = folders[0] / "drawing.py", list(sys.path)
    task.write_text(DRAWING)
    directory = searched(tmp_path / "run", task=TaskReference(f"{task}:task"))
    report, damaged = write_report(directory, scenes=True, trust=True)
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


SHADOWS = ("cuda", "triton", "psutil", "typing_extensions", "sympy")
"""Names that torch and numba look for when they are imported."""


def test_a_file_named_like_a_library_does_not_keep_workers_from_starting(tmp_path):
    folder = write_folder(tmp_path / "own", 0.5)
    for name in SHADOWS:
        (folder / f"{name}.py").write_text("raise RuntimeError('a user file was imported')\n")
    options = {"evaluations": 2, "workers": 1, "seed": 1, "final": False}
    settings = {**SETTINGS, "evolution.initial": 2, "rejection.engine": "reference"}
    found = autoloss.search(f"{folder}/task.py:task", directory=tmp_path / "run", settings=settings, **options)
    assert [one.outcome.reason for one in found.history if one.outcome.score is None] == []


ENDING = """
import sys

import autoloss
from tests.run.quick import QuickTask


class Own(QuickTask):
    def {member}:
        sys.exit(0)


def leaving():
    sys.exit(0)


task = Own()
"""


@pytest.mark.parametrize("member", ["samples(self, *_)", "untrained(self, seed)", "diagnose(self)", "recipe(self, _)"])
def test_code_that_ends_the_process_is_an_error(member, tmp_path):
    (tmp_path / "task.py").write_text(ENDING.format(member=member))
    options = {"evaluations": 2, "workers": 0, "settings": SETTINGS}
    if "recipe" in member:
        autoloss.search(f"{tmp_path}/task.py:task", directory=tmp_path / "run", final=False, **options)
        return
    with pytest.raises(RunError, match=r"SystemExit: 0, in task.py, line 10: sys.exit"):
        autoloss.search(f"{tmp_path}/task.py:task", directory=tmp_path / "run", **options)
    with pytest.raises(RequestError, match=r"leaving fails: SystemExit: 0, in task.py, line 14: sys.exit"):
        autoloss.search(f"{tmp_path}/task.py:leaving", directory=tmp_path / "other", **options)


MOVING = """
import os

from tests.run.quick import QuickTask


class Own(QuickTask):
    def diagnose(self):
        os.chdir("/")
        return []

    def train(self, *arguments, **named):
        os.chdir("/")
        return super().train(*arguments, **named)


task = Own()
"""


def test_code_that_changes_the_folder_does_not_move_the_run(tmp_path, monkeypatch):
    (tmp_path / "task.py").write_text(MOVING)
    monkeypatch.chdir(tmp_path)
    found = autoloss.search("task.py:task", directory="run", evaluations=2, workers=0, final=False, settings=SETTINGS)
    assert (tmp_path / "run" / "run.sqlite").exists()
    assert found.history


def test_paths_among_the_options_of_a_task_are_stored_as_text(tmp_path, monkeypatch):
    (tmp_path / "rows").mkdir()
    monkeypatch.chdir(tmp_path)
    options = {"data": Path("rows"), "weights": Path("none.pt"), "target": "rows"}
    found = refer_to_task("tabular", options=options).options
    assert found == {"data": str(tmp_path / "rows"), "weights": "none.pt", "target": "rows"}


LOADING = """
import torch
from torch.utils.data import DataLoader, Dataset

import autoloss
from neighbour import TINY


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, row):
        generator = torch.Generator().manual_seed(row)
        inputs = torch.randn(4, generator=generator) + TINY
        return inputs, int(inputs[:2].sum() > 0)


def collate(rows):
    return torch.stack([inputs for inputs, _ in rows]), torch.tensor([label for _, label in rows])


def accuracy(prediction, target):
    return (prediction.argmax(1) == target).double().mean().item()


loader = DataLoader(Rows(), batch_size=16, num_workers=1, collate_fn=collate, multiprocessing_context={context!r})
task = autoloss.SupervisedTask(
    lambda: torch.nn.Linear(4, 2), loader, loader, "softmax", accuracy, recipe=autoloss.Recipe(epochs=1, batch_size=16)
)
"""


@pytest.mark.parametrize("context", [None, "spawn"])
def test_data_of_the_tasks_own_file_are_loaded_by_processes_while_the_file_runs(context, tmp_path):
    folder = write_folder(tmp_path / "own", 0.5)
    (folder / "loading.py").write_text(LOADING.format(context=context))
    rows = autoloss.score(f"{folder}/loading.py:task", ["baseline/ce"], workers=0)
    assert rows[0].mean is not None, rows[0].reasons


@pytest.mark.parametrize("call", ["search", "score", "load"])
def test_two_threads_of_a_process_do_not_search_at_once(call, tmp_path):
    refused: list[object] = []

    def ask() -> None:
        try:
            if call == "search":
                autoloss.search(QuickTask(), directory=tmp_path / "second", evaluations=2, workers=0, settings=SETTINGS)
            elif call == "score":
                autoloss.score(QuickTask(), ["baseline/ce"], workers=0)
            else:
                load_object(f"{tmp_path}/task.py:task", "task")
        except RequestError as error:
            refused.append(error)

    def observe(progress: object) -> None:
        if not refused:
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()

    (tmp_path / "task.py").write_text("task = 1")
    options = {"evaluations": 2, "workers": 0, "final": False, "settings": SETTINGS}
    found = autoloss.search(QuickTask(), directory=tmp_path / "first", observe=observe, **options)
    assert "Another thread of this process" in str(refused[0])
    assert not (tmp_path / "second").exists()
    # It is over: another thread may search now, and finds the same.
    thread = threading.Thread(
        target=lambda: refused.append(autoloss.search(QuickTask(), directory=tmp_path / "third", **options).history)
    )
    thread.start()
    thread.join()
    scores = [[(one.formula, one.score) for one in history] for history in (refused[-1], found.history)]
    assert scores[0] == scores[1]


NAMELESS = """
from tests.tasks.test_supervised import accuracy, network, rows

import autoloss

task = mine = autoloss.SupervisedTask(network, rows(0), rows(1), "softmax", accuracy)
"""


@pytest.mark.parametrize(("variable", "name"), [("task", "churn"), ("mine", "mine")])
def test_a_task_without_a_name_has_that_of_its_file_or_variable(variable, name, tmp_path):
    (tmp_path / "churn.py").write_text(NAMELESS)
    assert load_task(TaskReference(f"{tmp_path}/churn.py:{variable}")).name == name


def test_a_task_object_without_a_name_has_that_of_its_metric():
    from tests.tasks.test_supervised import task

    assert (task().name, task(name="own").name) == ("accuracy", "own")


MIXED = """
from torch import nn
from tests.run.quick import QuickTask

rows, model, my_task = [1], nn.Linear(2, 2), QuickTask()


def make():
    return my_task
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tsk", "Known: my_task, make."),
        ("model", "model in mixed.py is a Linear; expected a Task"),
        ("rows", "rows in mixed.py is a list; expected a Task"),
    ],
)
def test_what_is_no_task_is_named_and_not_proposed(name, message, tmp_path):
    (tmp_path / "mixed.py").write_text(MIXED)
    with pytest.raises(RequestError, match=message):
        load_task(TaskReference(f"{tmp_path / 'mixed.py'}:{name}", {}, {}))
