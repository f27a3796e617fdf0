"""The command line: what it prints, and the one screen that a wrong request gets."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import autoloss
from autoloss.store import store as stores
from autoloss.store.run_settings import TaskReference
from autoloss.store.store import FILE, Store, lock_run
from tests.run.quick import SETTINGS, QuickTask
from tests.screens import exit_code as run


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "run"
    settings = {**SETTINGS, "final.confirm": 2, "final.finalists": 1, "final.compare": 1, "final.compare_seeds": 2}
    autoloss.search(QuickTask(), evaluations=8, seed=1, workers=0, directory=path, settings=settings)
    return path


def test_a_terminal_that_cannot_write_every_character_gets_its_number(directory, monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert run("top", directory) == 0
    out.flush()
    assert b"\\u" in out.buffer.getvalue() or b"\\x" in out.buffer.getvalue()


def test_an_output_without_room_is_one_sentence(directory, monkeypatch, capsys):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys, "stdout", Full())
    assert run("top", directory) == 1
    said = capsys.readouterr().err
    assert said.startswith("autoloss: ")
    assert "No space left on device" in said
    assert said.count("\n") == 1


@pytest.fixture
def tabular_directory(directory, tmp_path):
    """Return a run whose task can be made again by its name; the losses are those of `directory`."""
    path = tmp_path / "run"
    shutil.copytree(directory, path)
    with Store(path, write=True) as store:
        store.change_setting("task", TaskReference("tabular", {"data": "iris", "steps": "20"}))
    return path


def test_a_comparison_of_fewer_seeds_is_shown_beside_the_one_that_judges_the_run(tmp_path, capsys):
    settings = {**SETTINGS, "final.confirm": 1, "final.compare": 1, "final.compare_seeds": 3}
    task = autoloss.tasks.get("tabular", data="iris", steps=20)
    autoloss.search(
        task, start=["baseline/ce"], evaluations=2, workers=0, directory=tmp_path / "run", settings=settings
    )
    with Store(tmp_path / "run", write=True) as store:
        store.change_setting("task", TaskReference("tabular", {"data": "iris", "steps": "20"}))
    capsys.readouterr()
    assert run("compare", tmp_path / "run", "--seeds", 2, "--baselines", "all", "--workers", 0) == 0
    said, beside = capsys.readouterr()
    assert "The verdict is still that of the comparison over 3 training seeds" in beside
    this, judging = re.split(r"test split\s*\n", said.partition("test split, 2 training seeds")[2])
    assert "weighted cross entropy" in this
    assert "weighted cross entropy" not in judging
    assert run("compare", tmp_path / "run", "--seeds", 2, "--baselines", "all", "--workers", 0, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["trained"]) > len(told["comparison"])
    assert {len(row["scores"]) for row in told["trained"]} == {2}
    assert {len(row["scores"]) for row in told["comparison"]} == {3}
    # One that was interrupted before its trainings judges nothing.
    with Store(tmp_path / "run", write=True) as store:
        store.change_setting("comparison", replace(store.settings().comparison, seeds=8))
    assert run("compare", tmp_path / "run", "--seeds", 2, "--workers", 0) == 0
    assert "The verdict is still" not in capsys.readouterr().err
    with Store(tmp_path / "run") as store:
        assert store.settings().comparison.seeds == 2


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "table.csv"

    def write(text: str):
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_top_as_json_is_a_list_of_objects(directory, capsys):
    assert run("top", directory, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert all({"id", "score", "formula"} <= set(row) for row in rows)
    assert rows[0]["score"] == max(row["score"] for row in rows)


@pytest.mark.parametrize("command", ["top", "failures"])
def test_a_damaged_training_is_answered_with_its_candidate(command, directory, tmp_path, capsys):
    path = tmp_path / "run"
    shutil.copytree(directory, path)
    with sqlite3.connect(path / FILE) as connection:
        connection.execute("UPDATE training SET seconds = seconds + 1 WHERE candidate = 1")
    connection.close()
    assert run(command, path) == 1
    assert "It belongs to candidate 1. Restore the file from a copy." in " ".join(capsys.readouterr().err.split())


def test_top_prints_a_table_with_every_formula(directory, capsys):
    assert run("top", directory, "-n", 3) == 0
    printed = "".join(capsys.readouterr().out.split())
    for row in autoloss.run.results.open_run(directory).top(3):
        assert "".join(row.formula.split())[:20] in printed


def test_show_tells_lineage_and_how_to_train_it_again(directory, capsys):
    best = autoloss.run.results.open_run(directory).top(1)[0]
    assert run("show", directory, best.id) == 0
    printed = capsys.readouterr().out
    assert best.formula in printed
    assert "Lineage" in printed
    assert "Train it again: autoloss score TASK --loss" in printed
    assert run("show", directory, best.id, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["id"] == best.id
    assert values["lineage"][0]["formula"] == best.formula


def test_export_writes_once_and_never_over_a_file(directory, tmp_path, capsys):
    out = tmp_path / "loss.py"
    assert run("export", directory, "--out", out) == 0
    text = out.read_text()
    assert run("export", directory, "--out", out) == 2
    assert "exists already. Name another file" in capsys.readouterr().err
    assert out.read_text() == text
    assert run("export", directory, 0, "--to", "json") == 0
    assert json.loads(capsys.readouterr().out)["id"] == 0


def test_simplify_prints_one_line_its_text_and_what_it_saves(capsys):
    assert run("simplify", "-y * log(abs(p))") == 0
    assert capsys.readouterr().out.splitlines() == ["−y·log(p)", "-y * log(p)", "6 → 5 nodes"]
    assert run("simplify", "abs(p)", "--activation", "none") == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["abs(p)", "2 → 2 nodes"]
    assert run("simplify", "y * y * p", "--one-hot", "--latex") == 0
    assert capsys.readouterr().out == "p \\cdot y\n"


def test_simplify_takes_losses_of_the_zoo_and_of_several_branches(capsys):
    assert run("simplify", "ins", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simplified"].endswith("rcnn_reg: -sqrt(i) / sqrt(e); mask: -log(p * y)")
    assert (found["nodes"], found["simplified_nodes"]) == (31, 28)
    assert run("simplify", "mask: abs(p)", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["formula"], found["simplified"], found["unicode"]) == ("mask: abs(p)", "mask: p", "mask: p")
    # Heatmaps are real numbers: the loss of the zoo knows what it was found for.
    assert run("simplify", "pose/oks") == 0
    assert "(p − 16·y⁴)² + p⁴" in capsys.readouterr().out


def test_one_loss_of_the_zoo_is_shown_with_its_shorter_form(capsys):
    for words in (["zoo", "seg/biou"], ["zoo", "show", "seg/biou"]):
        assert run(*words) == 0
        assert "  −log(y·p³·√(max₃ₓ₃(p))·exp((p·exp(p))²))" in capsys.readouterr().out.splitlines()
    assert run("zoo", "ins/mask", "--json") == 0
    assert json.loads(capsys.readouterr().out)["simplified"] == {"main": "−log(p·y)"}
    assert run("zoo", "baseline/dice") == 0
    assert "written by hand" in capsys.readouterr().out
    assert run("zoo", "show") == 2
    assert "autoloss zoo show baseline/ce" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["tasks", "zoo"])
def test_lists_come_as_json_too(command, capsys):
    assert run(command, "--json") == 0
    assert {row["name"] for row in json.loads(capsys.readouterr().out)}
    assert run(command) == 0
    assert capsys.readouterr().out


def test_score_trains_given_losses(capsys):
    arguments = ["--loss", "baseline/ce", "--loss", "(p - y)**2", "--set", "steps=20", "--set", "data=iris", "--json"]
    assert run("score", "tabular", "--workers", 0, *arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["label"] for row in rows} == {"cross entropy", "(p - y)**2"}
    assert all(0 <= row["mean"] <= 1 for row in rows)


GOOD = "age,color,churned\n" + "".join(
    f"{n},{'red' if n % 3 else 'blue'},{'yes' if n % 2 else 'no'}\n" for n in range(40)
)


def test_a_csv_is_checked(csv, capsys):
    path = csv(GOOD)
    assert run("check", "tabular", "--data", path, "--set", "target=churned", "--evaluations", 10, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["branches"][0]["branch"] == "main"
    assert found["search_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "digit-seg"], "There is no task named 'digit-seg'. Did you mean 'digits-seg'?"),
        (["check", __file__], "is a file; name the task in it as well"),
        (["check", os.path.dirname(__file__)], "is data, not a task. Name a task first, such as: folder-seg --data"),
        (["check", "mine:task"], "A task of your own is named file.py:name."),
        (
            ["search", "digits-seg", "--metric", "mio"],
            "no metric of the task digits-seg named 'mio'. Did you mean 'miou'?",
        ),
        (["search", "digits-seg", "--set", "evolution.lagg=3"], "Did you mean 'evolution.lag'?"),
        (["search", "digits-seg", "--set", "evolution.lag"], "--set takes key=value"),
        (
            ["search", "digits-seg", "--set", "sized=3"],
            "no option of the task digits-seg named 'sized'. Did you mean 'size'?",
        ),
        (["search", "digits-seg", "--set", "size=big"], "size is 'big'; expected a whole number"),
        (["search", "digits-seg", "--evaluations", "0"], "evaluations is 0"),
        (["search", "nothing.py:task"], "There is no file"),
        (["search", "digits-seg", "--inject", "hangs=0.1"], "There is no fault to inject named 'hangs'. Did you mean"),
        (
            ["search", "digits-seg", "--inject", "hang=0.1", "--workers", "0"],
            "inject needs at least one worker process",
        ),
        (
            ["resume", "runs/x", "--workers", "2", "--ray", "ray://head:10001"],
            "expected auto, or host:port of a cluster",
        ),
        (["score", "digits-seg", "--loss", "-y * lgo(p)"], "no operator named 'lgo'. Did you mean 'log'?"),
        (["score", "digits-seg", "--loss", "seg/mio"], "Did you mean 'seg/miou'?"),
        (["score", "digits-seg", "--loss", "y"], "does not depend on the prediction"),
        (["simplify", "-y * lgo(p)"], "no operator named 'lgo'. Did you mean 'log'?"),
        (["simplify", "p", "--activation", "sofmax"], "no activation named 'sofmax'. Did you mean 'softmax'?"),
        (["simplify", "seg/mio"], "no loss in the zoo named 'seg/mio'. Did you mean 'seg/miou'?"),
        (["simplify", "baseline/dice"], "baseline/dice is written by hand; only formulas can be simplified"),
        (["zoo", "seg/mio"], "no loss in the zoo named 'seg/mio'. Did you mean 'seg/miou'?"),
        (["top", "no/such/run"], "There is no run in no/such/run"),
        (["resume", "no/such/run"], "There is no run in no/such/run"),
        (["check", "tabular", "--set", "data=irs"], "iris"),
    ],
)
def test_a_wrong_request_gets_one_screen_and_exit_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert len(error) < 2000
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("7,red", ",red", 1), "line 9"),
        (GOOD.replace("17,red", "abc,red", 1), "'abc'"),
        (GOOD.replace("no\n", "yes\n"), "expected at least two values"),
        ("age,color,churned\n", "no rows"),
        ("", "empty"),
    ],
)
def test_a_broken_csv_names_line_and_column(text, message, csv, capsys):
    assert run("check", "tabular", "--data", csv(text), "--set", "target=churned") == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_an_unknown_column_is_answered_with_the_nearest(csv, capsys):
    assert run("check", "tabular", "--data", csv(GOOD), "--set", "target=churn") == 2
    assert "churned" in capsys.readouterr().err


def test_a_directory_with_a_run_is_refused_with_the_resume_command(directory, capsys):
    assert run("search", "digits-seg", "--out", directory) == 2
    assert f"autoloss resume {directory}" in capsys.readouterr().err


def test_another_drivers_run_exits_3_and_names_the_owner(directory, capsys):
    owner = lock_run(directory)
    try:
        assert run("resume", directory) == 3
    finally:
        owner.close()
    assert f"process {os.getpid()} on" in capsys.readouterr().err


def test_an_unknown_individual_is_answered_with_what_there_is(directory, capsys):
    assert run("show", directory, 999) == 2
    assert re.search(r"no loss #999 .* #0 to #\d+", capsys.readouterr().err)


def test_listing_and_wrong_names_import_no_torch():
    program = (
        "import sys, autoloss.cli as c\n"
        "for words in (['tasks'], ['zoo'], ['search', 'nope'], ['--help']):\n"
        "    try:\n        c.main(words)\n    except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_top_of_formulas_that_were_shown_before_imports_neither_torch_nor_scipy(directory, capsys):
    # The first time, they are simplified.
    assert run("top", directory) == 0
    program = (
        "import sys, autoloss.cli as c\n"
        f"try:\n    c.main(['top', {str(directory)!r}])\nexcept SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_search_says_how_to_resume(number, code, tmp_path):
    arguments = ["search", "tabular", "--workers", "1", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-m", "autoloss", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not stores.exists(tmp_path / "run"):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == code, error
    assert f"Go on with: autoloss resume {tmp_path / 'run'}" in error
    assert "Traceback" not in error


def test_retrain_prints_what_it_wrote(tabular_directory, capsys):
    arguments = ["retrain", tabular_directory, 0, "--seeds", 1, "--baselines", "ce", "--set", "steps=24"]
    arguments += ["--learning-rate", 1]
    assert run(*arguments, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert {row["label"] for row in printed["rows"]} == {"#0", "cross entropy"}
    assert printed["settings"]["options"] == {"data": "iris", "steps": "24"}
    assert printed["metric"] == "f1"
    assert run(*arguments) == 0
    out, error = capsys.readouterr()
    assert "cross entropy" in out
    assert "table.md" in out
    assert "Training" not in out + error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "steps=many"], "steps is 'many'; expected a whole number"),
        (["--set", "evolution.lag=2"], "evolution.lag"),
        (["--baselines", "lovazs"], "no loss in the zoo named 'lovazs'"),
        (["--recipe", "voc"], "no recipe of a retraining named 'voc'"),
        (["--precision", "half"], "no precision named 'half'"),
        (["999"], "no finished loss #999"),
        (["--out", "/dev/null/x"], "cannot be made"),
    ],
    ids=str,
)
def test_a_wrong_retraining_gets_one_screen_and_exit_2(tabular_directory, arguments, message, capsys):
    assert run("retrain", tabular_directory, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tabular_directory / "retraining").exists()


def test_an_interrupted_retraining_says_how_to_go_on(tabular_directory):
    arguments = ["retrain", str(tabular_directory), "--set", "steps=20000", "--checkpoint-seconds", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "autoloss", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not list(tabular_directory.rglob("checkpoint-*.pt")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert f"Go on with: autoloss {' '.join(arguments)}" in error
    assert "Traceback" not in error


def test_a_loss_is_exported_for_a_paper(directory, capsys):
    assert run("export", directory, "--to", "latex") == 0
    printed = capsys.readouterr().out
    assert "\\begin{align*}\no &= " in printed
    assert "% task: quick" in printed


def test_a_search_starts_from_what_its_user_knows(tmp_path, monkeypatch, capsys):
    """All of it on one command line, with a task and an operator of files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both.py").write_text("from tests.run.quick import QuickTask\n\ntask = QuickTask(('main', 'reg'))\n")
    (tmp_path / "ops.py").write_text(
        "import autoloss\n\n\ndef squashed(x):\n    return x / (1 + x.abs())\n\n\n"
        "squash = autoloss.Operator('squash', 1, squashed)\n"
    )
    (tmp_path / "formulas.txt").write_text("baseline/ce\ny * log(p)  # rejected\n")
    settings = [f"--set={name}={value}" for name, value in SETTINGS.items()]
    started = ["--evaluations", 2, "--workers", 0, "--no-final", "--out", "run", *settings]
    known = ["--start", "formulas.txt", "--size-limit", 9, "--without", "max_pool,min_pool", "--also", "digest"]
    assert run("search", "both.py:task", *started, *known, "--operators", "ops.py:squash", "--frozen", "reg=p * y") == 0
    printed = capsys.readouterr().out
    assert "Starts from 1 known loss: cross entropy." in printed
    assert "A random tree replaces y * log(p): too little gain (g " in printed
    assert "digest" in printed
    configuration = autoloss.run.results.open_run("run").configuration
    assert configuration.evolution.maximum_operators == 9
    assert configuration.space.without == ("max_pool", "min_pool")
    assert configuration.space.operators == (f"{tmp_path / 'ops.py'}:squash",)
    assert run("resume", "run", "--evaluations", "+1", "--workers", 0, "--no-final") == 0
    capsys.readouterr()
    assert run("top", "run", "--also", "none") == 0
    assert "digest" not in capsys.readouterr().out
    assert run("search", "both.py:task", "--out", "other", "--frozen", "mask=p") == 2
    assert "no branch named 'mask'" in capsys.readouterr().err
