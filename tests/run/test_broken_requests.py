"""Broken configurations: each gets one screen that names what was found and what was expected, and leaves nothing behind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch import nn

import autoloss
from autoloss.errors import RequestError
from autoloss.settings import Configuration
from tests.screens import screen

LONG = "9" * 5_000
SETTINGS: list[tuple[str, str, str]] = [
    # The assignment, what was found, what was expected.
    ("evolution.lagg=3", "'evolution.lagg'", "Did you mean 'evolution.lag'?"),
    ("evolution=3.0", "option of the task tabular named 'evolution'", "Known: "),
    ("evolution.lag=two", "'two'", "a whole number"),
    ("evolution.lag=", "''", "a whole number"),
    ("evolution.lag=0", "evolution.lag is 0", "at least 1"),
    ("evolution.lag=2.5", "'2.5'", "a whole number"),
    ("evolution.lag=1e400", "'1e400'", "a whole number"),
    (f"evolution.lag={LONG}", "9999…9999", "a whole number"),
    ("evolution.initial=-20", "evolution.initial is -20", "at least 1"),
    ("evolution.depth=7", "evolution.depth is 7", "at most 6"),
    ("evolution.tournament=1.5", "evolution.tournament is 1.5", "at most 1"),
    ("evolution.tournament=nan", "'nan'", "a number"),
    ("evolution.maximum_operators=65", "evolution.maximum_operators is 65", "at most 64"),
    ("evolution.one_branch=perhaps", "'perhaps'", "true or false"),
    ("offspring.copy=-0.1", "offspring.copy is -0.1", "at least 0"),
    ("offspring.fresh=inf", "'inf'", "a number"),
    ("rejection.samples=0", "rejection.samples is 0", "at least 1"),
    ("rejection.samples=1000000000", "rejection.samples is 1000000000", "at most 1000"),
    ("rejection.steps=-5", "rejection.steps is -5", "at least 1"),
    ("rejection.steps=10000000000", "rejection.steps is 10000000000", "at most 1000000"),
    ("rejection.unit=abs", "'abs'", "'relative' or 'absolute'"),
    ("rejection.engine=gpu", "'gpu'", "'fast' or 'reference'"),
    ("rejection.learning_rate=0", "rejection.learning_rate is 0.0", "above 0"),
    ("rejection.momentum=1", "rejection.momentum is 1.0", "below 1"),
    ("rejection.threshold=high", "'high'", "a number"),
    ("limits.wall_clock_seconds=0", "limits.wall_clock_seconds is 0.0", "above 0"),
    ("limits.training_seconds=-1", "limits.training_seconds is -1.0", "above 0"),
    ("limits.explored=many", "'many'", "a whole number"),
    ("limits.charge_diverged=2", "'2'", "true or false"),
    ("final.confirm=-2", "final.confirm is -2", "at least 0"),
    ("final.compare_seeds=a few", "'a few'", "a whole number"),
    ("evolution.lag", "'evolution.lag'", "key=value"),
    ("=3", "'=3'", "key=value"),
    ("\x1b[2Jlag.x=1", "x1b[2Jlag.x", "Known:"),
    ("e\u0430volution.lag=1", "eаvolution.lag", "Did you mean 'evolution.lag'?"),
    ("x" * 3_000 + ".y=1", "xxx…xxx", "Known:"),
]
REQUESTS: list[tuple[list[str], str, str]] = [
    (["--evaluations", "0"], "evaluations is 0", "at least 1"),
    (["--evaluations", "many"], "'--evaluations'", "a valid integer"),
    (["--seed", "-1"], "seed is -1", "at least 0"),
    (["--seed", str(2**64)], f"seed is {2**64}", "at least 0"),
    (["--workers", "-1"], "'--workers'", "greater than or equal to 0"),
    (["--metric", "f2"], "'f2'", "Known: f1, auc"),
    (["--data", "no/such.csv", "--set", "target=y"], "no/such.csv", "CSV file"),
    (["--set", "evolution.lag=1", "--set", "evolution.lag=2"], "evolution.lag is given twice", "keep one"),
    (["--set", "layers=99"], "layers is 99", "at most 16"),
    (["--set", "steps=1e-9"], "'1e-9'", "a whole number"),
    (["--out", "/dev/null/run"], "/dev/null/run cannot be made", "--out"),
    (["--out", __file__], "is a file", "Name a folder"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("assignment", "found", "expected"), SETTINGS, ids=[row[0][:30] for row in SETTINGS])
def test_a_broken_setting_gets_one_screen(assignment, found, expected, capsys, elsewhere):
    said = screen(capsys, "search", "tabular", "--set", assignment)
    assert found in said
    assert expected in said
    assert not list(elsewhere.iterdir())


@pytest.mark.parametrize(("arguments", "found", "expected"), REQUESTS, ids=[" ".join(row[0])[:30] for row in REQUESTS])
def test_a_broken_request_gets_one_screen(arguments, found, expected, capsys, elsewhere):
    said = screen(capsys, "search", "tabular", *arguments)
    assert found in said
    assert expected in said
    assert not list(elsewhere.iterdir())


TASKS = {
    "nothing.py:task": (None, "There is no file", "file.py:name"),
    "task.py:": ("def task(): ...", "task in task.py named ''", "Known: task"),
    "task.py:tusk": ("def task(): ...", "'tusk'", "Did you mean 'task'?"),
    "task.py:task": ("task = 1", "is an int", "expected a Task"),
    "broken.py:task": ("task = (", "fails on import: SyntaxError", "never closed"),
    "raises.py:task": ("raise OSError('\\x1b[2J no data')", "fails on import: OSError", "no data"),
    "exits.py:task": ("raise SystemExit(0)", "fails on import: SystemExit", "0"),
    "fails.py:task": (
        "def task():\n    raise KeyError('x')",
        "fails: KeyError: 'x'",
        "in fails.py, line 2: raise KeyError",
    ),
    "binary.py:task": ("\x00\x01", "fails on import", "null bytes"),
}


@pytest.mark.parametrize("name", TASKS)
def test_a_broken_task_file_gets_one_screen(name, capsys, elsewhere):
    content, found, expected = TASKS[name]
    if content is not None:
        (elsewhere / name.partition(":")[0]).write_text(content)
    said = screen(capsys, "search", name)
    assert found in said
    assert expected in said
    assert not (elsewhere / "runs").exists()


@pytest.mark.parametrize(("given", "said"), [(None, "task is None"), (lambda: None, "Call it"), (3, "task is 3")])
def test_what_is_no_task_is_named(given, said):
    with pytest.raises(RequestError, match=said):
        autoloss.search(given)
    with pytest.raises(RequestError, match=said):
        autoloss.check(given)


CALLS = {
    "losses is 'baseline/ce'; expected a list, each text": lambda task, run: autoloss.score(task, "baseline/ce"),
    "losses is [CrossEntropyLoss()]": lambda task, run: autoloss.score(task, [nn.CrossEntropyLoss()]),
    "seeds is 0; expected a whole number, at least 1": lambda task, run: autoloss.score(task, ["baseline/ce"], seeds=0),
    "workers is '2'; expected": lambda task, run: autoloss.search(task, workers="2"),
    "seed is True": lambda task, run: autoloss.tune(task, seed=True),
    "evaluations is -1": lambda task, run: autoloss.check(task, evaluations=-1),
    "proposer is <class": lambda task, run: autoloss.search(task, proposer=autoloss.Proposer),
    "expected text or none.": lambda task, run: autoloss.search(task, metric=lambda prediction, target: 0.5),
    "top is 0": lambda task, run: autoloss.compare(run, top=0),
    "baselines is ['ce']; expected 'usual' or 'all'": lambda task, run: autoloss.compare(run, baselines=["ce"]),
    "seeds is 1; expected a whole number, at least 2": lambda task, run: autoloss.explain(run, seeds=1),
    "number is <": lambda task, run: autoloss.explain(run, task),
    "directory is 3; expected text or a path": lambda task, run: autoloss.open_run(3),
    "loss is 3; expected": lambda task, run: autoloss.export(3, run / "loss.py"),
    "path is 3; expected text or a path": lambda task, run: autoloss.export("-y * log(p)", 3),
    "baseline/dice is written by hand": lambda task, run: autoloss.export(
        autoloss.zoo.get("baseline/dice"), run / "loss.py"
    ),
    "runs is 3; expected a list": lambda task, run: autoloss.learn(3, run / "prior.npz"),
    "criterion is 3; expected a dictionary, branch → loss": lambda task, run: task.train(3, autoloss.Training(seed=0)),
    "trees is 3; expected": lambda task, run: autoloss.Loss(3),
    "no loss in the zoo named '3'": lambda task, run: autoloss.zoo.get(3),
    "learning_rate is -1.0; expected a number, above 0": lambda task, run: autoloss.retrain(run, learning_rate=-1.0),
}


@pytest.mark.parametrize("said", CALLS)
def test_arguments_of_the_wrong_type_or_range_are_named(said, tmp_path):
    with pytest.raises(RequestError, match=re.escape(said)):
        CALLS[said](autoloss.tasks.get("tabular", data="iris"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '"x"',
        "3",
        '{"evolution": 3}',
        '{"seed": [1]}',
        '{"evolution": {"lag": {}}}',
        "[" * 5_000,
    ],
)
def test_a_stored_configuration_that_is_none_is_refused(text):
    with pytest.raises(RequestError, match=r"configuration|setting|expected"):
        Configuration.from_json(text)
