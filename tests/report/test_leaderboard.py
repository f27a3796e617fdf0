"""The leaderboard: who is listed, what is said of each, and why the others are not."""

from __future__ import annotations

import json
import subprocess
import sys
from random import Random

import pytest
from rich.console import Console

from autoloss import __version__
from autoloss.comparison.entrant import CONFIRMATION, training_seeds
from autoloss.errors import RequestError
from autoloss.report.failures import group_failures, print_failures
from autoloss.report.individual import print_show, show_values, sparkline
from autoloss.report.summary import list_by_size, list_top
from autoloss.run.results import open_run
from autoloss.store.read import read_once
from autoloss.store.store import Store
from autoloss.training.training import Training
from tests.report.written import CE, POOLED, ROOT, add, begin, candidate, scored, searched
from tests.screens import exit_code as run


@pytest.fixture
def directory(tmp_path):
    return searched(tmp_path / "run")


def test_a_row_holds_formula_size_score_age_and_times_found(directory):
    rows = {row.found.id: row.to_dict() for row in list_top(open_run(directory), 10)}
    assert list(rows) == [1, 2, 0]
    expected = {
        "score": 0.3,
        "confirmed": None,
        "size": 3,
        "age": 4,
        "found": 2,
        "formula": ROOT,
        "also": {"gacc": 0.15},
    }
    assert rows[0] == rows[0] | expected
    assert (rows[2]["simplified"], rows[2]["readable"]) == ("-y * log(p)", "−y·log(p)")
    assert rows[2]["readable"] == "−y·log(p)"


def test_the_hall_of_fame_holds_only_what_is_better_than_all_smaller(tmp_path):
    directory = begin(tmp_path / "run")
    sizes = {
        0: (CE, 0.5),
        1: ("neg(neg(mul(y, p)))", 0.6),
        2: ("mul(y, p)", 0.4),
        3: (POOLED, 0.6),
        4: ("exp(mul(y, p))", 0.3),
    }
    add(directory, *((candidate(number, loss), scored(score)) for number, (loss, score) in sizes.items()))
    assert [one.found.id for one in list_by_size(open_run(directory))] == [2, 1]


def test_top_prints_both_forms_and_what_is_in_training(directory, capsys):
    assert run("top", directory, "--by-size") == 0
    printed = capsys.readouterr().out
    assert "−y·log(p)" in printed
    assert CE in printed
    assert "in training: #5  mul(y, inv(p))" in printed


def test_top_needs_no_torch_once_its_formulas_are_known(directory, capsys):
    assert run("top", directory, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    script = (
        "import sys; from autoloss.cli import main\ntry: main(sys.argv[1:])\nfinally: assert 'torch' not in sys.modules"
    )
    again = subprocess.run(
        [sys.executable, "-c", script, "top", str(directory), "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout) == first


def test_a_spoilt_or_older_list_of_formulas_is_made_again(directory):
    rows = list_top(open_run(directory), 3)
    for text in ("{", "[]", '{"release": "0", "formulas": {}}', '["0", {}]', json.dumps([__version__, {CE: 1}])):
        (directory / "formulas.json").write_text(text)
        assert list_top(open_run(directory), 3) == rows


def test_show_tells_why_it_passed_how_it_trained_and_how_to_train_it_again(directory):
    console = Console(record=True, width=200)
    print_show(console, show_values(open_run(directory), 3))
    printed = console.export_text()
    assert "twin: shares the outcome of #0" in printed
    assert "passed on main: g 0.900, gains per sample +0.800 +1.000" in printed
    assert "steps 1 to 100: 2 → 0.25" in printed
    assert f"Train it again: autoloss score digits-seg --loss '{ROOT}' --metric miou --seed 0" in printed


def test_show_knows_what_is_still_in_training_and_what_is_not_there(directory, capsys):
    assert show_values(open_run(directory), 5)["state"] == "in training"
    with pytest.raises(RequestError, match="it has #0 to #5 so far"):
        show_values(open_run(directory), 6)
    with pytest.raises(RequestError, match="it has #0 to #5 so far"):
        show_values(open_run(directory), 10**23)
    assert run("show", directory, 6) == 2
    assert capsys.readouterr().err.startswith("autoloss: There is no loss #6")


def test_failures_are_grouped_with_an_example_of_each(directory, capsys):
    values = group_failures(read_once(directory, thorough=True))
    (group,) = values["trainings"]
    assert group == {
        "state": "diverged",
        "reason": "the loss is not finite",
        "count": 1,
        "example": {"id": 4, "formula": "exp(mul(inv(p), sqrt(y)))", "step": 3, "fidelity": 1.0},
    }
    first = values["rejections"][0]
    assert (first["reason"], first["count"]) == ("no prediction or no target", 6 * 80)
    assert first["example"]["formula"] == "add(1, 1)"
    assert [row["example"] for row in values["rejections"][1:]] == [None, None]
    assert run("failures", directory, "--json") == 0
    assert json.loads(capsys.readouterr().out) == values
    console = Console(record=True, width=200)
    print_failures(console, values, directory)
    printed = console.export_text()
    assert "#4  exp(mul(inv(p), sqrt(y))) (step 3)" in printed
    print_failures(console, {**values, "rejections": [{**first, "count": 1_234_567}]}, directory)
    assert "1 234 567" in console.export_text()


def test_a_sparkline_goes_from_lowest_to_highest_and_leaves_gaps():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, 1.0], 10) == "▁▁"
    assert sparkline([0.0, float("nan"), 7.0], 3) == "▁ █"
    rng = Random(0)
    assert len(sparkline([rng.random() for _ in range(1000)], 60)) == 60
    assert sparkline([], 5) == ""


def test_exporting_a_loss_that_no_training_speaks_for_warns(directory, capsys):
    assert run("export", directory, "4") == 0
    out, said = capsys.readouterr()
    assert "Loss #4: its training diverged at step 3: the loss is not finite" in said
    assert "warning: its training diverged" in out
    assert run("export", directory, "1") == 0
    out, said = capsys.readouterr()
    assert "warning" not in out + said


def test_exporting_a_loss_that_learned_nothing_warns(directory, capsys):
    with Store(directory, write=True) as store:
        store.change_setting("untrained", 0.3)
    assert run("export", directory, "0", "--to", "json") == 0
    out, said = capsys.readouterr()
    assert "learned nothing: score 0.3000, and 0.3000 untrained" in said
    assert "learned nothing" in json.loads(out)["facts"]["warning"]


def test_who_won_is_first_and_who_learned_nothing_last(tmp_path):
    directory = begin(tmp_path / "run", **{"search.rungs": (0.125, 1.0)})
    losses = [CE, ROOT, POOLED, f"neg({CE})", f"exp({CE})", f"inv({CE})"]
    scores = [(0.125, 0.0), (0.125, 0.3), (0.125, 0.5), (0.125, 0.01), (1.0, 0.0), (1.0, 0.6)]
    add(
        directory,
        *(
            (candidate(number, loss, fidelity=share), scored(score))
            for number, (loss, (share, score)) in enumerate(zip(losses, scores, strict=True))
        ),
    )
    with Store(directory, write=True) as store:
        store.change_setting("untrained", 0.0)
        for seed in training_seeds(0, CONFIRMATION, 2):
            store.add_training(POOLED, Training(seed=seed), scored(0.7), None)
            store.add_training(losses[5], Training(seed=seed), scored(0.65), None)
    found = open_run(directory)
    assert [row.found.id for row in list_top(found, 10)][:3] == [2, 5, 1]
    assert {row.found.id for row in list_top(found, 10)[3:]} == {0, 3, 4}
    assert [row.found.id for row in list_top(found, 1)] == [found.best.id]
