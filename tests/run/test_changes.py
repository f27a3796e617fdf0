"""A run that is resumed with another task than it began with says so; with the same one it says nothing."""

from __future__ import annotations

import html
import io
import itertools
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import autoloss
from autoloss import Recipe
from autoloss.report.leaderboard import top_table
from autoloss.report.page.writing import write_report
from autoloss.report.summary import list_top, summarize
from autoloss.run import notes
from autoloss.run.notes import read_recipe
from autoloss.run.results import open_run
from autoloss.store.store import Store
from autoloss.workers.leases import build

from .quick import SETTINGS, QuickTask

QUICK = {**SETTINGS, "rejection.engine": "reference", "rejection.threshold": 0.01, "final.confirm": 0}
EXPECTED = "The task has changed since the run began: "


def hits(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(dim=1) == target).double().mean().item()


def hits_of_first(prediction: Tensor, target: Tensor) -> float:
    return (prediction.argmax(dim=1) == target)[target == 0].double().mean().item()


def squared_hits(prediction: Tensor, target: Tensor) -> float:
    """Equal to `hits` of an untrained network, and of the target itself."""
    return hits(prediction, target) ** 2 if hits(prediction, target) > 0.5 else hits(prediction, target)


def failing(prediction: Tensor, target: Tensor) -> float:
    raise ValueError("no such column")


class Own(nn.Module):
    """Prints an object that has another address and module each time, as in another process."""

    printed = itertools.count()

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.forward = function

    def extra_repr(self) -> str:
        return f"<module_{next(self.printed)}.Thing object at {id(object()):#x}>"


def make(
    metric: Callable[[Tensor, Tensor], float] = hits,
    data: int = 0,
    valid: int = 0,
    test: int | None = None,
    width: int = 8,
    standard: str | None = None,
    epochs: int = 3,
    classes: int = 3,
    cell: str = "",
    dropout: float = 0.0,
) -> autoloss.SupervisedTask:
    def draw(split: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
        target = inputs[:, :classes].argmax(dim=1)
        inputs[-1, -1] += split == cell
        # As another processor would round.
        return inputs * (1 + 1e-7 * (cell == "none")), target

    return autoloss.SupervisedTask(
        lambda: nn.Sequential(nn.Linear(4, width), Own(torch.relu), nn.Dropout(dropout), nn.Linear(width, classes)),
        train=draw("train", 96, data),
        valid=draw("valid", 64, 100 + valid),
        test=draw("test", 64, 200 + (valid if test is None else test)),
        activation="softmax",
        metric=metric,
        name="changes",
        recipe=Recipe(epochs=epochs, batch_size=32, learning_rate=0.3),
        standard=standard,
    )


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("changes") / "run"
    autoloss.search(make(), evaluations=2, workers=0, final=False, settings=QUICK, directory=directory)
    return directory


@pytest.fixture
def run(begun: Path, tmp_path: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "run")


def resume(run: Path, task: autoloss.SupervisedTask, evaluations: int = 4) -> list[str]:
    """Return what a longer search says of its task."""
    said: list[str] = []
    autoloss.resume(run, task, evaluations=evaluations, workers=0, final=False, say=said.append)
    return [text for text in said if text.startswith(EXPECTED)]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"metric": hits_of_first}, "the untrained network scores 0."),
        ({"metric": squared_hits}, "the metric of the branch main differs on the samples of the run"),
        ({"data": 1}, "the samples of the branch main differ: its data or network changed"),
        ({"width": 9}, "the samples of the branch main differ: its data or network changed"),
        ({"dropout": 0.5}, "since the run began: the network differs."),
        ({"valid": 1}, "the untrained network scores 0."),
        ({"test": 1}, "on the test split: the metric, the network or the test split changed"),
        ({"standard": "baseline/dice"}, "its standard loss is baseline/dice instead of baseline/ce"),
        ({"cell": "train"}, "the train data differ"),
        ({"cell": "valid"}, "the valid data differ"),
        ({"cell": "test"}, "the test data differ"),
        ({"epochs": 4}, "its recipe has epochs 4 instead of 3"),
    ],
)
def test_another_task_is_named(run: Path, changed, expected):
    (text,) = resume(run, make(**changed))
    assert expected in text
    assert "Restore the task, or start a new run" in text


def test_a_network_with_another_number_of_outputs_is_refused(run: Path):
    with pytest.raises(
        autoloss.errors.RequestError, match=r"the branch main has 4 outputs instead of 3.*Restore the task"
    ):
        resume(run, make(classes=4))


def test_a_metric_that_fails_now_is_told_by_the_tests_of_losses(run: Path):
    with pytest.raises(autoloss.errors.RunError, match="no such column"):
        resume(run, make(metric=failing))


def test_the_same_task_says_nothing(run: Path):
    assert resume(run, make()) == []
    assert resume(run, make(cell="none"), evaluations=6) == []


def test_a_package_that_was_upgraded_between_is_named(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notes, "build", lambda: ("Python 3.99", *build()[1:]))
    said: list[str] = []
    autoloss.resume(run, make(), evaluations=4, workers=0, final=False, say=said.append)
    (text,) = [text for text in said if "Python 3.99" in text]
    assert f"began with {build()[0]}" in text
    assert "last digits" in text
    assert any("Python 3.99" in one for one in open_run(run).settings.changes)


def test_a_finished_search_does_not_look_at_its_task(run: Path):
    assert resume(run, make(data=1), evaluations=2) == []


def test_a_verdict_holds_trainings_on_one_task_only(run: Path):
    settings = {"final.compare_seeds": 2, "final.confirm": 1, "final.confirm_seeds": 1, "final.finalist_seeds": 0}
    said: list[str] = []

    def measure(task: autoloss.SupervisedTask, evaluations: int) -> dict[str, list[float]]:
        found = autoloss.resume(directory, task, evaluations=evaluations, workers=0, say=said.append)
        return {row.entrant.label: list(row.score.finite) for row in found.comparison if row.entrant.baseline}

    directory = run.parent / "compared"
    autoloss.search(
        make(), evaluations=2, workers=0, settings={**QUICK, **settings}, start="baseline/ce", directory=directory
    )
    before = measure(make(), 2)
    with Store(directory) as store:
        trained = len(list(store.database.read("training")))
    assert measure(make(valid=1), 2) == before, "a finished run does not look at its task"
    assert not any(text.startswith(EXPECTED) for text in said)
    changed = measure(make(valid=1), 3)
    assert any(text.startswith(EXPECTED) for text in said)
    assert changed["cross entropy"] != before["cross entropy"]
    with Store(directory) as store:
        assert len(list(store.database.read("training"))) > trained + len(changed), "nothing recorded is lost"
    explained: list[str] = []
    autoloss.explain(directory, task=make(valid=2), seeds=2, workers=0, say=explained.append)
    assert sum(text.startswith(EXPECTED) for text in explained) == 1
    with Store(directory) as store:
        assert store.settings().task_version == 2
        # Of the trainings on three tasks, those on this one alone.
        assert 0 < len(store.trainings()) < len(list(store.database.read("training", "candidate IS NULL")))
    again = measure(make(), 4)
    assert "the task is again as the run began" in open_run(directory).settings.changes[-1]
    assert {name: again[name] for name in before} == before


def test_a_retraining_holds_trainings_of_one_task_only(run: Path):
    def retrain(task: autoloss.SupervisedTask, seeds: int, out: str = "retraining") -> autoloss.Retraining:
        said.clear()
        return autoloss.retrain(
            run, task=task, training_seeds=seeds, against=["ce"], out=run / out, say=said.append, learning_rate=1.0
        )

    said: list[str] = []
    assert "changes" not in retrain(make(), 1).settings
    assert not any(text.startswith(EXPECTED) for text in said)
    for changed in (make(width=9), make(metric=squared_hits), make(cell="test"), make(classes=4)):
        with pytest.raises(
            autoloss.errors.RequestError, match=r"another retraining: changes is None there and 'The task"
        ):
            retrain(changed, 2)
    found = retrain(make(width=9), 1, "wider")
    assert said[0] == found.settings["changes"]
    assert said[0].startswith(EXPECTED)
    assert len(retrain(make(), 2).rows[0].outcomes) == 2


class Moved:
    """As in a file that was the script of one process and is imported by another."""

    def __init__(self, module: str) -> None:
        self.module = module

    def recipe(self, schedule: str) -> dict[str, object]:
        return {
            "optimizer": f"{self.module}.make",
            "trainer": f"partial(fit, model={object()!r})",
            "optimizer.lr": 0.5,
            "scheduler.lr": 0.1,
        }


def test_neither_addresses_nor_modules_count_as_a_recipe():
    found = read_recipe(Moved("__main__"))
    assert found == read_recipe(Moved("package.train"))
    assert found == {
        "optimizer": "make",
        "trainer": "partial(fit, model=<object object>)",
        "optimizer.lr": 0.5,
        "scheduler.lr": 0.1,
    }


def test_a_recipe_that_json_cannot_hold_is_left_out():
    class Odd:
        def recipe(self, schedule: str) -> dict[str, object]:
            return {"network": nn.ReLU()}

    assert read_recipe(Odd()) == {}


def test_what_changed_is_kept_and_told_by_every_reader(run: Path):
    (text,) = resume(run, make(valid=1))
    for _ in range(2):
        resume(run, make(valid=1), evaluations=6)
    found = open_run(run)
    assert found.settings.changes == (f"After candidate #1: {text}",)
    assert found.settings.changes[0] in summarize(found).verdict.text
    screen = io.StringIO()
    Console(file=screen, width=2000).print(top_table(found, list_top(found, 3)))
    assert text[:60] in " ".join(screen.getvalue().split())
    assert text[:60] in " ".join(page_text(write_report(run)[0]).split())


def page_text(path: Path) -> str:
    return html.unescape(re.sub("<[^>]*>", " ", path.read_text(encoding="utf-8")))


def test_a_task_of_ones_own_may_tell_any_numbers_of_its_data(tmp_path):
    """Those of NumPy and torch, an odd number of them, and some that are not finite."""

    class Told(QuickTask):
        def fingerprints(self):
            return {"train": [np.float32(0.25), torch.tensor(3.0), np.nan], "valid": np.arange(2), "test": [changed]}

        def untrained(self, seed, split="valid"):
            return torch.tensor(-1e9)

        def constant_score(self):
            return np.float32("nan")

    changed = 1.0
    settings = {**SETTINGS, "evolution.initial": 2}
    autoloss.search(Told(), evaluations=2, workers=0, final=False, settings=settings, directory=tmp_path / "run")
    assert resume(tmp_path / "run", Told(), 3) == []
    changed = 1.1
    (text,) = resume(tmp_path / "run", Told())
    assert "the test data differ" in text
    assert "the train data differ" not in text
